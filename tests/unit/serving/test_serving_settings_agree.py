"""Settings that are the same in plan, pods, reports and forecasts, whatever a stack file asks for.

Pods are read by the simulated vLLM, which parses a command and its environment as vLLM does and knows nothing of plans.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue, planning
from llmd_oke.planning.conditions import deployed_conditions, planned_conditions
from llmd_oke.planning.planned_model import memory
from llmd_oke.program.models import model_cache_mount, router_args, servers_args, unit_args, unit_name
from llmd_oke.program.smoke import conditions, facts, smoke_request
from llmd_oke.serving import labels
from llmd_oke.serving.units import server_spec, workload
from llmd_oke.serving.vllm import HUGGING_FACE_SECRET
from llmd_rehearsal.pods.environment import expand
from llmd_rehearsal.vllm import command
from stack_files import StackObject, existing_pool, model, plan, stack

Manifest = Mapping[str, Any]

MODELS, RELEASES = st.sampled_from(catalogue.model_names()), st.sampled_from(catalogue.release_names())
SIZES = st.sampled_from((1, 1, 2, 4, 8))
COUNTS = st.integers(1, 3)
BACKENDS = ("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN")
OFFLOADING = "--kv-offloading-size=9.5"
EXTRA_ARGS = st.lists(
    st.sampled_from((*(f"--attention-backend={name}" for name in BACKENDS), "--kv-cache-dtype=fp8", OFFLOADING)),
    max_size=2,
    unique=True,
)
KV_CACHE = st.fixed_dictionaries(
    {},
    optional={
        "connector": st.sampled_from(("nixl", "mori-io")),
        "hostMemoryGib": st.sampled_from((1, 24, 100)),
        "diskGib": st.sampled_from((1, 900)),
    },
)
ENGINE = st.fixed_dictionaries(
    {},
    optional={
        "maxModelLen": st.sampled_from((8192, 20_000, 131_072)),
        "maxNumSeqs": st.sampled_from((1, 64, 1024)),
        "gpuMemoryUtilization": st.sampled_from((0.5, 0.9, 0.925)),
        "blockSize": st.sampled_from((16, 32, 64, 128)),
        "extraArgs": EXTRA_ARGS,
        "kvCache": KV_CACHE,
        "env": st.just({"VLLM_LOGGING_LEVEL": "DEBUG"}),
        "speculation": st.sampled_from(({}, {"tokens": 2})),
    },
)
OVERRIDE = st.fixed_dictionaries(
    {},
    optional={
        "quickReduce": st.sampled_from(("NONE", "FP", "INT8", "INT6", "INT4")),
        "attentionBackend": st.sampled_from(BACKENDS),
        "vllmImage": st.sampled_from(["registry.example/vllm:mine"]),
    },
)
CACHES = st.sampled_from(({"kind": "none"}, {"kind": "node-disk"}))


@st.composite
def topologies(draw: st.DrawFn) -> str:
    """Prefill and decode servers of any sizes, or aggregated ones, some with ranks that share experts."""
    size, count = draw(SIZES), draw(COUNTS)
    ranks = draw(st.sampled_from(("", "", "", "dp2", "dp4ep", "ep")))
    if draw(st.booleans()):
        return f"agg-tp{size}{ranks}-{count}r"
    return f"{count}p-tp{size}{ranks}-{draw(COUNTS)}d-tp{max(size, draw(SIZES))}{ranks}"


@st.composite
def stacks(draw: st.DrawFn) -> StackObject:
    """Stacks of one model with room for its servers, most of which can be deployed."""
    name, release = draw(MODELS), draw(RELEASES)
    copies, rdma = draw(st.integers(1, 2)), draw(st.sampled_from(("sriov-vf", "none")))
    nodes = 12 if rdma == "sriov-vf" else 1
    of_model = model(draw(topologies()), model=name, engine=draw(ENGINE), copies=copies)
    cache, source = draw(CACHES), draw(st.sampled_from(("hugging-face", "object-storage")))
    prewarm = {} if cache == {"kind": "none"} else {"prewarm": {"source": source}}
    changes = {"override": draw(OVERRIDE), "storage": {"modelCache": cache, **prewarm}}
    return stack(of_model, release=release, rdma=rdma, gpuPools=[existing_pool(size=nodes)], **changes)


Servers = tuple[planning.RolePlan, Manifest, command.CommandSettings]
"""The plan of a role, the Deployment of its servers, and what vLLM reads of that."""


def servers(made: planning.Plan, planned: planning.ModelPlan) -> Iterator[Servers]:
    args = {**unit_args(made, planned, "model-server"), "model_cache": model_cache_mount(made, planned, "claim")}
    for role in planned.units[0].roles:
        spec = server_spec(args, role.role, role.parallelism)
        assert spec.settings == role.settings
        name = unit_name(made, planned, planned.units[0])
        manifest = workload(f"{name}-{role.role}", name, args, servers_args(role), spec)
        yield role, manifest, started(container(manifest))


def pod_of(manifest: Manifest) -> Mapping[str, Any]:
    spec = manifest["spec"]
    template = spec["template"] if manifest["kind"] == "Deployment" else spec["leaderWorkerTemplate"]["workerTemplate"]
    return template["spec"]


def container(manifest: Manifest) -> Mapping[str, Any]:
    (vllm,) = pod_of(manifest)["containers"]
    return vllm


def started(vllm: Mapping[str, Any]) -> command.CommandSettings:
    environment = {entry["name"]: entry.get("value", HUGGING_FACE_SECRET) for entry in vllm["env"]}
    return read_command([*vllm["command"], *vllm["args"]], environment)


def read_command(words: Sequence[str], environment: Mapping[str, str]) -> command.CommandSettings:
    """Read the command of a server's first pod, whose variables the controller of LeaderWorkerSets adds."""
    of_leader = {**environment, "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
    return command.settings([expand(word, of_leader) for word in words], environment)


@settings(max_examples=120, derandomize=True, database=None)
@given(stacks())
def test_plan_pods_and_benchmark_reports_agree_in_every_server_setting(item: StackObject):
    try:
        made = planning.plan_object(item)
    except InvalidStack:
        reject()
    note(str(item))
    (planned,) = made.models
    read = list(servers(made, planned))
    for each in read:
        compare_with_pods(made, planned, each)
    compare_with_reports(made, planned, read)
    assert planned.gpus == sum(vllm.parallelism.gpus * role.replicas for role, _, vllm in read) * planned.copies


def compare_with_pods(made: planning.Plan, planned: planning.ModelPlan, read: Servers) -> None:
    role, manifest, vllm = read
    own, resources, spec = role.settings, container(manifest)["resources"], manifest["spec"]
    shape = made.pools[0].shape
    assert container(manifest)["image"] == made.release.vllm.image.pinned
    assert vllm.model == planned.model.repository
    assert vllm.block_size == own.block_size == planned.block_size
    assert vllm.attention_backend == own.attention_backend
    assert vllm.quick_reduce == (own.quick_reduce or "NONE")
    assert vllm.parallelism == role.parallelism == own.parallelism
    assert vllm.max_model_len == own.max_model_len == planned.max_model_len
    assert vllm.max_num_seqs == planned.engine.max_num_seqs
    assert own.max_num_seqs == vllm.max_num_seqs * own.parallelism.data_parallel_size
    assert vllm.gpu_memory_utilization == own.gpu_memory_utilization
    assert vllm.kv_cache_dtype == ("fp8" if "--kv-cache-dtype=fp8" in own.extra_args else "auto")
    assert vllm.kv_connector == own.kv_cache.kv_connector
    told = [json.loads(word.partition("=")[2]) for word in container(manifest)["args"] if "kv_role" in word]
    assert told == ([own.kv_transfer] if own.kv_transfer else [])
    assert vllm.host_bytes * own.parallelism.data_parallel_size_local == own.host_memory_gib * 2**30
    assert vllm.files == ("/kv-cache" if own.disk_gib else None)
    first = pod_of(manifest).get("initContainers", [])
    limits = [word for each in first for word in each.get("args", []) if "--most-gib" in word]
    assert limits == ([f"--most-gib={own.disk_gib}"] if own.disk_gib else [])
    for kind in ("limits", "requests"):
        assert int(resources[kind][shape.gpu.resource]) == vllm.parallelism.gpus_per_node
        assert int(resources[kind].get(shape.rdma.resource, 0)) == role.virtual_functions == own.virtual_functions
    size = vllm.parallelism.gpus_per_node
    host_gib = shape.server_requests_per_gpu.memory_gib * size + own.offload_gib
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == f"{host_gib}Gi"
    drafted = vllm.draft.tokens if vllm.draft else None
    assert (own.draft.tokens if own.draft else None) == drafted
    share = vllm.gpu_memory_utilization
    assert role.memory == memory(planned.model, shape, vllm.parallelism, share, None, own.draft)
    assert spec["replicas"] == role.replicas
    if role.parallelism.nodes == 1:
        assert spec["progressDeadlineSeconds"] == role.create_timeout_s
        rolling = spec["strategy"]["rollingUpdate"]
    else:
        assert spec["leaderWorkerTemplate"]["size"] == role.parallelism.nodes
        rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (role.rollout.max_surge, role.rollout.max_unavailable)


def compare_with_reports(made: planning.Plan, planned: planning.ModelPlan, read: list[Servers]) -> None:
    row, told = conditions(made, planned), planned_conditions(made, planned)
    drafts = {"accepted_share", *(["draft_tokens"] if told.draft_tokens is None else [])}
    assert row == {**told.model_dump(exclude=drafts), "router_profile": planned.profile}
    assert row.items() <= facts("stack", made, planned).items()
    assert row["image"] == made.release.vllm.image.reference
    for _, _, vllm in read:
        assert (row["attention_backend"], row["block_size"]) == (vllm.attention_backend, vllm.block_size)
    assert {row["quick_reduce"]} == ({vllm.quick_reduce for *_, vllm in read} - {"NONE"} or {"NONE"})
    forecast = deployed_conditions(made.release, planned.model, planned.engine).of(str(planned.topology))
    assert forecast == told
    reported = {item.role: item for item in smoke_request(made, planned).topology.servers}
    for role, manifest, vllm in read:
        item = reported[role.role]
        again = read_command(["vllm", "serve", *item.args["args"]], {"VLLM_NIXL_SIDE_CHANNEL_HOST": "", **item.env})
        ours = asdict(vllm)
        different = {key for key, value in asdict(again).items() if value != ours[key]}
        if again.draft and vllm.draft:  # its files lie elsewhere
            assert replace(again.draft, model=None, revision=None) == replace(vllm.draft, model=None, revision=None)
            different -= {"draft"}
        assert different <= {"revision", "served_model_names", "transfer"}  # the cache's, and the pod's own address
        assert item.replicas == role.replicas * planned.copies
        version = manifest["metadata"]["labels"][labels.VERSION]
        disaggregated = planned.topology.disaggregated
        assert router_args(made, planned, planned.units[0]).get("version") == (version if disaggregated else None)


@pytest.mark.parametrize(
    ("topology", "told"), [("agg-tp1-2r", "NONE"), ("agg-tp2-2r", "INT4"), ("2p-tp1-1d-tp2", "INT4")]
)
def test_quantized_all_reduce_is_reported_only_for_servers_with_several_gpus(topology: str, told: str):
    made = plan(model(topology), override={"quickReduce": "INT4"})
    assert conditions(made, made.models[0])["quick_reduce"] == told
