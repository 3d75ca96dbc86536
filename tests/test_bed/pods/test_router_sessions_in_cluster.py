"""Sessions on real endpoint pickers: what they keep of them, and what their clients are told."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from llmd_oke.serving import labels
from pod_cluster import PodCluster
from routers_for_tests import backends, route, router_namespace

pytestmark = pytest.mark.rehearsal

NAMESPACE, TOKEN, NAME = "sessions", "x-session-token", "x-session-id"
SERVERS = [f"server-{index}" for index in range(4)]
CONFIG = {
    "plugins": [{"type": "single-profile-handler"}, {"type": "session-affinity-scorer"}],
    "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "session-affinity-scorer"}]}],
}
REQUESTS = 24


@dataclass(frozen=True)
class Answer:
    """Answer to a client: the name of the server that answered, and the names of the answer's headers."""

    server: str
    headers: frozenset[str]


@dataclass(frozen=True)
class Sessions:
    """A router whose picker has the scorer of sessions alone."""

    cluster: PodCluster
    address: str

    def ask(self, token: str | None = None, *, header: str = TOKEN, stream: bool = False) -> Answer:
        body = json.dumps({"model": "m", "prompt": "short", "stream": stream})
        named = ("-H", f"{header}: {token}") if token else ()
        sent = ("curl", "-sS", "-i", "-m", "60", "-H", "Content-Type: application/json", *named, "-d", body)
        head, _, content = self.cluster.inside(*sent, f"http://{self.address}/v1/completions").partition("\n\n")
        status, *lines = head.splitlines()
        assert status.split()[1] == "200", head
        server = "" if stream else json.loads(content)["server"]
        return Answer(server, frozenset(line.partition(":")[0].lower() for line in lines))


def token_of(pod: str) -> str:
    """The token of a session that a pod has answered, as the picker makes it: its name of the server, in Base64."""
    return base64.b64encode(f"{NAMESPACE}/{pod}-rank-0".encode()).decode()


@pytest.fixture(scope="module")
def sessions(pod_cluster: PodCluster) -> Iterator[Sessions]:
    """A router of llm-d 0.6.0."""
    yield from _routed(pod_cluster, "llm-d-0.6.0", NAMESPACE, {"config": yaml.safe_dump(CONFIG)})


@pytest.fixture(scope="module")
def named_sessions(pod_cluster: PodCluster) -> Iterator[Sessions]:
    """A router of llm-d 0.9.0 by the profile session-affinity."""
    yield from _routed(pod_cluster, "llm-d-0.9.0", "named-sessions", {"profile": "session-affinity"})


def _routed(cluster: PodCluster, release_name: str, namespace: str, router_args: dict[str, Any]) -> Iterator[Sessions]:
    with cluster.ending_namespaces():
        router_namespace(cluster, namespace, release_name)
        selected = {"labels": labels.role_selector("m", "aggregated")}
        backends(cluster, namespace, dict.fromkeys(SERVERS, selected))
        yield Sessions(cluster, route(cluster, namespace, release_name, replicas=1, **router_args))


def test_requests_without_a_session_token_are_answered_by_any_server(sessions: Sessions) -> None:
    counts = Counter(sessions.ask().server for _ in range(REQUESTS))
    print("without a token:", dict(counts))
    assert max(counts.values()) < REQUESTS


def test_every_request_with_a_session_token_reaches_the_server_of_its_session(sessions: Sessions) -> None:
    for name in SERVERS[:2]:
        assert {sessions.ask(token_of(name)).server for _ in range(REQUESTS // 2)} == {name}


@pytest.mark.parametrize("token", [token_of("gone"), "no Base64"])
def test_requests_with_a_session_token_of_no_existing_server_are_answered(sessions: Sessions, token: str) -> None:
    assert sessions.ask(token).server in SERVERS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_picker_sends_clients_no_session_token_in_response_headers(sessions: Sessions, stream: bool) -> None:
    """The picker writes it as the answer ends, when its headers have gone out: why such configs are refused."""
    assert TOKEN not in sessions.ask(stream=stream).headers
    assert TOKEN not in sessions.ask(token_of(SERVERS[0]), stream=stream).headers


def test_requests_of_a_session_id_reach_the_server_that_answered_its_first(named_sessions: Sessions) -> None:
    """The picker spreads sessions over servers, and requests without one too."""
    places = {name: {named_sessions.ask(name, header=NAME).server for _ in range(4)} for name in map(str, range(12))}
    counts = Counter(named_sessions.ask().server for _ in range(REQUESTS))
    print("sessions:", places, "without one:", dict(counts))
    assert all(len(servers) == 1 for servers in places.values())
    assert len(set[str]().union(*places.values())) > 1
    assert len(counts) > 1
