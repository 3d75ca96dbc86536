"""Whether routers find room on nodes without GPUs."""

from typing import Any

import pytest
from created_stacks import refusals
from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.config.node_pools import SystemPool
from llmd_oke.planning.routers import FRONT_DOOR_REQUESTS, places_on_node
from stacks_for_tests import model


def of_pools(system: dict[str, Any], copies: int = 4, **changes: Any) -> dict[str, str]:
    models = [model("1p-tp1-1d-tp1", copies=copies)]
    return refusals(stack_changes={"systemPool": system, "models": models, **changes})


def test_the_default_pool_holds_three_routers_and_an_envoy_of_a_front_door_on_each_node():
    release = catalogue.release("llm-d-0.7.0")
    assert release is not None
    assert (release.router_requests.cpus, release.router_requests.memory_gib) == (8, 16)
    assert places_on_node(SystemPool(), release.router_requests, 1) == 3


@pytest.mark.parametrize(("copies", "refused"), [(4, False), (5, True)])
def test_routers_fit_or_are_refused(copies: int, refused: bool):
    assert ("systemPool.size" in of_pools({"size": 3}, copies)) is refused


def test_the_remedy_is_enough():
    told = of_pools({"size": 1}, copies=7)["systemPool.size"]
    assert "at least 5" in told
    assert of_pools({"size": 5}, copies=7) == {}


@pytest.mark.parametrize(
    ("pool", "key"),
    [({"ocpus": 4, "memoryGib": 16}, "ocpus"), ({"ocpus": 16, "memoryGib": 20}, "memoryGib")],
)
def test_a_node_that_holds_no_router_has_to_be_larger(pool: dict[str, Any], key: str):
    allowance, door = operators.system_nodes().allowance, FRONT_DOOR_REQUESTS
    cpus, memory_gib = 8 + allowance.cpus + door.cpus, 16 + allowance.memory_gib + door.memory_gib
    told = of_pools(pool)[f"systemPool.{key}"]
    assert f"{cpus / 2:g} OCPUs and {memory_gib} GiB" in told


def test_further_pools_count_unless_they_are_tainted():
    small, large = {"ocpus": 4, "memoryGib": 16}, {"name": "routers", "size": 3}
    assert of_pools(small, cpuPools=[large]) == {}
    assert "systemPool.ocpus" in of_pools(small, cpuPools=[{**large, "taints": [{"key": "team"}]}])


def test_models_without_a_router_need_no_room():
    models = [model("agg-tp1-4r", router={"mode": "none"})]
    assert refusals(stack_changes={"systemPool": {"ocpus": 4, "memoryGib": 16}, "models": models}) == {}


def test_a_shape_that_is_not_flexible_is_taken_to_be_enough():
    assert of_pools({"shape": "BM.Standard.E5.192", "size": 1}, copies=9) == {}
