"""The forecast of the time from `up` to the first token."""

import pytest
from created_stacks import validated
from llmd_oke import planning
from llmd_oke.catalogue.container_images import Lock, LockedDigest
from llmd_oke.planning import bring_up as bring_ups
from llmd_oke.planning.bring_up import ASSUMED, BringUp, Leg, bring_up
from stacks_for_tests import model, plan

NODE_DISK = {"modelCache": {"kind": "node-disk"}}


def test_legs_side_by_side_take_as_long_as_the_longest():
    found = BringUp((Leg("a", 10, ""), Leg("b", 5, "", ("a",)), Leg("c", 7, "", ("a",)), Leg("d", 1, "", ("b", "c"))))
    assert found.seconds == 18
    assert found.critical == ("a", "c", "d")
    assert found.starts == {"a": 0, "b": 10, "c": 10, "d": 17}


def test_a_created_cluster_waits_for_its_gpu_nodes():
    found = bring_up(planning.plan(validated(stack_changes={"storage": NODE_DISK})))
    assert found.critical[:4] == ("network", "control plane", "system nodes", "GPU nodes")
    assert found.critical[-2:] == ("server start", "first request")
    assert "operators" not in found.critical
    assert found.starts["operators"] == found.starts["GPU nodes"] > found.starts["system nodes"]


def test_a_cluster_that_is_there_has_no_such_legs():
    names = [leg.name for leg in bring_up(plan(model("8p-tp1-4d-tp2"), nodes=2)).legs]
    assert names == ["vLLM image", "weights", "server start", "router", "first request"]


def test_servers_without_a_router_wait_for_none():
    names = [leg.name for leg in bring_up(plan(model("agg-tp1-8r", router={"mode": "none"}), nodes=1)).legs]
    assert "router" not in names


def test_without_a_cache_the_servers_of_a_node_share_its_rate():
    def weights(**changes: object) -> float:
        found = bring_up(plan(model("agg-tp1-8r"), nodes=1, **changes))
        return next(leg.seconds for leg in found.legs if leg.name == "weights")

    assert weights() == pytest.approx(8 * weights(storage=NODE_DISK))


def test_the_registrys_own_size_of_the_image_wins(monkeypatch: pytest.MonkeyPatch):
    stack = plan(model("agg-tp1-8r"), nodes=1)
    reference = stack.release.vllm.image.reference
    entry = LockedDigest(digest="sha256:" + "0" * 64, source="a test", download_bytes=24_000_000)
    monkeypatch.setattr(bring_ups, "lock", lambda: Lock(images={reference: entry}))
    assert bring_up(stack).legs[0] == Leg("vLLM image", 1.0, bring_up(stack).legs[0].source)


def test_every_leg_says_where_its_time_is_from():
    legs = bring_up(planning.plan(validated(stack_changes={"storage": NODE_DISK}))).legs
    assert all(leg.source for leg in legs)
    assert any(leg.source == ASSUMED for leg in legs)
    names = [leg.name for leg in legs]
    assert all(names.index(other) < names.index(leg.name) for leg in legs for other in leg.after)


def test_image_and_weights_come_at_the_same_time_where_weights_are_cached():
    found = bring_up(plan(model("agg-tp1-8r"), nodes=1, storage=NODE_DISK))
    assert found.starts["vLLM image"] == found.starts["weights"] == 0
    assert "weights" not in found.critical
