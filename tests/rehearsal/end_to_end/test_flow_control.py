"""Clients of a front door that ask for more than the servers can answer: the real picker's turns."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "turns"
ADDRESS = "http://front-door.llm-d.svc.cluster.local"
LOAD = Path(__file__).with_name("client_turns.py")
FLOW = {
    "queueDepthThreshold": 1,
    "metricsStalenessMs": 5000,
    "requestTtlS": 12,
    "priorityBands": [{"priority": -20, "maxMib": 1}],
}
DOOR = {
    "authentication": {"kind": "api-keys"},
    "uncheckedPods": "accepted",
    "priorities": {"chat": 100, "crawler": -10, "bulk": -20},
    "limits": {"clients": {name: {"concurrentRequests": 1000} for name in ("loud", "quiet")}},
}
USERS_OF_LOUD_FOR_EACH_OF_QUIET = 150 / 50


@pytest.fixture(scope="module")
def seen(project: Project) -> dict[str, Any]:
    models = [model(topology="agg-tp1-2r", router={"flowControl": FLOW}, engine={"maxNumSeqs": 8})]
    project.write(STACK, release="llm-d-0.6.0", models=models, smoke={"where": "none"}, frontDoor=DOOR)
    done = project.command("rehearse", "--stack", STACK, "--time-scale", "1", "--no-benchmark")
    assert done.status == 0, done.errors
    keys = project.folder / ".rehearsal" / STACK / "front-door" / "secrets.json"
    sent = project.inside(STACK, sys.executable, str(LOAD), ADDRESS, str(keys))
    print(sent.output)
    return json.loads(sent.output.splitlines()[-1])


def statuses(case: dict[str, Any], client: str) -> dict[str, int]:
    return case["clients"][client]["statuses"]


def test_a_low_priority_client_is_refused_while_higher_priorities_are_served(seen: dict[str, Any]) -> None:
    """Headers of the client say that it is the other one, with that one's priority."""
    case = seen["by_priority"]
    assert set(statuses(case, "chat")) == {"200"}
    served, refused = (statuses(case, "crawler").get(status, 0) for status in ("200", "503"))
    assert refused > 0
    assert served <= refused / 4  # some come in where the others' queue is empty for a moment


def test_a_request_beyond_the_queue_limit_of_its_priority_is_refused_at_once(seen: dict[str, Any]) -> None:
    """Sixty users' prompts take more than the band's MiB; clients of another band are served."""
    case = seen["full_band"]
    assert set(statuses(case, "chat")) == {"200"}
    assert statuses(case, "bulk").get("429", 0) > statuses(case, "bulk").get("200", 0)


def test_a_client_with_few_requests_is_not_starved_by_one_with_many(seen: dict[str, Any]) -> None:
    case = seen["in_turn"]
    loud, quiet = (statuses(case, client) for client in ("loud", "quiet"))
    assert set(quiet) == {"200"}
    assert loud["200"] / quiet["200"] < 0.8 * USERS_OF_LOUD_FOR_EACH_OF_QUIET
    assert loud.get("503", 0) > 0


@pytest.mark.parametrize("name", ["by_priority", "full_band", "in_turn"])
def test_servers_receive_exactly_as_many_requests_as_clients_get_answers_to(seen: dict[str, Any], name: str) -> None:
    case = seen[name]
    assert case["answered"] == sum(statuses(case, client).get("200", 0) for client in case["clients"])
