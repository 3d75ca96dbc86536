"""A router's objects as the kit declares them, with the real endpoint picker and the real Envoy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue import Release
from llmd_oke.catalogue.releases import crd_manifests
from llmd_oke.serving import labels, picker_config, router
from llmd_oke.values import module_folder
from pod_cluster import HERE, Object, PodCluster, is_ready, program_of

pytestmark = pytest.mark.rehearsal

LONG = "All happy families are alike. " * 100
ROLES = {"prefill": 1, "decode": 2, "elsewhere": 1}
PLURALS = {
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Service": "api/v1/namespaces/{}/services",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "InferencePool": "apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools",
    "InferenceObjective": "apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferenceobjectives",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
BACKEND = """
metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}
spec:
  containers:
    - name: vllm
      image: test/bare-python:1
      command: [python, -B, /opt/backend/backend.py]
      env: [{{name: POD_NAME, value: {name}}}]
      readinessProbe: {{httpGet: {{path: /metrics, port: 8000}}, periodSeconds: 1}}
      volumeMounts: [{{name: program, mountPath: /opt/backend}}]
  volumes: [{{name: program, configMap: {{name: backend}}}}]
"""


@dataclass(frozen=True)
class RouterCluster:
    """A router with its model servers, in a namespace of its own."""

    cluster: PodCluster
    namespace: str
    replicas: int
    address: str
    elsewhere: str
    """A server that is none of the pool's."""
    prefills_all: bool
    """Whether short prompts too are prefilled remotely."""

    def ask(self, prompt: str, headers: dict[str, str]) -> tuple[int, Object]:
        """Return what a client gets for a prompt."""
        words = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        body = json.dumps({"model": "m", "prompt": prompt})
        text = self.cluster.inside(
            *("curl", "-sS", "-m", "60", "-w", "\\n%{http_code}", "-H", "Content-Type: application/json"),
            *(*words, "-d", body, f"http://{self.address}/v1/completions"),
        )
        answer, _, status = text.rpartition("\n")
        return int(status), json.loads(answer) if status == "200" else {"text": answer}

    def pickers(self) -> list[Object]:
        """The pods of the router that are ready."""
        pods = self.cluster.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={labels.ROUTED}=true")["items"]
        return [pod for pod in pods if is_ready(pod)]

    def leader(self) -> str:
        """The pod whose picker decides."""
        leases = self.cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases")["items"]
        holders = [lease["spec"]["holderIdentity"].rpartition("_")[0] for lease in leases]
        return holders[0] if holders else self.pickers()[0]["metadata"]["name"]


def release_of(name: str) -> Release:
    release = catalogue.release(name)
    if release is None:
        pytest.skip(f"the catalogue has no {name}")
    if program_of("epp", release.endpoint_picker.program.version) is None:
        pytest.skip(f"no endpoint picker {release.endpoint_picker.program.version} on this machine")
    if not module_folder(release.crds.module, release.crds.version).is_dir():
        pytest.skip(f"the definitions of {name} are not on this machine")
    return release


GUIDE = {"profile": "prefix-affinity", "decider": "always", "replicas": 1}
"""The router of `stacks/Pulumi.guide.yaml`."""


@pytest.fixture(
    scope="module",
    params=[("llm-d-0.6.0", {}), ("llm-d-0.9.0", {}), ("llm-d-0.9.0", GUIDE)],
    ids=["llm-d-0.6.0", "llm-d-0.9.0", "guide"],
)
def routed(request: pytest.FixtureRequest, pod_cluster: PodCluster) -> RouterCluster:
    if program_of("envoy") is None:
        pytest.skip("no envoy on this machine")
    name, own = request.param
    release = release_of(name)
    namespace = f"{name.replace('.', '-')}{'-guide' if own else ''}"
    core = pod_cluster.namespace(namespace)
    create_definitions(pod_cluster, release)
    program = {"metadata": {"name": "backend"}, "data": {"backend.py": (HERE / "router_backend.py").read_text()}}
    assert pod_cluster.api.post(f"{core}/configmaps", json=program).is_success
    servers = _servers(pod_cluster, namespace)
    args: picker_config.RouterArgs = {
        "release": release.name,
        "namespace": namespace,
        "model": "m",
        "unit": "m",
        "disaggregated": True,
        **own,
    }
    for manifest in with_few_processors(router.router_manifests(args)):
        path = PLURALS[manifest["kind"]].format(namespace)
        response = pod_cluster.api.post(f"/{path}", json=manifest)
        assert response.is_success, response.text
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    replicas = own.get("replicas", release.router.replicas)
    pod_cluster.wait(deployments, "m-epp", lambda d: d.get("status", {}).get("readyReplicas", 0) == replicas)
    service = pod_cluster.get(f"{core}/services/m-epp")["spec"]["clusterIP"]
    pod_cluster.inside(
        "curl", "-sS", "--retry-connrefused", "--retry", "30", "--retry-delay", "1", f"http://{service}:80/"
    )
    return RouterCluster(
        pod_cluster, namespace, replicas, f"{service}:80", servers["elsewhere-0"], own.get("decider") == "always"
    )


