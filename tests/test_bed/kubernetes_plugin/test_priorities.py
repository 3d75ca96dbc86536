"""Servers of several models on one node, placed by the real scheduler: none is ended for another one."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes_api import ApiServer, need_definitions
from kubernetes_control_plane import ControlPlane
from kubernetes_pods import make_node, patch_node
from llmd_oke.config import validate
from llmd_oke.testing import render
from stack_files import model, stack

pytestmark = pytest.mark.rehearsal

SHAPE = "BM.GPU.MI300X.8"
LIMIT_S = 30
NUMBERS = itertools.count()
"""A namespace and a node for each test: what is deleted goes slowly."""
KINDS = ("Namespace", "ServiceAccount", "PriorityClass")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class OneNode:
    """A cluster whose only GPUs are the eight of one node, which has the name of the test's namespace."""

    server: ApiServer
    name: str

    def pods(self) -> list[dict[str, Any]]:
        return self.server.client.get(f"/api/v1/namespaces/{self.name}/pods").raise_for_status().json()["items"]

    def wait(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The pods as soon as they are as they should be: looked at whenever one of them changes."""
        parameters = {"watch": "1", "timeoutSeconds": str(LIMIT_S)}
        with self.server.client.stream("GET", f"/api/v1/namespaces/{self.name}/pods", params=parameters) as events:
            for _ in events.iter_lines():
                if condition(seen := self.pods()):
                    return seen
        raise AssertionError(f"not so after {LIMIT_S} s: {self.pods()}")

    def models(self) -> dict[str, dict[str, Any]]:
        """The Deployments of two models whose servers need twelve GPUs: of one GPU and of four. What they need beside
        is applied.
        """
        small, large = model("agg-tp1-8r", name="small"), model("agg-tp4-1r", name="large")
        config = stack(small, large, nodes=2, rdma="none", namespace=self.name)
        need_definitions(config["release"])
        rendered = render(validate(config))
        for kind in KINDS:
            for manifest in rendered.manifests():
                if manifest["kind"] == kind and manifest["metadata"]["name"] != "image-pull":
                    self.server.apply(manifest)
        return {name: rendered.kubernetes("Deployment", f"{name}-aggregated") for name in ("small", "large")}

    def fill(self, servers: dict[str, Any]) -> None:
        """Fill the node with eight servers of one GPU."""
        self.server.apply(servers)
        self.wait(lambda seen: sum(pod["spec"].get("nodeName") == self.name for pod in seen) == 8)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[OneNode]:
    name = f"priorities-{next(NUMBERS)}"
    with control_plane.client() as client:
        patch_node(client, "player", {"metadata": {"labels": {INSTANCE_TYPE: None}}})
        room = {"cpu": "224", "memory": "2000Gi", "ephemeral-storage": "10000Gi", "pods": "110", "amd.com/gpu": "8"}
        make_node(client, name, room, **{INSTANCE_TYPE: SHAPE})
        yield OneNode(ApiServer(client), name)
        for path in (f"/api/v1/namespaces/{name}", f"/api/v1/nodes/{name}"):
            client.delete(path)


def unscheduled(pod: dict[str, Any]) -> str | None:
    """Return what the scheduler says of a pod that it finds no place for."""
    conditions = pod.get("status", {}).get("conditions") or []
    verdicts = [item for item in conditions if item["type"] == "PodScheduled" and item["status"] == "False"]
    return verdicts[0].get("message") if verdicts else None


def test_the_pod_of_a_large_model_server_without_room_waits_and_evicts_no_pod(cluster: OneNode):
    models = cluster.models()
    cluster.fill(models["small"])
    cluster.server.apply(models["large"])
    seen = cluster.wait(lambda seen: any(map(unscheduled, seen)))
    (waiting,) = [pod for pod in seen if unscheduled(pod)]
    assert waiting["spec"]["priority"] > max(pod["spec"]["priority"] for pod in seen if pod is not waiting)
    assert "preemptionPolicy=Never" in (unscheduled(waiting) or "")
    assert [pod["metadata"]["name"] for pod in seen if "deletionTimestamp" in pod["metadata"]] == []
    assert "nominatedNodeName" not in waiting["status"]


def test_a_pod_whose_priority_class_permits_preemption_evicts_model_server_pods(cluster: OneNode):
    models = cluster.models()
    cluster.fill(models["small"])
    preempting = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "preempting"},
        "value": 9000,
    }
    cluster.server.apply(preempting)
    models["large"]["spec"]["template"]["spec"]["priorityClassName"] = "preempting"
    cluster.server.apply(models["large"])
    seen = cluster.wait(lambda seen: sum("deletionTimestamp" in pod["metadata"] for pod in seen) == 4)
    assert len(seen) > 8
    cluster.server.client.delete(cluster.server.path(preempting))
