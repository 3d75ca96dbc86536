import pytest
from llmd_bench.evidence import EMULATION
from llmd_oke import planning
from llmd_oke.catalogue.serving import without_rdma
from llmd_oke.planning.estimates import bring_up
from stack_files import PROJECT, created_pool, created_stack, existing_pool, model, paths, plan


def planned(*pools, **changes):
    return planning.plan_object(created_stack(*pools, **changes))


def test_an_update_runs_acceptance_on_new_nodes_of_created_pools():
    (accepted,) = planned().acceptance
    assert accepted.in_update
    assert accepted.checks == ("gpus", "memory", "matrix-products", "disks", "rdma", "locality", "links", "all-reduce")


def test_acceptance_thresholds_follow_by_default_from_the_shapes_published_figures():
    limits = planned().acceptance[0].limits
    assert (limits.gpus, limits.virtual_functions, limits.gid_index, limits.mtu_bytes) == (8, 8, 3, 4220)
    assert (limits.all_reduce_gb_per_s, limits.all_reduce_alone_gb_per_s) == (350, 310)
    assert limits.link_gb_per_s == pytest.approx(0.8 * 50)
    assert limits.memory_gb_per_s == pytest.approx(0.7 * 5300)
    assert limits.matrix_tflops == pytest.approx(0.4 * 1307)
    assert (limits.disks, limits.disk_bytes) == (8, int(0.9 * 3.84e12))


def test_acceptance_thresholds_in_the_stack_file_override_those_of_the_shape():
    limits = planned(acceptance={"thresholds": {"minLinkGbPerS": 45, "minAllReduceGbPerS": 355}}).acceptance[0].limits
    assert (limits.link_gb_per_s, limits.all_reduce_gb_per_s) == (45, 355)


def test_an_update_skips_acceptance_of_existing_or_autoscaled_pools_or_by_command():
    scaling = {"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 9}
    stacks = planned(acceptance={"when": "by-command"}), plan(model()), planned(created_pool(scaling=scaling))
    assert [accepted.in_update for stack in stacks for accepted in stack.acceptance] == [False, False, False]


def test_node_acceptance_must_pass_on_as_many_nodes_as_servers_occupy_or_on_one():
    """Sixteen GPUs fill two of nine nodes."""
    assert plan(model()).acceptance[0].needed == 2
    pools = [existing_pool(name=name, size=1) for name in ("used", "idle")]
    assert [accepted.needed for accepted in plan(model("agg-tp1-1r"), gpuPools=pools).acceptance] == [1, 1]


@pytest.mark.parametrize(("shape", "mtu_bytes"), [("BM.GPU.MI300X.8", 4220), ("BM.GPU.MI355X.8", 0)])
def test_without_rdma_node_acceptance_tests_no_links_between_nodes(shape: str, mtu_bytes: int):
    """No figures of the second shape's network are published."""
    (accepted,) = planned(created_pool(shape=shape), models=[model("agg-tp1-1r")], rdma="none").acceptance
    assert accepted.checks == ("gpus", "memory", "matrix-products", "disks")
    assert (accepted.limits.virtual_functions, accepted.limits.mtu_bytes) == (0, mtu_bytes)


def test_the_docs_say_how_slow_kv_transfer_over_emulated_rdma_is():
    page = " ".join((PROJECT / "docs/how-to/accept-gpu-nodes.md").read_text().split())
    least = EMULATION * without_rdma().emulated_gb_per_s
    assert f"at most {least:g} GB/s, {EMULATION:g} times UCX's software emulation" in page


def test_the_reported_maximum_cost_of_acceptance_follows_from_its_time_limit():
    (accepted,) = planned(acceptance={"limitMinutes": 90}).acceptance
    assert accepted.price_usd == pytest.approx(9 * 48 * 1.5)
    assert accepted.cost_sentence.endswith("within 90 minutes, at most 648 US dollars of nodes (list price, bound)")


def test_acceptance_of_nodes_in_bring_up_waits_for_the_vllm_image_pull():
    legs = {leg.name: leg for leg in bring_up(planned()).legs}
    assert legs["acceptance of GPU nodes"].after == ("vLLM image",)
    assert "vLLM image" in legs["server start"].after
    assert list(legs).count("vLLM image") == 1


@pytest.mark.parametrize(
    ("acceptance", "path"),
    [
        ({"thresholds": {"minLinkGbPerS": 50}}, "thresholds.minLinkGbPerS"),
        ({"thresholds": {"minAllReduceGbPerS": 400}}, "thresholds.minAllReduceGbPerS"),
        ({"thresholds": {"minMemoryGbPerS": 5300}}, "thresholds.minMemoryGbPerS"),
        ({"thresholds": {"minMatrixTflops": 1307}}, "thresholds.minMatrixTflops"),
        ({"checks": ["gpus"], "thresholds": {"minLinkGbPerS": 40}}, "thresholds.minLinkGbPerS"),
        ({"checks": ["gpus", "gpus"]}, "checks"),
        ({"checks": []}, "checks"),
        ({"checks": ["speed"]}, "checks[0]"),
        ({"limitMinutes": 1}, "limitMinutes"),
        ({"onFailure": "x"}, "onFailure"),
    ],
)
def test_invalid_acceptance_settings_and_those_that_contradict_the_shape_are_refused(acceptance, path):
    assert paths(acceptance=acceptance) == [f"acceptance.{path}"]


def test_all_reduce_is_bounded_by_ports_that_no_virtual_functions_are_of():
    shape = {"gpuPools": [existing_pool(shape="BM.GPU.MI355X.8")], "rdma": "none"}
    threshold = "minAllReduceGbPerS"
    found = paths(model("agg-tp1-1r"), **shape, acceptance={"thresholds": {threshold: 400}})
    assert found == [f"acceptance.thresholds.{threshold}"]


@pytest.mark.parametrize(("nvme", "folder"), [("raid-10", "/mnt/nvme"), ("none", None)])
def test_acceptance_tests_disk_speed_only_if_the_pools_local_disks_form_a_raid(nvme: str, folder: str | None):
    (accepted,) = planned(created_pool(nvme=nvme, bootVolumeGib=1024)).acceptance
    assert accepted.disk_folder == folder
