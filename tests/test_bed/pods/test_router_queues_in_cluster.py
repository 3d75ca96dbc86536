"""Flow control by the requests that a real endpoint picker has sent: who is refused, and who goes first."""

import json
from collections import Counter
from statistics import mean
from typing import TypedDict

import pytest
from llmd_oke.serving.picker_config import FlowControlArgs, PriorityBandArgs, RouterArgs
from pod_cluster import HERE, PodCluster
from queued_load import AT_A_TIME, BAND_REQUESTS, EACH_PRIORITY, LOUD, QUIET, REFUSED, Outcome
from simulated_unit import LARGE_MODEL, SERVERS, SERVERS_RELEASE, Namespace

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly, pytest.mark.timeout(900)]

SHORT_TTL_S, LONG_TTL_S = 3, 120


class Seen(TypedDict):
    """Outcomes in their order, requests that reached servers, and most requests that waited in servers at a time."""

    outcomes: list[Outcome]
    at_servers: int
    most_waiting: int


def held_back(ttl_s: int, low_requests: int) -> FlowControlArgs:
    """Return the flow control of a router: a request waits at most `ttl_s` seconds, and of the low priority at most
    `low_requests` wait.
    """
    bands: list[PriorityBandArgs] = [
        {"priority": 100},
        {"priority": 0},
        {"priority": -10, "max_requests": low_requests},
    ]
    return {"detector": "concurrency", "max_concurrency": AT_A_TIME, "request_ttl_s": ttl_s, "bands": bands}


LONG = held_back(LONG_TTL_S, EACH_PRIORITY)
BY_REPORTS: FlowControlArgs = {
    "detector": "utilization",
    "queue_depth_threshold": 1,
    "metrics_staleness_ms": 5000,
    "request_ttl_s": LONG_TTL_S,
    "bands": LONG["bands"],
}
FLOWS: dict[str, FlowControlArgs | None] = {
    "full": held_back(SHORT_TTL_S, BAND_REQUESTS),
    "priorities": LONG,
    "turns": LONG,
    "turns-reports": BY_REPORTS,
    "turns-without": None,
}
"""Flow control by unit, whose name says the case of the load."""


@pytest.fixture(scope="module")
def seen(pod_cluster: PodCluster) -> dict[str, Seen]:
    """Outcomes of the requests, by unit."""
    with pod_cluster.ending_namespaces():
        namespace = Namespace.made(pod_cluster, "queues", SERVERS_RELEASE)
        return {unit: _seen(namespace, unit, flow) for unit, flow in FLOWS.items()}


def _seen(namespace: Namespace, unit: str, flow: FlowControlArgs | None) -> Seen:
    """Return the outcomes of a load that the node sends as the stack's front door would, which alone may do so."""
    servers = namespace.serve(unit, f"--max-num-seqs={AT_A_TIME}", model=LARGE_MODEL)
    args: RouterArgs = {"profile": "token-load", "flow_control": flow, "priorities": [100, -10] if flow else None}
    behind: RouterArgs = {"signed_in": True, "control_plane_cidrs": ["0.0.0.0/0"]}
    address = namespace.route(unit, {**args, **behind}).removesuffix(":80")
    asked = ("python3", str(HERE / "queued_load.py"), unit.partition("-")[0], address, LARGE_MODEL, *servers)
    found: Seen = json.loads(namespace.cluster.inside(*asked))
    namespace.remove(unit)
    print(unit, found)
    return found


def place(seen: Seen, client: str) -> float:
    """Return the mean place of a client's requests among those that had to wait, in the order of their answers."""
    waited = [outcome["client"] for outcome in seen["outcomes"] if outcome["client"] != "busy"]
    return mean(place for place, name in enumerate(waited, start=1) if name == client)


def test_requests_beyond_the_limit_of_their_priority_are_refused_at_once(seen: dict[str, Seen]) -> None:
    refused = [outcome for outcome in seen["full"]["outcomes"] if outcome["seconds"] < SHORT_TTL_S / 2]
    assert Counter(outcome["status"] for outcome in refused) == {429: REFUSED}
    assert {outcome["reason"] for outcome in refused} == {"rejected-saturated"}


def test_requests_that_have_waited_for_their_longest_time_are_refused(seen: dict[str, Seen]) -> None:
    expired = [outcome for outcome in seen["full"]["outcomes"] if outcome["seconds"] >= SHORT_TTL_S / 2]
    assert Counter(outcome["status"] for outcome in expired) == {429: BAND_REQUESTS}  # v0.7.1: 503
    assert {outcome["reason"] for outcome in expired} == {"rejected-ttl-expired"}


def test_servers_receive_no_refused_request(seen: dict[str, Seen]) -> None:
    assert seen["full"]["at_servers"] == AT_A_TIME * SERVERS


def test_requests_of_a_high_priority_go_before_earlier_ones_of_a_low_one(seen: dict[str, Seen]) -> None:
    """One after the other they would have the places from 1 to 6, 3.5 in the mean."""
    high = place(seen["priorities"], "chat")
    print(f"mean place of the high priority's requests: {high}")
    assert high <= EACH_PRIORITY


def test_a_client_with_few_requests_takes_turns_with_one_that_sent_many(seen: dict[str, Seen]) -> None:
    """Every second of the first 16 places is 9 in the mean, the last eight of 32 are 28.5."""
    turns, arrival = (place(seen[unit], "quiet") for unit in ("turns", "turns-without"))
    print(f"mean place of the quiet client's requests: {turns} with flow control, {arrival} without")
    assert turns <= QUIET + 4
    assert arrival > 1.5 * turns


def test_waiting_requests_are_in_the_picker_and_not_in_servers(seen: dict[str, Seen]) -> None:
    assert seen["turns"]["most_waiting"] <= 2
    assert seen["turns-without"]["most_waiting"] >= LOUD


def test_by_what_servers_report_a_burst_reaches_them_before_it_has_to_wait(seen: dict[str, Seen]) -> None:
    reports = seen["turns-reports"]
    print(f"by utilization: mean place {place(reports, 'quiet')}, {reports['most_waiting']} waiting in servers")
    assert reports["most_waiting"] > seen["turns"]["most_waiting"]
