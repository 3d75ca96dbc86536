"""Routers as the kit declares them in namespaces of the local cluster, and servers that say what they were sent."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue import Release
from llmd_oke.catalogue.releases import crd_manifests
from llmd_oke.serving import router
from llmd_oke.serving.picker_config import RouterArgs
from llmd_oke.values import module_folder
from pod_cluster import HERE, Object, PodCluster, is_ready, program_of

ROUTER_RELEASES = ("llm-d-0.6.0", "llm-d-0.9.0")
"""Releases whose endpoint pickers (v0.7.1, v0.10.0) tests may find on a machine."""
LONG = "All happy families are alike. " * 100
"""A prompt that is prefilled remotely."""
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
metadata: {{name: {name}, labels: {labels}}}
spec:
  containers:
    - name: vllm
      image: test/bare-python:1
      command: [python, -B, /opt/backend/backend.py]
      env: [{{name: POD_NAME, value: {name}}}, {{name: PORT, value: "{port}"}}]
      readinessProbe: {{httpGet: {{path: /metrics, port: {port}}}, periodSeconds: 1}}
      volumeMounts: [{{name: program, mountPath: /opt/backend}}]
    {sidecar}
  volumes: [{{name: program, configMap: {{name: backend}}}}]
"""


def router_namespace(cluster: PodCluster, name: str, release_name: str) -> Release:
    """Make a namespace in which the definitions of a release are known; skip where its programs are missing."""
    release = catalogue.release(release_name)
    if release is None:
        pytest.skip(f"the catalogue has no {release_name}")
    for program, version in (("envoy", None), ("epp", release.endpoint_picker.program.version)):
        if program_of(program, version) is None:
            pytest.skip(f"no {program} {version or ''} on this machine")
    if not module_folder(release.crds.module, release.crds.version).is_dir():
        pytest.skip(f"the definitions of {release_name} are not on this machine")
    cluster.namespace(name)
    for manifest in crd_manifests(release.crds):
        cluster.define(manifest)
    return release


def mount_program(cluster: PodCluster, namespace: str, name: str, file: str) -> None:
    """Make a ConfigMap with a program of this folder, called `NAME.py`."""
    program = {"metadata": {"name": name}, "data": {f"{name}.py": (HERE / file).read_text()}}
    assert cluster.api.post(f"/api/v1/namespaces/{namespace}/configmaps", json=program).is_success


def backends(cluster: PodCluster, namespace: str, servers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the addresses of servers by their names, with these `labels`, and a `port` and a `sidecar` if they are
    given, as soon as all are ready.
    """
    mount_program(cluster, namespace, "backend", "router_backend.py")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name, given in servers.items():
        values = {"port": 8000, "sidecar": "", **given, "labels": json.dumps(given["labels"])}
        cluster.create(pods, BACKEND.format(name=name, **values))
    return {name: cluster.wait(pods, name, is_ready)["status"]["podIP"] for name in servers}


def route(cluster: PodCluster, namespace: str, release: str, unit: str = "m", **more: Any) -> str:
    """Return the address of a unit's router with these further arguments, once its pods are ready and it answers."""
    required = {"release": release, "namespace": namespace, "model": unit, "unit": unit, "disaggregated": False}
    args, name = cast("RouterArgs", {**required, **more}), f"{unit}-epp"
    replicas = 0
    for manifest in with_few_processors(router.router_manifests(args)):
        response = cluster.api.post(f"/{PLURALS[manifest['kind']].format(namespace)}", json=manifest)
        assert response.is_success, response.text
        replicas = manifest["spec"]["replicas"] if manifest["kind"] == "Deployment" else replicas
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    cluster.wait(deployments, name, lambda made: made.get("status", {}).get("readyReplicas", 0) == replicas)
    address = cluster.get(f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]["clusterIP"]
    again = ("--retry-connrefused", "--retry", "30", "--retry-delay", "1")
    cluster.inside("curl", "-sS", *again, f"http://{address}/")
    return f"{address}:80"


def with_few_processors(manifests: Any) -> list[Object]:
    """The objects, with less processors than a router gets where it serves others than a test."""
    small = json.loads(json.dumps(manifests))
    for manifest in small:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["resources"] = {}
    return small
