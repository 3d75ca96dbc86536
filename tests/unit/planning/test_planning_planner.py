import copy
import re
import timeit
from pathlib import Path
from typing import Any

import pytest
from created_stacks import created
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import config, planning
from stack_files import created_pool, existing_cluster, model, stack, write

PROJECT = Path(__file__).parents[3]


def problems(value: Any) -> list[Problem]:
    with pytest.raises(InvalidStack) as caught:
        planning.plan_object(value)
    return list(caught.value.problems)


@pytest.mark.parametrize("name", config.stacks(PROJECT))
def test_every_stack_of_the_project_has_a_plan(name: str):
    result = planning.plan_stack_file(PROJECT, name)
    assert result == planning.plan(config.load(PROJECT, name))
    assert result.used_gpus <= result.gpus


def test_only_planning_preflight_and_explain_read_the_stack_files_config():
    """But for preflight, which asks OCI whether the stack file itself holds, and explain, which tries other ones."""
    sources = [path for folder in ("components", "packages") for path in (PROJECT / folder).rglob("*.py")]
    later = [path for path in sources if path.parent.name != "planning"]
    readers = sorted(path.name for path in later if re.search(r"\bplan\.config\b", path.read_text()))
    assert readers == ["key_values.py", "preflight.py", "probes.py"]


@pytest.mark.parametrize(
    ("name", "topology", "copies", "gpus", "used", "idle_nodes"),
    [
        ("reference", "8p-tp1-4d-tp2", 4, 72, 64, 1),
        ("small", "2p-tp1-1d-tp2", 1, 8, 4, 0),
        ("rehearsal", "8p-tp1-4d-tp2", 1, 72, 16, 7),
        ("guide", "8p-tp1-2d-tp4", 1, 16, 16, 0),
        ("guide-baseline", "agg-tp1-16r", 1, 16, 16, 0),
    ],
)
def test_stacks_of_the_project_have_the_expected_servers_and_gpus(
    name: str, topology: str, copies: int, gpus: int, used: int, idle_nodes: int
):
    plan = planning.plan_stack_file(PROJECT, name)
    (model,) = plan.models
    assert (str(model.topology), len(model.units)) == (topology, copies)
    assert (plan.gpus, plan.used_gpus, len(plan.idle_nodes)) == (gpus, used, idle_nodes)
    assert plan.price_usd_per_hour == 6 * gpus
    assert (plan.created is not None, model.router.mode == "none") == (name == "reference", name == "guide-baseline")


def test_a_stack_file_can_be_planned_with_another_releases_router():
    written, other = (planning.plan_stack_file(PROJECT, "guide", router) for router in (None, "llm-d-0.6.0"))
    assert (other.release.name, other.router_release) == (written.release.name, "llm-d-0.6.0")
    assert written.router_release == written.release.name


def test_the_config_hash_of_an_unchanged_stack_file_is_that_of_earlier_results():
    """A stack file of few keys: another hash would make its earlier results count as another configuration's."""
    assert planning.plan_object(stack()).config_hash == "576dc33fb06e64a8"


TO_OPS = {"recipients": ["ops@example.com"]}
COPIES = stack(model("2p-tp1-2d-tp1", copies=2), frontDoor={})


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (stack(), {"monitoring": "none"}),
        (stack(), {"tags": {"freeform": {"team": "a"}}}),
        (created(), {"budget": {"monthlyAmount": 10_000_000, **TO_OPS}}),
        (created(), {"ociMonitoring": {"alarms": TO_OPS, "logs": {}}}),
        (COPIES, {"frontDoor": {"weights": {"gpt-oss-120b-0": 90, "gpt-oss-120b-1": 10}}}),
    ],
)
def test_settings_that_servers_do_not_depend_on_do_not_change_the_configuration_hash(
    value: dict[str, Any], changes: dict[str, Any]
):
    assert planning.plan_object({**value, **changes}).config_hash == planning.plan_object(value).config_hash


def test_tracing_changes_the_configuration_hash():
    traced = planning.plan_object(stack(tracing={"endpoint": "http://otel-collector:4317"}))
    assert traced.config_hash != planning.plan_object(stack()).config_hash


def test_optional_parts_of_a_stack_are_off_by_default():
    plan = planning.plan_object(stack())
    assert (plan.front_door, plan.gateway, plan.monitoring, plan.tracing) == (None, None, None, None)
    assert plan.config.storage.model_cache.kind == "none"


