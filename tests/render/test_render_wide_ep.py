"""Servers over nodes whose experts exchange tokens by MoRI: what their pods and routing sidecars are told."""

import json

import pytest
from stack_files import existing_cluster, existing_pool

NAME = "deepseek-v3"
IMAGES = {"vllmImage": "registry.example/vllm:wide-ep", "routingSidecarImage": "registry.example/sidecar:wide-ep"}
ENGINE = {
    "gpuMemoryUtilization": 0.8,
    "kvCache": {"connector": "mori-io"},
    "prefill": {"all2AllBackend": "mori_high_throughput"},
    "decode": {"all2AllBackend": "mori_low_latency"},
}


MI355X = {
    "cluster": existing_cluster(virtualFunctions="amd-vnic"),
    "gpuPools": [existing_pool(shape="BM.GPU.MI355X.8", size=4)],
}


@pytest.fixture(params=[{}, MI355X], ids=["MI300X", "MI355X"])
def wide(varied, request):
    """The rehearsal's stack with a server of MoRI over two nodes for each role."""
    return varied(
        {"release": "llm-d-0.10.0", "override": IMAGES, **request.param},
        model=NAME,
        topology="1p-tp1dp16ep-1d-tp1dp16ep",
        engine=ENGINE,
    )


def pod(rendered, role):
    found = rendered.kubernetes("LeaderWorkerSet", f"{NAME}-{role}")
    return found["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]


def variables(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@pytest.mark.parametrize(
    ("role", "backend", "graphs"),
    [("prefill", "mori_high_throughput", "PIECEWISE"), ("decode", "mori_low_latency", "FULL_DECODE_ONLY")],
)
def test_each_role_uses_its_own_all2all_backend_for_expert_parallelism(wide, role, backend, graphs):
    words = pod(wide, role)["containers"][0]["args"]
    assert f"--all2all-backend={backend}" in words
    assert f'--compilation-config={{"cudagraph_mode": "{graphs}"}}' in words


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_pods_with_wide_expert_parallelism_have_moris_heap_and_rccls_traffic_class(wide, role):
    told = variables(pod(wide, role)["containers"][0])
    assert told["MORI_SHMEM_HEAP_SIZE"] == str(16 * 2**30)
    assert told["MORI_RDMA_TC"] == told["NCCL_IB_TC"]
    assert told.get("MORI_RDMA_SL") == told.get("NCCL_IB_SL")
    assert "MORI_IB_GID_INDEX" not in told


def test_shared_memory_has_room_for_the_exchange_of_expert_tokens(wide):
    (memory,) = (
        volume["emptyDir"]["sizeLimit"] for volume in pod(wide, "decode")["volumes"] if volume["name"] == "shm"
    )
    assert memory == "64Gi"


def test_the_routing_sidecar_gets_host_names_of_both_roles_pods_in_rank_order(wide):
    sidecar = pod(wide, "decode")["initContainers"][-1]
    names = dict(word.split("=", 1) for word in sidecar["args"] if "=" in word)
    assert (names["--moriio-dp-size"], names["--moriio-dp-size-local"], names["--moriio-tp-size"]) == ("16", "8", "1")
    for role, flag in (("prefill", "--moriio-remote-hosts"), ("decode", "--moriio-decode-hosts")):
        of_set = f"$(LLMD_OKE_UNIT)-{role}"
        assert names[flag].split(",") == [
            f"{of_set}-0.{of_set}.$(POD_NAMESPACE).svc",
            f"{of_set}-0-1.{of_set}.$(POD_NAMESPACE).svc",
        ]
    assert {"LLMD_OKE_UNIT", "POD_NAMESPACE", "POD_IP"} <= variables(sidecar).keys()


def test_prefill_and_decode_with_different_all2all_backends_share_a_version_label(wide):
    versions = {
        wide.kubernetes("LeaderWorkerSet", f"{NAME}-{role}")["metadata"]["labels"]["llmd-oke/version"]
        for role in ("prefill", "decode")
    }
    assert len(versions) == 1


def test_pod_names_in_the_sidecars_arguments_are_those_of_the_leaderworkerset(wide):
    labels = wide.kubernetes("LeaderWorkerSet", f"{NAME}-decode")["metadata"]["labels"]
    for role in ("prefill", "decode"):
        assert wide.kubernetes("LeaderWorkerSet", f"{labels['llmd-oke/unit']}-{role}")


def test_the_sidecar_waits_until_the_names_of_its_peers_resolve(wide):
    waits, sidecar = pod(wide, "decode")["initContainers"][-2:]
    assert waits["name"] == "peer-names"
    assert set(waits["args"][2:]) == {
        name
        for word in sidecar["args"]
        if word.startswith(("--moriio-remote-hosts=", "--moriio-decode-hosts="))
        for name in word.partition("=")[2].split(",")
    }
    assert [container["name"] for container in pod(wide, "prefill").get("initContainers", ())].count("peer-names") == 0


def test_each_container_port_has_a_name_that_kubernetes_accepts(wide):
    names = [port["name"] for port in pod(wide, "decode")["containers"][0]["ports"]]
    assert len(names) == len(set(names))
    assert max(map(len, names)) <= 15


@pytest.mark.parametrize("wide", [MI355X], indirect=True)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_pods_on_mi355x_get_all_ports_by_amds_network_operator(wide, role):
    found = wide.kubernetes("LeaderWorkerSet", f"{NAME}-{role}")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    container = found["spec"]["containers"][0]
    networks = json.loads(found["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert {(network["namespace"], network["name"]) for network in networks} == {("default", "amd-host-device-nad")}
    assert (len(networks), container["resources"]["limits"]["amd.com/vnic"]) == (8, "8")
    told = variables(container)
    assert (told["PYTORCH_ROCM_ARCH"], told["VLLM_ROCM_USE_AITER_LINEAR"]) == ("gfx950", "0")
    assert (told["NCCL_IB_HCA"], told["NCCL_NET_PLUGIN"]) == ("ionic", "librccl-anp.so")
