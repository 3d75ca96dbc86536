"""NetworkPolicies of a real control plane, enforced between pods that the node agent runs."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from llmd_oke.serving import labels, network_policies
from pod_cluster import PodCluster, is_ready, phase_is, pod_manifest

pytestmark = pytest.mark.rehearsal

LIMIT_S = 30.0

SERVER = """
metadata: {name: server, labels: {app: server}}
spec:
  containers:
    - name: main
      image: test/python:1
      command: [python3, -m, http.server, "8000"]
      ports: [{name: http, containerPort: 8000}]
      readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
"""

SERVICE = "{metadata: {name: server}, spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8000}]}}"

NEVER = {"restartPolicy": "Never"}


def python_pod(name: str, program: str, labels: Mapping[str, str], spec: Any = NEVER, **container: Any) -> str:
    """A pod that runs a Python program."""
    return pod_manifest(name, "test/python:1", labels, spec, command=["python3", "-c"], args=[program], **container)


CLIENT = """
import socket
def reached(host, port):
    try:
        with socket.create_connection((host, port), 1.5) as there:
            there.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return bool(there.recv(1))
    except OSError:
        return False
print(reached("{address}", 8000), reached("server", 80))
"""

POLICY = """
metadata: {name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: router}}}], ports: [{port: http}]}]
"""

CLOSED = """
metadata: {name: closed}
spec:
  podSelector: {matchLabels: {app: stranger}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {app: other}}}]}]
"""

OPENED = """
metadata: {name: opened}
spec:
  podSelector: {matchLabels: {app: stranger}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: 8000}]}]
"""


PEER = """
import socket
listening = socket.create_server(("", 9000))
(first, _), (second, _) = listening.accept(), listening.accept()
first.sendall(b"answer")
second.recv(4096)
second.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
"""

WAITING = """
import socket, time
limit = time.monotonic() + 30
while True:
    try:
        there = socket.create_connection(("{peer}", 9000), 30)
        break
    except OSError:
        if time.monotonic() > limit:
            raise
listening = socket.create_server(("", 8000))
print(there.recv(6).decode())
"""


def answers(port: int) -> dict[str, Any]:
    """A readiness probe of a port that accepts connections."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}


class Policed:
    """A namespace with a server, and clients that say whether they reach it by its address and by its Service."""

    def __init__(self, cluster: PodCluster, name: str) -> None:
        self._cluster, self._name, self._clients = cluster, name, 0
        self.core = cluster.namespace(name)
        self.policies = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
        cluster.create(f"{self.core}/services", SERVICE)
        cluster.create(f"{self.core}/pods", SERVER)
        self.server = cluster.wait(f"{self.core}/pods", "server", is_ready)

    @property
    def address(self) -> str:
        return self.server["status"]["podIP"]

    def reached_by(self, app: str) -> tuple[bool, bool]:
        """Tell whether a pod with this label reaches the server directly, and by its Service."""
        self._clients += 1
        name = f"{app}-{self._clients}"
        self._cluster.create(f"{self.core}/pods", python_pod(name, CLIENT.format(address=self.address), {"app": app}))
        self._cluster.wait(f"{self.core}/pods", name, phase_is("Succeeded"))
        directly, by_service = self._cluster.log(self._name, name, "main").split()
        return directly == "True", by_service == "True"

    def comes_to(self, app: str, *, reached: bool) -> bool:
        """Tell whether a pod with this label reaches the server by both ways, or by none, before long: enforcement
        follows a policy as fast as the machine is free."""
        until_s = time.monotonic() + LIMIT_S
        while self.reached_by(app) != (reached, reached):
            if time.monotonic() > until_s:
                return False
        return True


@pytest.fixture(scope="module")
def enforced(pod_cluster: PodCluster) -> None:
    if why := (pod_cluster.state / "network-policies").read_text():
        pytest.skip(f"this machine enforces no policies: {why}")


@pytest.fixture
def policed(pod_cluster: PodCluster, enforced: None, request: pytest.FixtureRequest) -> Policed:
    return Policed(pod_cluster, request.node.name.replace("_", "-")[-40:].strip("-"))