def create_definitions(cluster: PodCluster, release: Release) -> None:
    collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for manifest in crd_manifests(release.crds):
        cluster.api.post(collection, json=manifest)
        cluster.wait(collection, manifest["metadata"]["name"], _established)


def _established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _servers(cluster: PodCluster, namespace: str) -> dict[str, str]:
    """Addresses of the model servers, by name."""
    pods, addresses = f"/api/v1/namespaces/{namespace}/pods", {}
    names = [(role, f"{role}-{index}") for role, count in ROLES.items() for index in range(count)]
    for role, name in names:
        inputs = labels.role_selector("m", role) if role != "elsewhere" else {"app": "elsewhere"}
        cluster.create(pods, BACKEND.format(name=name, namespace=namespace, labels=json.dumps(inputs)))
    for _, name in names:
        addresses[name] = cluster.wait(pods, name, is_ready)["status"]["podIP"]
    return addresses


def with_few_processors(manifests: Any) -> list[Object]:
    """The objects, with less processors than a router gets where it serves others than a test."""
    small = json.loads(json.dumps(manifests))
    for manifest in small:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["resources"] = {}
    return small


def test_a_client_cannot_choose_the_server_of_its_request(routed: RouterCluster) -> None:
    status, seen = routed.ask("short", {"x-gateway-destination-endpoint": f"{routed.elsewhere}:8000"})
    assert status == 200, seen
    assert seen["server"].startswith("decode")
    assert seen["headers"]["x-gateway-destination-endpoint"] != f"{routed.elsewhere}:8000"


@pytest.mark.parametrize(
    "header",
    ["x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port"],
)
def test_a_client_cannot_name_a_server_to_the_routing_sidecar(routed: RouterCluster, header: str) -> None:
    status, seen = routed.ask("short", {header: f"{routed.elsewhere}:8000"})
    assert status == 200
    named = seen["headers"].get(header)
    if routed.prefills_all and header == "x-prefiller-host-port":  # the picker's own
        assert not named.startswith(f"{routed.elsewhere}:")
    else:
        assert named is None


def test_the_pickers_prefill_server_header_replaces_the_clients_at_the_sidecar(routed: RouterCluster) -> None:
    status, seen = routed.ask(LONG, {"x-prefiller-host-port": f"{routed.elsewhere}:8000"})
    assert status == 200
    named = seen["headers"]["x-prefiller-host-port"]
    assert named.endswith(":8000")
    assert not named.startswith(f"{routed.elsewhere}:")


def test_every_router_pod_is_ready_whether_its_picker_is_leader_or_not(routed: RouterCluster) -> None:
    assert len(routed.pickers()) == routed.replicas


def test_killing_the_picker_loses_only_requests_in_flight(
    routed: RouterCluster, record_property: Any, tmp_path: Path
) -> None:
    """Later requests are sent on by the other picker. Where there is none, they wait for the next one, and are
    refused by the Service once the pod counts as unready: how many is the machine's to say."""
    program = tmp_path / "load.py"
    program.write_text((HERE / "router_load.py").read_text())
    seen = json.loads(routed.cluster.inside("python3", str(program), routed.address, routed.leader(), "16"))
    killed_s, request = seen["killed_s"], seen["asked"]
    lost = [item for item in request if item["status"] != 200 or not item["whole"]]
    on_their_way = [item for item in request if item["begun_s"] <= killed_s + 0.5 and item["ended_s"] >= killed_s]
    longest_s = max(item["ended_s"] - item["begun_s"] for item in request)
    output = {
        "asked": len(request),
        "lost": len(lost),
        "on their way": len(on_their_way),
        "longest_s": round(longest_s, 1),
    }
    record_property("picker killed", output)
    print(f"picker killed, {routed.replicas} of them: {output}")
    assert len(lost) < len(request) / 2
    if routed.replicas > 1:
        assert [item for item in lost if item not in on_their_way] == []
