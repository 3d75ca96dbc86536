"""Servers on nodes whose RDMA adapters are AMD's: names of ports, images that have the software, and what is told."""

from typing import Any

import pytest
from llmd_base.errors import InvalidStack
from llmd_oke import planning
from llmd_oke.planning.advice import advice
from stack_files import created_cluster, created_pool, existing_cluster, existing_pool, model, stack

WIDE = "1p-tp1dp16ep-1d-tp1dp16ep"
IMAGES = {"vllmImage": "registry.example/vllm:wide-ep", "routingSidecarImage": "registry.example/sidecar:wide-ep"}
MORI = {
    "gpuMemoryUtilization": 0.8,
    "kvCache": {"connector": "mori-io"},
    "prefill": {"all2AllBackend": "mori_high_throughput"},
    "decode": {"all2AllBackend": "mori_low_latency"},
}


def document(topology: str = WIDE, **changes: Any) -> dict[str, Any]:
    engine = changes.pop("engine", MORI)
    whole: dict[str, Any] = {
        "release": "llm-d-0.10.0",
        "override": IMAGES,
        "cluster": existing_cluster(virtualFunctions="amd-vnic"),
        "gpuPools": [existing_pool(shape="BM.GPU.MI355X.8", size=4)],
        **changes,
    }
    return stack(model(topology, model="deepseek-v3", engine=engine), **whole)


def problems(**changes: Any) -> dict[str, tuple[str, str]]:
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(document(**changes))
    return {problem.path: (problem.accepted, problem.why) for problem in refused.value.problems}


def told(**changes: Any) -> dict[str, str]:
    return {one.path: one.text for one in reversed(list(advice(planning.plan_object(document(**changes)))))}


@pytest.mark.parametrize(
    ("scheme", "resource"), [("amd-vnic", "amd.com/vnic"), ("amd-nic", "amd.com/nic")], ids=["functions", "ports"]
)
def test_servers_over_mi355x_nodes_get_all_ports_of_each_node(scheme: str, resource: str):
    plan = planning.plan_object(document(cluster=existing_cluster(virtualFunctions=scheme)))
    assert plan.pools[0].shape.rdma.resource == resource
    assert [role.virtual_functions for role in plan.models[0].units[0].roles] == [8, 8]
    assert [[pod.virtual_functions for pod in node.servers] for node in plan.nodes] == [[8]] * 4


CREATED = {"cluster": created_cluster(), "gpuPools": [created_pool(shape="BM.GPU.MI355X.8")]}
UNNAMED = {"cluster": existing_cluster()}
WITHOUT = {"rdma": "none", "topology": "1p-tp8-1d-tp8", "engine": {}}


@pytest.mark.parametrize(
    ("changes", "accepted", "reason"),
    [
        (UNNAMED, "cluster.virtualFunctions: amd-vnic or amd-nic where the cluster has them", "ionic"),
        (CREATED, "none, or another shape in gpuPools[0]", "mode: existing"),
        ({**WITHOUT, **UNNAMED}, "sriov-vf, with cluster.virtualFunctions: amd-vnic or amd-nic", ""),
        ({**WITHOUT, **CREATED}, "units that fit one node, or another shape", ""),
    ],
    ids=["an existing cluster", "a created one", "without RDMA in an existing one", "without RDMA in a created one"],
)
def test_without_names_of_ports_the_refusal_says_what_the_cluster_can_have(
    changes: dict[str, Any], accepted: str, reason: str
):
    told, why = problems(**changes)["rdma"]
    assert told.startswith(accepted)
    assert reason in why


def test_a_misspelt_key_of_the_cluster_is_the_only_problem_reported_on_mi355x():
    cluster = existing_cluster(virtualFunctions="amd-vnic", kubeconfigContxt="oke")
    assert list(problems(cluster=cluster)) == ["cluster.kubeconfigContxt"]


def test_virtual_functions_of_other_adapters_are_refused_once_for_pools_of_one_shape():
    pools = [existing_pool(name=name, shape="BM.GPU.MI355X.8", size=2) for name in ("gpu", "more")]
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(document(cluster=existing_cluster(virtualFunctions="oci-hpc-oke"), gpuPools=pools))
    assert [problem.path for problem in refused.value.problems].count("cluster.virtualFunctions") == 1


@pytest.mark.parametrize(
    ("shape", "scheme", "accepted"),
    [
        ("BM.GPU.MI300X.8", "amd-vnic", "nothing or oci-hpc-oke"),
        ("BM.GPU.MI355X-v1.8", "amd-nic", "nothing or oci-hpc-oke"),
        ("BM.GPU.MI355X.8", "oci-hpc-oke", "amd-vnic or amd-nic"),
    ],
)
def test_names_of_other_adapters_than_the_shapes_are_refused(shape: str, scheme: str, accepted: str):
    cluster, pools = existing_cluster(virtualFunctions=scheme), [existing_pool(shape=shape, size=4)]
    assert problems(cluster=cluster, gpuPools=pools)["cluster.virtualFunctions"][0] == accepted


def test_servers_on_these_adapters_need_an_image_that_no_release_has():
    assert "models[0].topology" in problems(override={"vllmImage": "docker.io/vllm/vllm-openai-rocm:v0.30.0"})


def test_mi355x_with_connectx_needs_no_image_of_ones_own_to_hand_kv_cache_over():
    pools = [existing_pool(shape="BM.GPU.MI355X-v1.8", size=2)]
    whole = document("1p-tp8-1d-tp8", cluster=existing_cluster(), override=None, gpuPools=pools, engine={})
    assert planning.plan_object(whole).pools[0].shape.rdma.virtual_functions == 8


def test_check_names_a_memory_share_whose_kv_cache_pieces_rdma_ports_can_register():
    text = told()["models[0].engine.gpuMemoryUtilization"]
    assert "3.0 GB" in text
    assert "0.6 keeps below that" in text
    fitting = {**MORI, "gpuMemoryUtilization": 0.58}  # as llm-d's guide has it on this GPU
    assert "models[0].engine.gpuMemoryUtilization" not in told(engine=fitting)


def test_keys_and_values_of_a_kv_cache_are_registered_in_separate_pieces():
    plan = planning.plan_object({**document(), "models": [model("1p-tp1-1d-tp1", model="qwen3-30b-a3b")]})
    pieces = 2 * plan.models[0].model.architecture.layers
    piece_gb = plan.models[0].units[0].roles[1].memory.key_value_gib * 2**30 / 1e9 / pieces
    told = " ".join(one.text for one in advice(plan))
    assert f"decode servers keep up to {piece_gb:.1f} GB of KV cache in one piece" in told


@pytest.mark.parametrize(("topology", "a_part"), [("2p-tp4-1d-tp8", True), ("1p-tp8-1d-tp8", False)])
def test_check_says_what_is_known_of_nixl_on_a_part_of_a_nodes_rdma_ports(topology: str, a_part: bool):
    plan = planning.plan_object(document(topology, engine={}))
    texts = " ".join(one.text for one in advice(plan))
    assert ("gets any of them, not those beside its GPUs" in texts) is a_part
    assert "sglang/issues/30099" in texts
