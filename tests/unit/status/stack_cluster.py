"""An API server that answers as a test wants: the cluster of a small stack, with its servers' counters behind it."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs

import stack_files
import yaml
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_oke.operations.status.status import planned_images
from llmd_oke.planning import Plan
from llmd_oke.program.models import unit_name
from llmd_oke.serving import labels
from typer.testing import Result

NOW = "2026-11-23T02:00:00Z"
LONG_AGO = "2026-11-20T02:00:00Z"
NAMESPACE = "llm-d"
SHAPE = "BM.GPU.MI300X.8"
ADDRESS = "127.0.0.2"
"""Of all pods; nobody listens there, so that they are reached through the API server."""

Object = dict[str, Any]
Run = Callable[..., Result]
Answer = tuple[int, str] | Callable[[], tuple[int, str]]

READY = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}


def symptoms(run: Run, *options: str) -> list[Object]:
    """Return the symptoms that `llmd-oke status` reports as JSON."""
    return json.loads(run("status", "--json", *options).stdout)["symptoms"]


def what(run: Run, *options: str) -> list[str]:
    """The sentences of all symptoms."""
    return [symptom["what"] for symptom in symptoms(run, *options)]


def small_stack(**changes: object) -> Object:
    """One node, two prefill servers and one decode server."""
    return stack_files.stack(stack_files.model("2p-tp1-1d-tp2", slo={"ttftMs": 2000, "itlMs": 25}), nodes=1, **changes)


def node(name: str = "node-0", gpus: int = 8, **spec: object) -> Object:
    own = {"name": name, "creationTimestamp": LONG_AGO, "labels": {"node.kubernetes.io/instance-type": SHAPE}}
    status = {"conditions": [READY], "allocatable": {"amd.com/gpu": str(gpus)}}
    return {"metadata": own, "spec": spec, "status": status}


def pod(name: str, own: Mapping[str, str], images: Mapping[str, str], gpus: int = 0) -> Object:
    request = {"requests": {"amd.com/gpu": str(gpus)}} if gpus else {}
    containers = [{"name": key, "image": image, "resources": request} for key, image in images.items()]
    statuses: list[Object] = [
        {"name": key, "image": image, "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
        for key, image in images.items()
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": dict(own),
            "generateName": f"{name.rpartition('-')[0]}-",
            "creationTimestamp": LONG_AGO,
        },
        "spec": {"nodeName": "node-0", "containers": containers},
        "status": {"phase": "Running", "podIP": ADDRESS, "conditions": [READY], "containerStatuses": statuses},
    }


def deployment(name: str, own: Mapping[str, str], replicas: int) -> Object:
    manager = {"manager": "pulumi-kubernetes", "operation": "Apply", "time": LONG_AGO}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(own), "managedFields": [manager]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {}},
            "template": {"metadata": {"labels": dict(own)}, "spec": {"containers": []}},
        },
        "status": {"readyReplicas": replicas},
    }


@dataclass
class StackCluster:
    """An API server's answers about a stack; `answers` are those to other paths, or in place of a list."""

    plan: Plan
    nodes: list[Object] = field(default_factory=list[Object])
    pods: list[Object] = field(default_factory=list[Object])
    deployments: list[Object] = field(default_factory=list[Object])
    jobs: list[Object] = field(default_factory=list[Object])
    events: list[Object] = field(default_factory=list[Object])
    secrets: list[Object] = field(default_factory=list[Object])
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    asked: list[str] = field(default_factory=list[str])

    def pod(self, part: str) -> Object:
        """The first pod whose name has a part."""
        return next(item for item in self.pods if part in item["metadata"]["name"])

    def deployment(self, part: str) -> Object:
        """The first Deployment whose name has a part."""
        return next(item for item in self.deployments if part in item["metadata"]["name"])

    def counters(self, text: str | Mapping[str, str]) -> None:
        """Have all pods show these counters, or each by a part of its name."""
        for item in self.pods:
            name = item["metadata"]["name"]
            shown = text if isinstance(text, str) else next((told for part, told in text.items() if part in name), "")
            for port in (8000, 8200, 9090):
                self.answers[f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:{port}/proxy/metrics"] = 200, shown

    def answer(self, url: SplitResult) -> tuple[int, str]:
        """Return what is said to a path."""
        self.asked.append(url.geturl())
        place = url.path
        own = self.answers.get(place)
        if own is not None:
            return own() if callable(own) else own
        lists = {
            "/api/v1/nodes": self.nodes,
            "/api/v1/pods": self.pods,
            f"/api/v1/namespaces/{NAMESPACE}/pods": self.pods,
            f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments": self.deployments,
            f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs": self.jobs,
            "/api/v1/events": self.events,
            f"/api/v1/namespaces/{NAMESPACE}/events": self.events,
            f"/api/v1/namespaces/{NAMESPACE}/secrets": self.secrets,
        }
        if place in lists:
            asked = parse_qs(url.query).get("fieldSelector", [""])[0].removeprefix("metadata.name=")
            named = [item for item in lists[place] if item["metadata"].get("name") == asked]
            return 200, json.dumps({"metadata": {}, "items": named if place.endswith("/secrets") else lists[place]})
        if place == "/version":
            return 200, json.dumps({"gitVersion": "v1.34.2"})
        return 404, json.dumps({"kind": "Status", "code": 404, "message": f"{place} is not there"})


@cache
def small_plan() -> Plan:
    """The plan of `small_stack`."""
    return stack_files.plan(*small_stack()["models"], nodes=1)


def cluster_of(plan: Plan) -> StackCluster:
    """The cluster of a plan where all is well."""
    cluster = StackCluster(plan, nodes=[node(f"node-{index}") for index in range(plan.pools[0].size)])
    for group, own, count, images, gpus in _groups(plan):
        cluster.deployments.append(deployment(group, own, count))
        cluster.pods += [pod(f"{group}-abc-{index}", own, images, gpus) for index in range(count)]
    cluster.counters("")
    return cluster


def _groups(plan: Plan) -> Iterable[tuple[str, dict[str, str], int, dict[str, str], int]]:
    planned = planned_images(plan)
    for model in plan.models:
        for unit in model.units:
            name = unit_name(plan, model, unit)
            for role in unit.roles:
                own = labels.model_server(model.name, name, role.role)
                images = {"vllm": planned["vllm"]}
                yield f"{name}-{role.role}", own, role.replicas, images, role.parallelism.gpus
            yield f"{name}-router", labels.router(model.name, name), 2, {"epp": planned["epp"]}, 0
        if plan.front_door is None:
            own = {**labels.front_door_selector(model.name), labels.FRONT_DOOR: "v"}
            yield f"{model.name}-front-door", own, 2, {"envoy": planned["envoy"]}, 0
    if plan.front_door is not None:
        own = {**labels.stack_front_door_selector(), labels.FRONT_DOOR: "v"}
        yield "front-door-v", own, 2, {"envoy": planned["envoy"]}, 0


def _ignore(request: object, client_address: object) -> None:
    """Clients that no longer listen are part of tests."""


@contextmanager
def served(cluster: StackCluster, folder: Path) -> Generator[Path]:
    """Serve a cluster; return a kubeconfig for it."""

    def answer(request: HttpRequest) -> HttpAnswer:
        status, text = cluster.answer(request.url)
        kind = "application/json" if text.startswith("{") else "text/plain"
        return HttpAnswer(status, text.encode(), {"Content-Type": kind})

    with http_server(answer) as server:
        server.handle_error = _ignore
        yield kubeconfig(folder, address_of(server))


def kubeconfig(folder: Path, server: str) -> Path:
    """A kubeconfig that leads to an address; without TLS, clients need not read the machine's authorities."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file = folder / "kubeconfig.yaml"
    file.write_text(yaml.safe_dump(document))
    return file
