"""Flow control and priorities of clients: what is planned, and what is refused where."""

from typing import Any

import pytest
from llmd_oke.catalogue.flow_control import PriorityBand
from stack_files import model, paths, plan

ENFORCED = {"engine": "existing"}
DOOR = {"authentication": {"kind": "api-keys"}, "priorities": {"chat": 100, "crawler": -10}}


def routed(**router: Any) -> dict[str, Any]:
    return model("1p-tp1-1d-tp1", router=router)


def refused(*models: dict[str, Any], door: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    return paths(*models, frontDoor=DOOR if door is None else door, networkPolicies=ENFORCED, **changes)


def test_each_client_priority_gets_a_band_and_default_priority_0_gets_one():
    asked = {"priorityBands": [{"priority": -10, "maxRequests": 50}]}
    (planned,) = plan(routed(flowControl=asked), frontDoor=DOOR, networkPolicies=ENFORCED).models
    assert planned.priorities == (100, -10)
    assert planned.flow_control is not None
    assert planned.flow_control.bands == (PriorityBand(100), PriorityBand(0), PriorityBand(-10, max_requests=50))


def test_without_flow_control_in_the_stack_file_routers_queue_no_requests():
    (planned,) = plan(routed()).models
    assert (planned.flow_control, planned.holds_back, planned.priorities) == (None, False, ())


@pytest.mark.parametrize(
    ("router", "path"),
    [
        ({}, "flowControl"),
        ({"mode": "none"}, "mode"),
        ({"flowControl": {"priorityBands": [{"priority": 5}]}}, "flowControl.priorityBands[0].priority"),
        (
            {"flowControl": {"priorityBands": [{"priority": 0}, {"priority": 0}]}},
            "flowControl.priorityBands[1].priority",
        ),
        ({"flowControl": {"maxConcurrency": 64}}, "flowControl.maxConcurrency"),
        ({"flowControl": {"detector": "concurrency"}}, "flowControl.maxConcurrency"),
    ],
)
def test_client_priorities_without_flow_control_in_the_router_are_refused(router: dict[str, Any], path: str):
    topology = "agg-tp1-2r" if router.get("mode") == "none" else "1p-tp1-1d-tp1"
    assert refused(model(topology, router=router)) == [f"models[0].router.{path}"]


def test_client_priorities_in_the_front_door_require_authentication():
    assert refused(routed(flowControl={}), door={"priorities": {"chat": 100}}) == ["frontDoor.authentication"]


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"detector": "concurrency", "maxConcurrency": 64}, "detector"),
        ({"priorityBands": [{"priority": 0, "maxRequests": 9}]}, "priorityBands[0].maxRequests"),
    ],
)
def test_flow_control_that_an_older_picker_lacks_is_refused(asked: dict[str, Any], path: str):
    assert refused(routed(flowControl=asked), release="llm-d-0.6.0") == [f"models[0].router.flowControl.{path}"]
    assert refused(routed(flowControl=asked)) == []


def test_a_custom_picker_config_decides_whether_flow_control_is_on():
    config = {
        "featureGates": ["flowControl"],
        "plugins": [{"type": "single-profile-handler"}, {"type": "queue-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
    }
    ungated = {key: value for key, value in config.items() if key != "featureGates"}
    for router, found in (
        ({"config": config}, []),
        ({"config": ungated}, ["models[0].router.flowControl"]),
        ({"config": config, "flowControl": {}}, ["models[0].router.flowControl"]),
    ):
        assert refused(model("agg-tp1-2r", router=router)) == found