def test_copies_of_a_model_are_named_by_the_model_and_their_number():
    result = planning.plan_object(stack(model("8p-tp1-4d-tp2", copies=2, name="big")))
    assert [unit.name for unit in result.models[0].units] == ["big-0", "big-1"]
    assert planning.plan_object(stack(model(name="big"))).models[0].units[0].name == "big"


def test_a_created_clusters_plan_has_its_network_iam_pools_autoscaler_and_gpu_stack():
    taint = {"key": "team", "value": "a"}
    pool = created_pool(scaling={"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 12}, taints=[taint])
    plan = planning.plan_object(created(pool, network={"bastion": False}))
    assert plan.created is not None
    assert "bastion" not in plan.created.network.choices.subnet_roles
    assert "cluster-autoscaler" in plan.created.iam.nodes
    assert [pool.name for pool in plan.created.autoscaled] == ["mi300x"]
    assert plan.created.autoscaler is not None
    assert plan.created.network.pools[0].nodes == 12
    assert [item.key for item in plan.taints] == ["team"]
    assert plan.gpu_stack.kind == "helm-operator"
    assert plan.control_plane_cidrs is not None


def test_a_plan_for_an_existing_cluster_creates_only_models():
    plan = planning.plan_object(stack(cluster=existing_cluster(kubeconfigContext="mine")))
    assert (plan.created, plan.taints, plan.control_plane_cidrs) == (None, (), None)
    assert (plan.gpu_stack.kind, plan.kubeconfig_context) == ("present", "mine")


def test_invalid_values_and_planning_problems_are_reported_together():
    value = stack(model("8p"), model("8p-tp3-1d-tp4", name="b"), release="llm-d-9", smoke={"requests": 0})
    assert [problem.path for problem in problems(value)] == [
        "models[0].topology",
        "smoke.requests",
        "release",
        "models[1].topology",
    ]


def test_problems_of_a_created_cluster_are_reported_beside_invalid_values():
    value = created(
        created_pool(kubernetesVersion="v1.36.1"),
        stack_changes={"smoke": {"requests": 0}, "systemPool": {"shape": "VM.GPU.A10.1"}},
        network={"cidr": "10.224.0.0/16"},
    )
    result = {problem.path for problem in problems(value)}
    assert {"smoke.requests", "gpuPools[0].kubernetesVersion", "systemPool.shape", "cluster.network.cidr"} <= result


@pytest.mark.parametrize("gpu_stack", ["present", "helm-operator"])
def test_planning_checks_that_depend_on_an_invalid_cluster_are_skipped(gpu_stack: str):
    value = created(created_pool(), stack_changes={"gpuStack": gpu_stack}, cni="calico")
    assert {problem.path for problem in problems(value)} == {"cluster.cni"}


def test_an_unknown_maker_of_virtual_functions_is_reported_beside_other_problems():
    value = stack(cluster=existing_cluster(virtualFunctions="mine"), smoke={"requests": 0}, release="llm-d-9")
    assert [problem.path for problem in problems(value)] == ["cluster.virtualFunctions", "smoke.requests", "release"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"gpuPools": [{"name": "a", "shape": "BM.GPU.MI300X.8"}]}, "gpuPools[0].size"),
        ({"gpuPools": 5}, "gpuPools"),
        ({"models": []}, "models"),
        ({"models": [model("8p-tp1-4d-tp2", engine={"maxModelLen": "8k"})]}, "models[0].engine.maxModelLen"),
        ({"rdma": "yes"}, "rdma"),
        ({"release": 8}, "release"),
        ({"cluster": {}}, "cluster.mode"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_invalid_value_causes_no_problems_at_other_keys(changes: dict[str, Any], path: str):
    result = problems({**stack(nodes=1), **changes})
    assert result[0].path == path
    assert {problem.path.split(".")[0] for problem in result} == {path.split(".", maxsplit=1)[0]}


def test_problems_of_a_stack_file_have_line_numbers(tmp_path: Path):
    value = stack(model("8p-tp1-4d-tp2", copies=9), model({"prefill": {"replicas": 1, "tensorParallelSize": 3}}))
    lines = write(tmp_path, "mine", value).read_text().splitlines()
    with pytest.raises(InvalidStack) as caught:
        planning.plan_stack_file(tmp_path, "mine")
    shown = {problem.path: lines[(problem.line or 0) - 1].strip() for problem in caught.value.problems}
    assert shown == {
        "gpuPools[0].size": "size: 9",
        "models[1].model": "- model: gpt-oss-120b",
        "models[1].topology": "topology:",
        "models[1].topology.prefill.tensorParallelSize": "tensorParallelSize: 3",
    }


def test_the_rehearsal_stack_is_planned_in_under_20_ms():
    loaded = config.load(PROJECT, "rehearsal")
    planning.plan(loaded)
    assert min(timeit.repeat(lambda: planning.plan(loaded), number=1, repeat=20)) < 0.02


SIZES = st.integers(1, 9)
SERVERS = st.fixed_dictionaries({"replicas": st.integers(1, 40), "tensorParallelSize": SIZES})
SHORT = st.builds("{}p-tp{}-{}d-tp{}".format, st.integers(1, 40), SIZES, st.integers(1, 40), SIZES)
TOPOLOGIES = (
    SHORT
    | st.builds("agg-tp{}-{}r".format, SIZES, st.integers(1, 80))
    | st.dictionaries(st.sampled_from(["prefill", "decode", "aggregated"]), SERVERS)
)
MODELS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["gpt-oss-120b", "llama-3.3-70b-instruct-fp8-dynamic", "gpt-5"]),
        "topology": TOPOLOGIES,
        "workload": st.fixed_dictionaries(
            {"inputTokens": st.integers(1, 200_000), "outputTokens": st.integers(1, 10_000)}
        ),
    },
    optional={
        "name": st.sampled_from(["a", "b", "a-0"]),
        "copies": st.integers(1, 64),
        "router": st.fixed_dictionaries({"mode": st.sampled_from(["standalone", "none"])}),
        "slo": st.none() | st.fixed_dictionaries({}, optional={"itlMs": st.floats(0.001, 1e9)}),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxModelLen": st.integers(1, 200_000),
                "gpuMemoryUtilization": st.floats(0, 1, exclude_min=True),
                "extraArgs": st.lists(st.text(max_size=12) | st.just("-tp"), max_size=2),
            },
        ),
    },
)
STACKS = st.fixed_dictionaries(
    {
        "cluster": st.just(existing_cluster()),
        "gpuPools": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["a", "b"]),
                    "shape": st.sampled_from(["BM.GPU.MI300X.8", "BM.GPU.MI300X.8", "BM.GPU.H200.8"]),
                    "size": st.integers(1, 100),
                }
            ),
            min_size=1,
            max_size=2,
        ),
        "release": st.sampled_from(["llm-d-0.6.0", "llm-d-0.7.0", "llm-d-0.9"]),
        "models": st.lists(MODELS, min_size=1, max_size=3),
    },
    optional={"rdma": st.sampled_from(["sriov-vf", "none"])},
)


