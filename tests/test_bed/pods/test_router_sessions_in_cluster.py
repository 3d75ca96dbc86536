"""Sessions on real endpoint pickers: what they keep of them, and what their clients are told."""

import base64
import json
from collections import Counter
from dataclasses import dataclass

import pytest
import yaml
from llmd_oke.serving import labels, picker_config, router
from pod_cluster import HERE, Object, PodCluster, is_ready, program_of
from test_router_in_cluster import BACKEND, PLURALS, create_definitions, release_of, with_few_processors

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
def sessions(pod_cluster: PodCluster) -> Sessions:
    """A router of llm-d 0.6.0."""
    return _routed(pod_cluster, "llm-d-0.6.0", NAMESPACE, {"config": yaml.safe_dump(CONFIG)})


@pytest.fixture(scope="module")
def named_sessions(pod_cluster: PodCluster) -> Sessions:
    """A router of llm-d 0.9.0 by the profile session-affinity."""
    return _routed(pod_cluster, "llm-d-0.9.0", "named-sessions", {"profile": "session-affinity", "replicas": 1})


def _routed(
    pod_cluster: PodCluster, release_name: str, namespace: str, router_args: picker_config.RouterArgs
) -> Sessions:
    release = release_of(release_name)
    if program_of("envoy") is None:
        pytest.skip("no envoy on this machine")
    core = pod_cluster.namespace(namespace)
    create_definitions(pod_cluster, release)
    program = {"metadata": {"name": "backend"}, "data": {"backend.py": (HERE / "router_backend.py").read_text()}}
    assert pod_cluster.api.post(f"{core}/configmaps", json=program).is_success
    inputs = json.dumps(labels.role_selector("m", "aggregated"))
    for name in SERVERS:
        pod_cluster.create(f"{core}/pods", BACKEND.format(name=name, namespace=namespace, labels=inputs))
    for name in SERVERS:
        pod_cluster.wait(f"{core}/pods", name, is_ready)
    args: picker_config.RouterArgs = {
        "release": release.name,
        "namespace": namespace,
        "model": "m",
        "unit": "m",
        "disaggregated": False,
        **router_args,
    }
    for manifest in with_few_processors(router.router_manifests(args)):
        response = pod_cluster.api.post(f"/{PLURALS[manifest['kind']].format(namespace)}", json=manifest)
        assert response.is_success, response.text
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    pod_cluster.wait(deployments, "m-epp", _is_ready)
    service = pod_cluster.get(f"{core}/services/m-epp")["spec"]["clusterIP"]
    pod_cluster.inside(
        "curl", "-sS", "--retry-connrefused", "--retry", "30", "--retry-delay", "1", f"http://{service}/"
    )
    return Sessions(pod_cluster, f"{service}:80")


def _is_ready(deployment: Object) -> bool:
    return deployment.get("status", {}).get("readyReplicas", 0) == 1


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
