"""Servers that span nodes: what is planned, where their pods go, and what is refused."""

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke import planning
from llmd_oke.planning.model_plan import PlacedNode, PlacedServer
from llmd_oke.planning.placement import place, pods
from stack_files import created_stack, existing_pool, model, stack

MIXTURE = "qwen3-235b-a22b-fp8"


def document(topology: object, size: int = 4, **changes: object) -> dict[str, object]:
    own = {key: changes.pop(key) for key in ("rdma", "release") if key in changes}
    return stack(model(topology, model=MIXTURE, **changes), gpuPools=[existing_pool(size=size)], **own)


def plan(topology: object, size: int = 4, **changes: object) -> planning.Plan:
    return planning.plan_object(document(topology, size, **changes))


def problems(topology: object, **changes: object) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidStack) as error:
        plan(topology, **changes)
    return [(problem.path, problem.accepted, problem.why) for problem in error.value.problems]


def test_each_pod_of_a_server_that_spans_nodes_runs_equally_many_ranks_by_rdma():
    (role,) = plan("agg-tp2dp8ep-1r").models[0].units[0].roles
    spread = role.parallelism
    assert (spread.nodes, spread.gpus, spread.gpus_per_node, spread.data_parallel_size_local) == (2, 16, 8, 4)
    assert role.virtual_functions == 8


def test_ranks_that_fill_no_whole_nodes_are_refused_with_the_next_numbers_that_do():
    ((_, accepted, _),) = problems("agg-tp2dp10ep-1r")
    assert accepted == "for aggregated: at most 4, or all ranks of whole nodes, such as 8 or 12"


def test_each_pod_of_a_server_that_spans_nodes_fills_a_node():
    nodes = plan("agg-tp1dp16ep-2r").nodes
    assert [[(pod.index, pod.node_rank) for pod in node.servers] for node in nodes] == [
        [(0, 0)],
        [(0, 1)],
        [(1, 0)],
        [(1, 1)],
    ]


def test_placement_puts_all_pods_of_a_server_over_nodes_into_one_pool():
    nodes = [PlacedNode(pool, index, 8, (), 8) for pool, size in (("a", 3), ("b", 2)) for index in range(size)]
    spread = plan("agg-tp1dp16ep-1r").models[0].units[0].roles[0].parallelism
    servers = [pod for index in range(2) for pod in pods("unit", "aggregated", index, spread, 8)]
    placed, left = place(servers, nodes)
    assert left == []
    assert [node.pool for node in placed if node.servers] == ["a", "a", "b", "b"]


def test_a_server_over_two_nodes_is_not_placed_if_each_pool_has_one():
    nodes = [PlacedNode(pool, index, 8, (), 8) for pool in "ab" for index in range(1)]
    servers = [PlacedServer("unit", "aggregated", 0, 8, 8, 2, rank) for rank in range(2)]
    assert place(servers, nodes)[1] == servers


def test_servers_that_span_nodes_require_as_many_nodes_and_rdma():
    ((path, accepted, _),) = problems("agg-tp1dp16ep-3r")
    assert (path, accepted.startswith("at least 6")) == ("gpuPools[0].size", True)
    found = problems("agg-tp1dp16ep-1r", rdma="none")
    assert [(path, accepted) for path, accepted, _ in found] == [("rdma", "sriov-vf")]


@pytest.mark.parametrize(
    ("release", "paths"),
    [("llm-d-0.7.0", ["models[0].topology"]), ("llm-d-9", ["release", "models[0].topology"])],
    ids=["an older release", "an unknown release"],
)
def test_a_release_without_support_for_servers_over_nodes_refuses_them(release: str, paths: list[str]):
    found = problems("agg-tp1dp16ep-1r", release=release)
    assert [path for path, _, _ in found] == paths
    assert f"the kit can't spread a server over nodes with {release}" in found[-1][2]


def test_autoscaling_of_servers_that_span_nodes_is_refused():
    limits = {"aggregated": {"minReplicas": 1, "maxReplicas": 2, "requests": 10}}
    assert "models[0].scaling.aggregated" in [path for path, _, _ in problems("agg-tp1dp16ep-1r", scaling=limits)]


def test_a_server_that_spans_nodes_keeps_kv_cache_in_each_nodes_memory():
    kept = {"release": "llm-d-0.10.0", "engine": {"kvCache": {"hostMemoryGib": 64}}}
    (role,) = plan("agg-tp1dp16ep-1r", **kept).models[0].units[0].roles
    assert role.settings.kv_transfer is not None
    assert role.settings.kv_transfer["kv_connector_extra_config"] == {"cpu_bytes_to_use": 64 * 2**30 // 8}


def test_check_reports_known_limits_of_servers_that_span_nodes():
    assert any("span nodes" in item.text for item in plan("agg-tp1dp16ep-1r").advice)
    assert not any("span nodes" in item.text for item in plan("agg-tp1dp8ep-1r").advice)


def test_acceptance_must_pass_on_a_node_for_each_pod_of_servers_over_nodes():
    (accepted,) = plan("agg-tp1dp16ep-2r", size=6).acceptance
    assert accepted.needed == 4


@pytest.mark.parametrize(("version", "keeps"), [("v1.34.2", True), ("v1.31.0", True), ("v1.30.1", False)])
def test_pods_of_a_server_over_nodes_keep_to_one_pool_from_kubernetes_1_31_on(version: str, keeps: bool):
    given = created_stack(models=[model("agg-tp1dp16ep-1r", model=MIXTURE)], cluster={"kubernetesVersion": version})
    assert planning.plan_object(given).keeps_to_pools is keeps
    assert plan("agg-tp1dp16ep-1r").keeps_to_pools is False