def outcome(value: Any) -> planning.Plan | tuple[Problem, ...]:
    try:
        return planning.plan_object(value)
    except InvalidStack as refused:
        return refused.problems


def exists(path: str, value: Any) -> bool:
    """Tell whether a path leads to something that the user wrote."""
    for step in path.replace("[", ".[").split("."):
        key = int(step[1:-1]) if step.startswith("[") else step
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


@given(STACKS)
def test_any_valid_stack_file_gives_a_consistent_plan_or_problems_with_paths(value: dict[str, Any]):
    result = outcome(value)
    if not isinstance(result, planning.Plan):
        assert result
        for problem in result:
            assert exists(problem.path, value), problem
            assert problem.accepted
            assert problem.why
        return
    placed = [server for node in result.nodes for server in node.servers]
    assert sum(server.gpus for server in placed) == result.used_gpus
    for item in result.models:
        for role in item.units[0].roles:
            assert role.memory.key_value_tokens >= item.max_model_len
            assert role.create_timeout_s <= role.update_timeout_s


@given(STACKS, st.data())
def test_a_stack_file_with_any_key_removed_or_changed_gives_plan_or_problems(
    value: dict[str, Any], data: st.DataObject
):
    broken = copy.deepcopy(value)
    target: Any = broken
    while isinstance(target, dict | list) and target:
        step = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        inner = target[step]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            target[step] = data.draw(st.none() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({}))
            break
        target = inner
    result = outcome(broken)
    if not isinstance(result, planning.Plan):
        assert all(problem.path and problem.accepted and problem.why and problem.short_value for problem in result)
