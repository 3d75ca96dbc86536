"""Load on real endpoint pickers: short answers go to the server that has no long one to compute."""

import json
from typing import TypedDict

import pytest
import yaml
from llmd_oke.serving.picker_config import RouterArgs
from pod_cluster import HERE, PodCluster
from routers_for_tests import ROUTER_RELEASES
from simulated_unit import LARGE_MODEL, SERVERS, Namespace
from uneven_load import SHORT_ANSWERS

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly, pytest.mark.timeout(900)]


class Counts(TypedDict):
    """Counts of each server: requests that it runs after the long ones have begun, short ones that it has answered,
    and requests that it runs after those.
    """

    running: list[int]
    answered: list[int]
    still: list[int]


def scored_by(scorer: str) -> RouterArgs:
    """Return the arguments of a router whose endpoint picker has one scorer alone."""
    plugins = [{"type": "single-profile-handler"}, {"type": scorer}]
    profiles = [{"name": "default", "plugins": [{"pluginRef": scorer}]}]
    return {"config": yaml.safe_dump({"plugins": plugins, "schedulingProfiles": profiles})}


WITHOUT = "waiting"
ROUTERS: dict[str, RouterArgs] = {
    WITHOUT: scored_by("queue-scorer"),
    "running": scored_by("running-requests-size-scorer"),
    "profile": {"profile": "running-requests"},
}
"""Routers by unit: by requests that wait at servers, of which there are none; by running ones; by both."""
LATER: dict[str, RouterArgs] = {"tokens": {"profile": "token-load"}}
"""A profile whose plug-ins v0.7.1 lacks."""


@pytest.fixture(scope="module", params=ROUTER_RELEASES)
def counts(request: pytest.FixtureRequest, pod_cluster: PodCluster) -> dict[str, Counts]:
    """Counts of servers by unit."""
    routers = ROUTERS if request.param == ROUTER_RELEASES[0] else ROUTERS | LATER
    with pod_cluster.ending_namespaces():
        namespace = Namespace.made(pod_cluster, "loads", request.param)
        return {unit: _counted(namespace, unit, args) for unit, args in routers.items()}


def _counted(namespace: Namespace, unit: str, args: RouterArgs) -> Counts:
    servers = namespace.serve(unit, model=LARGE_MODEL)
    asked = ("python3", str(HERE / "uneven_load.py"), namespace.route(unit, args), LARGE_MODEL, *servers)
    found: Counts = json.loads(namespace.cluster.inside(*asked))
    namespace.remove(unit)
    print(namespace.router_release, unit, found)
    return found


def test_each_long_answer_gets_a_server_and_short_ones_the_idle_one(counts: dict[str, Counts]) -> None:
    for unit in counts.keys() - {WITHOUT}:
        found = counts[unit]
        assert sorted(found["running"]) == [0, *[1] * (SERVERS - 1)], unit
        assert found["still"] == found["running"], unit
        assert found["answered"] == [0 if ran else SHORT_ANSWERS for ran in found["running"]], unit


def test_by_waiting_requests_alone_short_answers_share_servers_with_long_ones(counts: dict[str, Counts]) -> None:
    assert max(counts[WITHOUT]["answered"]) < SHORT_ANSWERS
