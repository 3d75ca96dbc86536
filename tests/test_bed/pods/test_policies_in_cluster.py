"""NetworkPolicies of a real control plane, enforced between pods that the node agent runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from pod_cluster import PodCluster, is_ready, phase_is

pytestmark = pytest.mark.rehearsal

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

CLIENT = """
metadata: {{name: {name}, labels: {{app: {app}}}}}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: test/python:1
      command: [python3, -c]
      args:
        - |
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
metadata: {name: peer}
spec:
  containers:
    - name: main
      image: test/python:1
      command: [python3, -c]
      args:
        - |
          import socket
          listening = socket.create_server(("", 9000))
          (first, _), (second, _) = listening.accept(), listening.accept()
          first.sendall(b"answer")
          second.recv(4096)
          second.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
"""

WAITING = """
metadata: {{name: waiting, labels: {{app: server}}}}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: test/python:1
      command: [python3, -c]
      args:
        - |
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
      readinessProbe: {{tcpSocket: {{port: 8000}}, periodSeconds: 1}}
"""


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
        """Whether a pod with this label reaches the server directly, and by its Service."""
        self._clients += 1
        name = f"{app}-{self._clients}"
        self._cluster.create(f"{self.core}/pods", CLIENT.format(name=name, app=app, address=self.address))
        self._cluster.wait(f"{self.core}/pods", name, phase_is("Succeeded"))
        directly, by_service = self._cluster.log(self._name, name, "main").split()
        return directly == "True", by_service == "True"


@pytest.fixture
def policed(pod_cluster: PodCluster, request: pytest.FixtureRequest) -> Iterator[Policed]:
    why = (pod_cluster.state / "network-policies").read_text()
    if why:
        pytest.skip(f"this machine enforces no policies: {why}")
    created = Policed(pod_cluster, request.node.name.replace("_", "-")[-40:].strip("-"))
    yield created
    pod_cluster.api.delete(created.core)


def test_a_policy_lets_in_whom_it_names_and_nobody_else_until_it_is_gone(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    assert policed.reached_by("stranger") == (True, True)
    pod_cluster.create(policed.policies, POLICY)
    assert policed.reached_by("stranger") == (False, False)
    assert policed.reached_by("router") == (True, True)
    assert pod_cluster.api.delete(f"{policed.policies}/server").is_success
    assert policed.reached_by("stranger") == (True, True)


def test_a_pod_reaches_only_whom_policies_of_its_own_name(pod_cluster: PodCluster, policed: Policed) -> None:
    pod_cluster.create(policed.policies, CLOSED)
    assert policed.reached_by("stranger") == (False, False)
    assert policed.reached_by("router") == (True, True)
    pod_cluster.create(policed.policies, OPENED)
    assert policed.reached_by("stranger") == (True, True)


def test_probes_and_requests_by_way_of_the_api_server_reach_a_pod_that_nobody_may(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    nobody: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert pod_cluster.api.post(policed.policies, json={"metadata": {"name": "nobody"}, "spec": nobody}).is_success
    assert policed.reached_by("router") == (False, False)
    assert pod_cluster.api.get(f"{policed.core}/pods/server:8000/proxy/").is_success
    pod_cluster.create(f"{policed.core}/pods", SERVER.replace("name: server,", "name: later,"))
    assert is_ready(pod_cluster.wait(f"{policed.core}/pods", "later", is_ready))


def test_an_answer_comes_in_that_was_asked_for_before_there_was_a_policy(
    pod_cluster: PodCluster, policed: Policed
) -> None:
    pods = f"{policed.core}/pods"
    pod_cluster.create(pods, PEER)
    peer = pod_cluster.wait(pods, "peer", is_ready)["status"]["podIP"]
    pod_cluster.create(pods, WAITING.format(peer=peer))
    pod_cluster.wait(pods, "waiting", is_ready)
    pod_cluster.create(policed.policies, POLICY)
    assert policed.reached_by("stranger") == (False, False)
    pod_cluster.inside("curl", "-sS", "-m", "30", f"http://{peer}:9000/")
    pod_cluster.wait(pods, "waiting", phase_is("Succeeded"))
    assert pod_cluster.log(policed.core.rpartition("/")[2], "waiting", "main").strip() == "answer"
