from typing import Any

import pytest
from created_stacks import created, validated
from llmd_oke import config, planning
from llmd_oke.catalogue.container_images import Lock, LockedDigest
from llmd_oke.planning import estimates as bring_ups
from llmd_oke.planning.estimates import ASSUMED, BringUp, Costs, Leg, bring_up, costs, server_start
from stack_files import created_pool, model, ocid, plan


def of(*pools: dict[str, Any], **changes: Any) -> Costs:
    return costs(planning.plan(config.validate(created(*pools, stack_changes=changes))))


def by_part(total: Costs) -> dict[str, float | None]:
    return {cost.part.split(":")[0]: cost.usd_per_hour for cost in total.parts}


def test_a_created_clusters_cost_is_the_sum_of_nodes_volumes_and_control_plane():
    parts = by_part(of())
    assert parts["mi300x"] == 9 * 48
    assert parts["system"] == pytest.approx(3 * (16 * 0.03 + 64 * 0.002))
    assert parts["boot volumes"] == pytest.approx((9 * 512 + 3 * 128) * (0.0255 + 10 * 0.0017) / 744)
    assert parts["OKE cluster"] == 0.10
    assert of().usd_per_hour == pytest.approx(sum(price or 0 for price in parts.values()))


def test_faster_boot_volumes_raise_the_cost_estimate():
    slow, fast = (
        by_part(of(created_pool(launch="cluster-network", bootVolumeVpusPerGb=vpus)))["boot volumes"] or 0
        for vpus in (10, 20)
    )
    assert fast - slow == pytest.approx(9 * 512 * 10 * 0.0017 / 744)


def test_the_cost_estimate_omits_boot_volumes_of_an_existing_pool():
    with_pool, without = (of(created_pool(**more)) for more in ({}, {"poolId": ocid("nodepool")}))
    assert (with_pool.usd_per_hour - without.usd_per_hour) == pytest.approx(9 * 512 * (0.0255 + 0.017) / 744)


def test_the_cost_estimate_lists_what_has_no_price_or_is_there_already():
    result = of(systemPool={"shape": "BM.Standard.E5.192"})
    assert by_part(result)["system"] is None
    assert any("BM.Standard.E5.192" in left_out for left_out in result.not_included)
    existing = costs(plan(nodes=2))
    assert by_part(existing) == {"mi300x": 96}
    assert "there already" in existing.not_included[0]


NODE_DISK = {"modelCache": {"kind": "node-disk"}}


def test_parallel_bring_up_steps_together_take_as_long_as_the_longest():
    result = BringUp((Leg("a", 10, ""), Leg("b", 5, "", ("a",)), Leg("c", 7, "", ("a",)), Leg("d", 1, "", ("b", "c"))))
    assert result.seconds == 18
    assert result.critical == ("a", "c", "d")
    assert result.starts == {"a": 0, "b": 10, "c": 10, "d": 17}


def test_bring_up_of_a_created_cluster_waits_for_its_gpu_nodes():
    result = bring_up(planning.plan(validated(stack_changes={"storage": NODE_DISK})))
    assert result.critical[:4] == ("network", "control plane", "system nodes", "GPU nodes")
    assert result.critical[-2:] == ("server start", "first request")
    assert "operators" not in result.critical
    assert result.starts["operators"] == result.starts["GPU nodes"] > result.starts["system nodes"]


def test_bring_up_in_an_existing_cluster_has_only_steps_of_servers_and_their_router():
    names = [leg.name for leg in bring_up(plan(model("8p-tp1-4d-tp2"), nodes=2)).legs]
    assert names == ["vLLM image", "weights", "server start", "router", "first request"]
    bare = [leg.name for leg in bring_up(plan(model("agg-tp1-8r", router={"mode": "none"}), nodes=1)).legs]
    assert bare == ["vLLM image", "weights", "server start", "first request"]


def weights_s(**changes: object) -> float:
    """Estimated seconds until eight servers of a node have their weights."""
    legs = bring_up(plan(model("agg-tp1-8r"), nodes=1, **changes)).legs
    return next(leg.seconds for leg in legs if leg.name == "weights")


def test_without_a_model_cache_servers_of_a_node_share_its_download_rate():
    assert weights_s() == pytest.approx(8 * weights_s(storage=NODE_DISK))


def test_a_model_cache_is_estimated_to_fill_faster_from_a_bucket_than_hugging_face():
    face, bucket = (
        weights_s(storage={**NODE_DISK, "prewarm": {"source": source}}) for source in ("hugging-face", "object-storage")
    )
    rates = bring_ups.bring_up_facts().weights
    times = rates.object_storage.megabytes_per_s / rates.hugging_face.megabytes_per_s
    assert face / bucket == pytest.approx(times)


def test_the_vllm_image_pull_is_estimated_from_the_size_in_the_image_lock(monkeypatch: pytest.MonkeyPatch):
    stack = plan(model("agg-tp1-8r"), nodes=1)
    reference = stack.release.vllm.image.reference
    entry = LockedDigest(digest="sha256:" + "0" * 64, source="a test", download_bytes=24_000_000)
    monkeypatch.setattr(bring_ups, "lock", lambda: Lock(images={reference: entry}))
    assert bring_up(stack).legs[0] == Leg("vLLM image", 1.0, bring_up(stack).legs[0].source)


def test_estimated_server_restarts_skip_compiling_if_compiled_code_is_kept_on_disk():
    kept, pods = (server_start(plan(model("agg-tp1-8r"), nodes=1, **more)) for more in ({"storage": NODE_DISK}, {}))
    assert kept.first_s - kept.again_s == bring_ups.bring_up_facts().server_start.compiling_seconds
    assert pods.first_s == pods.again_s == kept.first_s
    assert kept.source == ASSUMED


def test_every_bring_up_step_has_the_source_of_its_duration():
    legs = bring_up(planning.plan(validated(stack_changes={"storage": NODE_DISK}))).legs
    assert all(leg.source for leg in legs)
    assert any(leg.source == ASSUMED for leg in legs)
    names = [leg.name for leg in legs]
    assert all(names.index(other) < names.index(leg.name) for leg in legs for other in leg.after)


def test_image_and_weights_are_downloaded_in_parallel_if_weights_are_cached():
    result = bring_up(plan(model("agg-tp1-8r"), nodes=1, storage=NODE_DISK))
    assert result.starts["vLLM image"] == result.starts["weights"] == 0
    assert "weights" not in result.critical
