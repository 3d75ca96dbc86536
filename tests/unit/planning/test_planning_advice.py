from collections.abc import Callable
from typing import Any

import pytest
from created_stacks import created
from llmd_oke.planning import Advice, merge_advice
from stack_files import StackObject, created_pool, existing_cluster, model, plan


def advice(*models: dict[str, Any], **changes: Any) -> dict[str, str]:
    return {advice.path: advice.text for advice in plan(*models, **changes).advice}


def on_created(*pools: StackObject, stack_changes: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    """Advice by path on a stack that creates its cluster; `changes` are of the cluster."""
    stack = created(*pools, stack_changes=stack_changes, **changes)
    return advice(*stack.pop("models"), **stack)


CACHE = {"modelCache": {"kind": "node-disk"}}
LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"


def test_check_reports_only_disk_space_and_known_limits_for_a_well_sized_stack():
    fitting = model("8p-tp1-4d-tp2", slo={"ttftMs": 2000, "itlMs": 25}, router={"profile": "token-load"})
    text = plan(fitting, nodes=2, storage=CACHE).advice
    limits = {(item.path, item.text.partition(":")[0]) for item in text if item.path != "gpuPools[0]"}
    of_release = {("models[0]", "vLLM v0.26.0"), ("models[0]", "endpoint picker v0.10.0")}
    assert {item for item in limits if item[0] != "cluster"} == of_release
    assert [item.text for item in text if item.path == "gpuPools[0]"] == [
        "servers need 80 GiB of disk on one node (8 x 10 GiB); if these existing nodes have less free"
        " ephemeral-storage, pods stay Pending (kubectl describe node shows it)"
    ]


def test_check_reports_for_each_model_how_long_kv_transfers_take_without_rdma():
    text = advice(model("2p-tp1-2d-tp2"), nodes=1, rdma="none")["rdma"]
    assert "0.3 GB of a prompt of 4096 tokens take 0.079 to 1.2 s of gpt-oss-120b's time" in text
    assert "forecast by 3.8 and 0.25 GB/s measured on other GPUs; 13.1 are reported of MI300X" in text
    assert "rdma" not in advice(model("agg-tp1-2r"), nodes=1, rdma="none")
    assert "rdma" not in advice(model("2p-tp1-2d-tp2"))


def test_check_warns_of_unenforced_network_policies_and_unprotected_kv_transfers():
    text = advice(model("4p-tp1-2d-tp2"))["cluster"]
    assert "do nothing unless the cluster's network enforces them (OKE's own pod networks do not; if" in text
    assert "networkPolicies.engine: existing" in text
    assert "block commands that reach servers through the API server" in text
    assert "because its addresses are unknown: set cluster.controlPlaneCidrs" in text
    assert text.endswith("KV cache sent by RDMA bypasses all NetworkPolicies and is not encrypted")
    known = existing_cluster(controlPlaneCidrs=["10.0.0.0/29"])
    assert "unknown" not in advice(model("4p-tp1-2d-tp2"), cluster=known)["cluster"]
    assert "RDMA" not in advice(model("agg-tp1-2r"), cluster=known, rdma="none")["cluster"]


@pytest.mark.parametrize(("keys", "told"), [({}, True), ({"frontDoor": {}}, False)])
def test_check_warns_of_servers_without_a_router_unless_api_keys_protect_them(keys: dict[str, object], told: bool):
    assert ("models[0].router.mode" in advice(model("agg-tp1-1r", router={"mode": "none"}), **keys)) is told
    assert "models[0].router.mode" not in advice(model("agg-tp1-1r"), **keys)


@pytest.mark.parametrize("cni", ["vcn-native", "flannel"])
def test_check_says_that_neither_cni_of_oke_enforces_network_policies(cni: str):
    text = on_created(cni=cni)["cluster"]
    assert f"OKE's {cni} network does not" in text
    assert ("with cluster.cni: vcn-native they are known" in text) is (cni == "flannel")


def test_check_reports_the_disk_space_that_the_fullest_existing_node_needs():
    text = advice(model("8p-tp1-2d-tp4"), nodes=2)["gpuPools[0]"]
    assert "592 GiB of disk on one node (8 x 74 GiB)" in text
    assert text.endswith(" storage.modelCache keeps weights out of pods")
    assert "gpuPools[0]" not in on_created()


def test_check_warns_of_a_vocabulary_that_every_server_downloads():
    assert "o200k_base.tiktoken as it starts" in advice(model())["models[0].model"]
    assert "o200k_base" in advice(model(), storage={**CACHE, "prewarm": {"source": "none"}})["models[0].model"]
    for quiet in (advice(model(), storage=CACHE), advice(model("agg-tp2-1r", model=LLAMA))):
        assert "models[0].model" not in quiet


def test_check_warns_of_idle_nodes_with_their_price_and_only_copies_that_would_fit():
    of_two = model("8p-tp1-4d-tp2")
    fitting = "7 nodes (56 GPUs, 336 $/hour at list price) would serve nothing; models[0].copies of 4 would fit, 1 node"
    assert advice(of_two)["gpuPools"] == f"{fitting} idle"
    full = advice(model("8p-tp1-4d-tp2", copies=4)), advice(of_two, nodes=3), advice(model("agg-tp1-1r", copies=64))
    for given in (*full, advice(model("1p-tp1-1d-tp2"), nodes=2, rdma="none")):
        assert given["gpuPools"] == "1 node (8 GPUs, 48 $/hour at list price) would serve nothing"


def test_the_copies_of_a_model_that_check_advises_can_be_deployed():
    offered = advice(model("3p-tp1-1d-tp2"), nodes=4)["gpuPools"]
    assert "models[0].copies of 6 would fit" in offered
    assert "gpuPools" not in advice(model("3p-tp1-1d-tp2", copies=6), nodes=4)


@pytest.mark.parametrize(("tokens", "short"), [(200, True), (999, True), (1000, False), (10_000, False)])
def test_check_advises_against_disaggregation_of_short_prompts(tokens: int, short: bool):
    workload = {"inputTokens": tokens, "outputTokens": 100}
    assert ("models[0].workload.inputTokens" in advice(model(workload=workload))) is short
    assert "models[0].workload.inputTokens" not in advice(model("agg-tp1-1r", workload=workload))


def test_check_advises_against_disaggregation_of_small_models(model_with: Callable[..., Any]):
    model_with("gpt-oss-120b", parameters={"total_billions": 8.0})
    assert "8 billion" in advice(model("8p-tp1-4d-tp2"))["models[0].topology"]
    assert "models[0].topology" not in advice(model("agg-tp1-2r"))
    model_with("gpt-oss-120b", parameters={"total_billions": 20.0})
    assert "models[0].topology" not in advice(model("8p-tp1-4d-tp2"))


@pytest.mark.parametrize(
    ("billions", "topology", "tokens", "advised"),
    [
        (101.0, "agg-tp1-2r", (4000, 256), True),
        (100.0, "agg-tp1-2r", (4000, 256), False),
        (101.0, "agg-tp1-1r", (4000, 256), False),
        (101.0, "agg-tp1-2r", (3999, 256), False),
        (101.0, "agg-tp1-2r", (5000, 5000), True),
        (101.0, "agg-tp1-2r", (5000, 5001), False),
    ],
)
def test_check_advises_disaggregation_for_long_prompts_to_servers_of_large_models(
    model_with: Callable[..., Any], billions: float, topology: str, tokens: tuple[int, int], advised: bool
):
    model_with("gpt-oss-120b", parameters={"total_billions": billions})
    workload = dict(zip(("inputTokens", "outputTokens"), tokens, strict=True))
    text = advice(model(topology, workload=workload)).get("models[0].topology", "")
    assert ("separate prefill and decode servers" in text) is advised


@pytest.mark.parametrize(
    ("itl_ms", "reason"),
    [(5, "large tensor parallel size"), (9.9, "large tensor"), (10, None), (50, None), (51, "plain aggregated")],
)
def test_check_advises_against_disaggregation_for_very_low_or_high_itl_targets(itl_ms: float, reason: str | None):
    text = advice(model(slo={"itlMs": itl_ms})).get("models[0].slo.itlMs")
    assert (text is None) if reason is None else (text is not None and reason in text)
    assert "models[0].slo.itlMs" not in advice(model("agg-tp1-1r", slo={"itlMs": itl_ms}))
    assert "models[0].slo.itlMs" not in advice(model(slo={"ttftMs": 2000}))


@pytest.mark.parametrize(("sequences", "told"), [({}, True), ({"maxNumSeqs": 81}, False), ({"maxNumSeqs": 82}, True)])
def test_check_warns_of_decode_kv_caches_for_fewer_sequences_than_configured(sequences: dict[str, int], told: bool):
    text = advice(model("8p-tp1-2d-tp1", model=LLAMA, engine=sequences)).get("models[0].engine.maxNumSeqs", "")
    assert ("81 sequences of 4352 tokens" in text) is told
    assert "models[0].engine.maxNumSeqs" not in advice(model("8p-tp1-2d-tp4", model=LLAMA, engine=sequences))


def test_check_warns_of_a_single_decode_server_without_spare_gpus_for_its_update():
    assert "the only decode server" in advice(model("6p-tp1-1d-tp2"), nodes=1)["models[0].topology"]
    assert "models[0].topology" not in advice(model("6p-tp1-1d-tp2"), nodes=9)


def test_check_reports_free_gpus_on_used_nodes_only_if_they_add_up_to_a_node(shape_with: Callable[[int], None]):
    assert "gpuPools" not in advice(model("3p-tp1-1d-tp2"), nodes=1)
    shape_with(4)
    assert advice(model("4p-tp1-4d-tp1"), nodes=2)["gpuPools"].startswith("8 GPUs stay free on the 2 nodes in use")


def test_check_blames_free_gpus_on_virtual_functions_only_if_fewer_are_free(shape_with: Callable[[int], None]):
    given = advice(model("1p-tp1dp5ep-1d-tp1dp5ep", copies=2), nodes=4)
    assert given["gpuPools"] == "12 GPUs stay free on the 4 nodes in use"
    shape_with(4)
    text = advice(model("8p-tp1-4d-tp2"), nodes=4)["gpuPools"]
    assert text.startswith("16 GPUs stay free on the 4 nodes in use")
    assert "virtual functions" in text


def way_in(**changes: Any) -> bool:
    return "cluster.network.bastionService.clientCidrs" in on_created(**changes)


def test_check_warns_of_a_private_endpoint_without_a_bastion():
    public = {"access": "public", "allowedCidrs": ["203.0.113.0/24"]}
    assert way_in()
    assert not way_in(network={"bastionService": {"clientCidrs": ["203.0.113.0/24"]}})
    assert not way_in(network={"bastion": False})
    assert not way_in(apiEndpoint=public)


def test_check_warns_of_nodes_without_internet_access_that_need_packages():
    storage = {"storage": {"modelCache": {"kind": "file-storage"}}}
    text = on_created(network={"workerInternet": False}, stack_changes=storage)["cluster.network.workerInternet"]
    assert "OKE's packages of v1." in text
    assert "nfs-common" in text


@pytest.mark.parametrize(("launch", "advised"), [("managed-compute-cluster", True), ("cluster-network", False)])
def test_check_warns_of_an_unused_permission_to_publish_metrics(launch: str, advised: bool):
    told = on_created(created_pool(launch=launch), iam={"grants": ["oci-metrics"]})
    assert ("cluster.iam.grants" in told) is advised


def test_check_reports_placeholder_ocids_of_an_example_once():
    result = advice(nodes=2, cluster=existing_cluster(identifier="ocid1.cluster.oc1.iad.example"))
    assert result["cluster.identifier"].startswith("the OCID is an example's")
    pool = created_pool(image={"ocid": "ocid1.image.oc1.iad.example"})
    assert "gpuPools[0].image.ocid" in on_created(pool)


def test_check_warns_of_block_sizes_below_those_of_kv_transfers():
    assert advice(model(engine={"blockSize": 16}))["models[0].engine.blockSize"].startswith(
        "KV cache is handed over block by block: 8 times the descriptors of blocks of 128"
    )
    for served in (model("agg-tp1-1r", engine={"blockSize": 16}), model(engine={"blockSize": 128}), model()):
        assert "models[0].engine.blockSize" not in advice(served)


def test_check_warns_of_an_aiter_folder_that_hides_the_images_prebuilt_kernels():
    text = advice(model(engine={"env": {"AITER_JIT_DIR": "/.aiter"}}))
    assert "compiles what the image has prebuilt" in text["models[0].engine.env.AITER_JIT_DIR"]


def test_equal_advice_on_several_models_is_given_once():
    several = [Advice("models[0]", "a"), Advice("models[0]", "b"), Advice("models[1]", "a"), Advice("models[2]", "a")]
    assert merge_advice(several) == [Advice("models[0] and 2 more", "a"), Advice("models[0]", "b")]
