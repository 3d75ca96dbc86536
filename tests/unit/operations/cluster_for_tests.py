"""An API server as far as draining asks it: nodes, pods, and budgets that allow evictions or don't."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any

import httpx2
import lightkube
from lightkube.config.kubeconfig import KubeConfig
from listening import Listener
from llmd_oke.operations.draining import Drain

BUDGET = {
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "code": 429,
    "reason": "TooManyRequests",
    "details": {
        "causes": [{"reason": "DisruptionBudget", "message": "The disruption budget decode needs 2 healthy pods"}]
    },
}

KUBECONFIG: dict[str, Any] = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://cluster"}}],
    "users": [{"name": "u", "user": {}}],
}


def node(
    name: str,
    provider_id: str = "",
    *,
    ready: bool = True,
    devices: Mapping[str, str] = MappingProxyType({}),
    **spec: object,
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    provider = {"providerID": provider_id} if provider_id else {}
    status = {"conditions": conditions, "allocatable": dict(devices)}
    return {"metadata": {"name": name}, "spec": {**provider, **spec}, "status": status}


def pod(name: str, on: str, owner: str = "ReplicaSet", phase: str = "Running", **metadata: object) -> dict[str, Any]:
    owners = [{"kind": owner, "name": "o", "uid": "u", "apiVersion": "apps/v1", "controller": True}]
    own = {"name": name, "namespace": "llm-d", "ownerReferences": owners, **metadata}
    return {"metadata": own, "spec": {"nodeName": on, "containers": []}, "status": {"phase": phase}}


@dataclass
class ClusterForTests:
    """A cluster with pods; `kept` are those that a budget keeps, until a time if it is given."""

    nodes: list[dict[str, Any]]
    pods: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    kept: set[str] = field(default_factory=set[str])
    kept_until_s: float = inf
    broken: bool = False
    evicted: list[str] = field(default_factory=list[str])
    history: list[str] = field(default_factory=list[str])
    progress: Listener = field(default_factory=Listener)
    clock_s: float = 0.0

    def drain(self, limit_s: float = 60, *, force: bool = False) -> Drain:
        client = lightkube.Client(
            config=KubeConfig.from_dict(KUBECONFIG).get(), transport=httpx2.MockTransport(self._answer)
        )
        return Drain(client, self.progress, limit_s, force, self._pause, lambda: self.clock_s)

    def is_cordoned(self, name: str) -> bool:
        return bool(self._node(name)["spec"].get("unschedulable"))

    def _pause(self, seconds: float) -> None:
        """Pods that were evicted before are gone after a wait."""
        self.clock_s += seconds
        self.pods = [item for item in self.pods if "deletionTimestamp" not in item["metadata"]]

    def _node(self, name: str) -> dict[str, Any]:
        return next(item for item in self.nodes if item["metadata"]["name"] == name)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if self.broken:
            raise httpx2.ConnectError("connection refused", request=request)
        match request.method, request.url.path.strip("/").split("/")[2:]:
            case "GET", ["nodes"]:
                return httpx2.Response(200, json={"items": self.nodes, "metadata": {}})
            case "GET", ["nodes", _]:
                return httpx2.Response(404, json={"code": 404, "message": "not found"})
            case "GET", ["pods"] if "labelSelector" in request.url.params:
                label = request.url.params["labelSelector"]
                items = [item for item in self.pods if label in item["metadata"].get("labels", {})]
                return httpx2.Response(200, json={"items": items, "metadata": {}})
            case "GET", ["pods"]:
                on = request.url.params["fieldSelector"].partition("=")[2]
                items = [item for item in self.pods if item["spec"]["nodeName"] == on]
                return httpx2.Response(200, json={"items": items, "metadata": {}})
            case "PATCH", ["nodes", name]:
                return httpx2.Response(200, json=self._patched(name, json.loads(request.content)))
            case "POST", ["namespaces", "llm-d", "pods", name, "eviction"]:
                return self._evict(name)
            case unexpected:
                raise AssertionError(unexpected)

    def _patched(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        node = self._node(name)
        for part in ("metadata", "spec"):
            merged = {**node[part], **patch[part]}
            node[part] = {key: value for key, value in merged.items() if value is not None}
        annotations = node["metadata"]["annotations"]
        node["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
        self.history.append(f"{'cordoned' if self.is_cordoned(name) else 'uncordoned'} {name}")
        return node

    def _evict(self, name: str) -> httpx2.Response:
        if name in self.kept and self.clock_s < self.kept_until_s:
            return httpx2.Response(429, json=BUDGET)
        evicted = next(item for item in self.pods if item["metadata"]["name"] == name)
        evicted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.evicted.append(name)
        self.history.append(f"evicted {name}")
        return httpx2.Response(201, json={})
