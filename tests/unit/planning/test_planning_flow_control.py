"""Flow control and priorities of clients: what is planned, and what is refused where."""

from typing import Any

import pytest
from llmd_oke.catalogue.flow_control import PriorityBand
from stack_files import model, plan, problems

ENFORCED = {"engine": "existing"}
DOOR = {"authentication": {"kind": "api-keys"}, "priorities": {"chat": 100, "crawler": -10}}


def routed(**router: Any) -> dict[str, Any]:
    return model("1p-tp1-1d-tp1", router=router)


def refused(*models: dict[str, Any], door: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    found = problems(*models, frontDoor=DOOR if door is None else door, networkPolicies=ENFORCED, **changes)
    return {problem.path: str(problem) for problem in found}


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
    ("router", "path", "words"),
    [
        ({}, "models[0].router.flowControl", "none goes before another"),
        ({"mode": "none"}, "models[0].router.mode", "nothing that requests would wait in"),
        (
            {"flowControl": {"priorityBands": [{"priority": 5}]}},
            "models[0].router.flowControl.priorityBands[0].priority",
            "no client of the front door has this priority",
        ),
        (
            {"flowControl": {"priorityBands": [{"priority": 0}, {"priority": 0}]}},
            "models[0].router.flowControl.priorityBands[1].priority",
            "another band has it",
        ),
        (
            {"flowControl": {"maxConcurrency": 64}},
            "models[0].router.flowControl.maxConcurrency",
            "the utilization detector doesn't read it",
        ),
        (
            {"flowControl": {"detector": "concurrency"}},
            "models[0].router.flowControl.maxConcurrency",
            "goes by nothing else",
        ),
    ],
)
def test_client_priorities_without_flow_control_in_the_router_are_refused(
    router: dict[str, Any], path: str, words: str
):
    topology = "agg-tp1-2r" if router.get("mode") == "none" else "1p-tp1-1d-tp1"
    result = refused(model(topology, router=router))
    assert list(result) == [path]
    assert words in result[path]


def test_client_priorities_in_the_front_door_require_authentication():
    result = refused(routed(flowControl={}), door={"priorities": {"chat": 100}})
    assert list(result) == ["frontDoor.authentication"]


@pytest.mark.parametrize(
    ("asked", "path", "words"),
    [
        ({"detector": "concurrency", "maxConcurrency": 64}, "detector", "it has no concurrency detector"),
        (
            {"priorityBands": [{"priority": 0, "maxRequests": 9}]},
            "priorityBands[0].maxRequests",
            "bounds bands by bytes alone",
        ),
    ],
)
def test_flow_control_that_an_older_picker_lacks_is_refused_with_its_source(
    asked: dict[str, Any], path: str, words: str
):
    result = refused(routed(flowControl=asked), release="llm-d-0.6.0")
    assert list(result) == [f"models[0].router.flowControl.{path}"]
    assert words in result[f"models[0].router.flowControl.{path}"]
    assert "https://github.com/" in result[f"models[0].router.flowControl.{path}"]
    assert refused(routed(flowControl=asked)) == {}


def test_a_custom_picker_config_decides_whether_flow_control_is_on():
    config = {
        "featureGates": ["flowControl"],
        "plugins": [{"type": "single-profile-handler"}, {"type": "queue-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
    }
    ungated = {key: value for key, value in config.items() if key != "featureGates"}
    assert refused(model("agg-tp1-2r", router={"config": config})) == {}
    assert list(refused(model("agg-tp1-2r", router={"config": ungated}))) == ["models[0].router.flowControl"]
    both = refused(model("agg-tp1-2r", router={"config": config, "flowControl": {}}))
    assert "router.config replaces this key" in both["models[0].router.flowControl"]