def test_a_network_policy_admits_only_named_peers_until_it_is_deleted(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    assert policed.comes_to("stranger", reached=True)
    pod_cluster.create(policed.policies, POLICY)
    assert policed.comes_to("stranger", reached=False)
    assert policed.comes_to("router", reached=True)
    assert pod_cluster.api.delete(f"{policed.policies}/server").is_success
    assert policed.comes_to("stranger", reached=True)


def test_a_pod_reaches_only_destinations_that_its_egress_policies_name(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    pod_cluster.create(policed.policies, CLOSED)
    assert policed.comes_to("stranger", reached=False)
    assert policed.comes_to("router", reached=True)
    pod_cluster.create(policed.policies, OPENED)
    assert policed.comes_to("stranger", reached=True)


def test_probes_and_the_api_servers_proxy_reach_a_pod_whose_policy_admits_nobody(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    nobody: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert pod_cluster.api.post(policed.policies, json={"metadata": {"name": "nobody"}, "spec": nobody}).is_success
    assert policed.comes_to("router", reached=False)
    assert pod_cluster.api.get(f"{policed.core}/pods/server:8000/proxy/").is_success
    pod_cluster.create(f"{policed.core}/pods", SERVER.replace("name: server,", "name: later,"))
    assert is_ready(pod_cluster.wait(f"{policed.core}/pods", "later", is_ready))


def test_a_new_network_policy_does_not_cut_a_connection_opened_before_it(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    pods = f"{policed.core}/pods"
    pod_cluster.create(pods, python_pod("peer", PEER, {}, None))
    peer = pod_cluster.wait(pods, "peer", is_ready)["status"]["podIP"]
    program = WAITING.format(peer=peer)
    pod_cluster.create(pods, python_pod("waiting", program, {"app": "server"}, readinessProbe=answers(8000)))
    pod_cluster.wait(pods, "waiting", is_ready)
    pod_cluster.create(policed.policies, POLICY)
    assert policed.comes_to("stranger", reached=False)
    pod_cluster.inside("curl", "-sS", "-m", "30", f"http://{peer}:9000/")
    pod_cluster.wait(pods, "waiting", phase_is("Succeeded"))
    assert pod_cluster.log(policed.core.rpartition("/")[2], "waiting", "main").strip() == "answer"


PORTS = (8000, 8200, 5600)
"""Of the routing sidecar or vLLM, of vLLM behind a sidecar, and NIXL's side channel."""

MODEL_SERVER = f"""
import socket, threading
def serve(port):
    listening = socket.create_server(("", port))
    while True:
        there, _ = listening.accept()
        there.sendall(b"x")
        there.close()
for port in {PORTS}:
    threading.Thread(target=serve, args=(port,)).start()
"""

VISITOR = """
import json, socket
from concurrent.futures import ThreadPoolExecutor
def reached(place):
    try:
        with socket.create_connection(place, 1.5) as there:
            return bool(there.recv(1))
    except OSError:
        return False
places = [(host, port) for host in {servers}.values() for port in {ports}]
with ThreadPoolExecutor(len(places)) as pool:
    answers = dict(zip(places, pool.map(reached, places)))
seen = {{role: [port for port in {ports} if answers[host, port]] for role, host in {servers}.items()}}
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def visits(pod_cluster: PodCluster, enforced: None) -> Mapping[str, Mapping[str, list[int]]]:
    """Ports of servers of each role that pods of all kinds reach, past the policies that the kit declares."""
    with pod_cluster.ending_namespaces():
        return _visits(pod_cluster, "visited")


def _visits(cluster: PodCluster, namespace: str) -> dict[str, dict[str, list[int]]]:
    core, policies = cluster.namespace(namespace), f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    roles = ("prefill", "decode", "aggregated")
    selectors = {role: dict(labels.role_selector("u", role)) for role in roles}
    for role, selector in selectors.items():
        rules = network_policies.servers_rules("u", role, routed=True, control_plane=None)
        manifest = network_policies.policy({"name": role}, selector, rules, [network_policies.anywhere()])
        response = cluster.api.post(policies, json=manifest)
        assert response.is_success, response.text
        cluster.create(f"{core}/pods", python_pod(role, MODEL_SERVER, selector, None, readinessProbe=answers(5600)))
    servers = {role: cluster.wait(f"{core}/pods", role, is_ready)["status"]["podIP"] for role in roles}
    visitors = {
        "stranger": {"app": "stranger"},
        "kit": {"app.kubernetes.io/part-of": "llmd-oke"},
        "router": dict(labels.router_selector("u")),
        "router-of-another": dict(labels.router_selector("v")),
        "prefill-visitor": selectors["prefill"],
        "decode-visitor": selectors["decode"],
        "decode-of-another": dict(labels.role_selector("v", "decode")),
    }
    program = VISITOR.format(servers=json.dumps(servers), ports=PORTS)
    for name, own in visitors.items():
        cluster.create(f"{core}/pods", python_pod(name, program, own))
    seen: dict[str, dict[str, list[int]]] = {}
    for name in visitors:
        cluster.wait(f"{core}/pods", name, phase_is("Succeeded"))
        seen[name] = json.loads(cluster.log(namespace, name, "main"))
    return seen


@pytest.mark.parametrize("visitor", ["stranger", "kit", "router-of-another", "decode-of-another"])
def test_a_pod_of_another_namespace_reaches_no_port_of_a_model_server(visits: Mapping[str, Any], visitor: str) -> None:
    assert visits[visitor] == {"prefill": [], "decode": [], "aggregated": []}


def test_a_router_pod_reaches_only_the_request_ports_of_model_servers(visits: Mapping[str, Any]) -> None:
    assert visits["router"] == {role: [8000, 8200] for role in ("prefill", "decode", "aggregated")}


def test_prefill_and_decode_servers_of_a_model_copy_reach_all_of_each_others_ports(visits: Mapping[str, Any]) -> None:
    assert visits["decode-visitor"] == {"prefill": list(PORTS), "decode": [], "aggregated": []}
    assert visits["prefill-visitor"] == {"prefill": [], "decode": list(PORTS), "aggregated": []}
