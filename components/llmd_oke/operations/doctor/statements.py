"""Statements about a stack's objects, one line each: warning events, and states of pods, containers, nodes and Jobs.

They come from the documents of a support archive (`cluster/*.json`). What is over is left out: events of pods that are
ready or gone, events of other objects that are older than `RECENT`, and so old restarts of containers that are ready.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

RECENT = timedelta(minutes=15)

_NOT_TOLD = ("ContainerCreating", "PodInitializing", "Completed")


@dataclass(frozen=True)
class EvidencePlace:
    """Place at which evidence of a fault was found: the file, and the names of its pod, container, node or other object
    as far as they are known.
    """

    path: str
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    node: str | None = None
    other: str | None = None

    @property
    def text(self) -> str:
        """Text for the place: the pod with its container, the node or other object, or else the file's path."""
        pod = f"{self.pod} ({self.container})" if self.pod and self.container else self.pod
        return pod or self.node or self.other or self.path


@dataclass(frozen=True)
class Statement:
    """One line about an object's state or a warning event, with the number of times that it occurred and the
    last time.
    """

    place: EvidencePlace
    line: str
    count: int = 1
    time: str | None = None


class _Object(BaseModel):
    """Part of an object of Kubernetes; what isn't asked for is ignored."""

    model_config = ConfigDict(extra="ignore")


class _Metadata(_Object):
    name: str = ""
    namespace: str | None = None


class _Condition(_Object):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition: str | None = Field(default=None, alias="lastTransitionTime")


class _State(_Object):
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = Field(default=None, alias="exitCode")
    finished: str | None = Field(default=None, alias="finishedAt")


class _States(_Object):
    waiting: _State | None = None
    terminated: _State | None = None


class _Container(_Object):
    name: str = ""
    state: _States | None = None
    last: _States | None = Field(default=None, alias="lastState")


class _Status(_Object):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: tuple[_Condition, ...] | None = None
    init_containers: tuple[_Container, ...] | None = Field(default=None, alias="initContainerStatuses")
    containers: tuple[_Container, ...] | None = Field(default=None, alias="containerStatuses")


class _Spec(_Object):
    node: str | None = Field(default=None, alias="nodeName")


class _Item(_Object):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None

    @property
    def conditions(self) -> tuple[_Condition, ...]:
        return (self.status.conditions if self.status else None) or ()

    def has(self, condition: str) -> bool:
        """Tell whether a condition is true."""
        return any(item.type == condition and item.status == "True" for item in self.conditions)


class _Involved(_Object):
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class _Event(_Object):
    involved: _Involved = Field(alias="involvedObject")
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    last: str | None = Field(default=None, alias="lastTimestamp")
    event_time: str | None = Field(default=None, alias="eventTime")

    @property
    def time(self) -> str | None:
        return self.last or self.event_time


_Kind = TypeVar("_Kind", bound=_Object)


@dataclass(frozen=True)
class Objects:
    """Kubernetes objects of a support archive by document name (`pods`, `nodes`, `jobs`, `warnings`), as plain data."""

    documents: Mapping[str, JsonValue]

    def statements(self, now: datetime) -> Iterator[Statement]:
        """Yield the statements about the objects of all documents; parts that are no objects of Kubernetes are left
        out.
        """
        pods = self._items("pods", _Item)
        for pod in pods:
            yield from _pod_states(pod, now)
        for node in self._items("nodes", _Item):
            place = EvidencePlace("cluster/nodes.json", node=node.metadata.name)
            for item in node.conditions:
                text = _sentence(item.reason, item.message)
                if item.type == "Ready" and item.status != "True":
                    yield Statement(place, text, time=item.last_transition)
                elif item.type != "Ready" and item.status == "True":
                    yield Statement(place, f"{item.type}=True {text}", time=item.last_transition)
        for job in self._items("jobs", _Item):
            place = EvidencePlace("cluster/jobs.json", job.metadata.namespace, other=f"Job {job.metadata.name}")
            for item in job.conditions:
                if item.type == "Failed" and item.status == "True":
                    yield Statement(place, _sentence(item.reason, item.message), time=item.last_transition)
        yield from self._events(pods, now)

    @property
    def nodes_of_pods(self) -> dict[str, str]:
        """Names of the pods' nodes, by pod name."""
        return {pod.metadata.name: pod.spec.node for pod in self._items("pods", _Item) if pod.spec and pod.spec.node}

    def _events(self, pods: list[_Item], now: datetime) -> Iterator[Statement]:
        known = {pod.metadata.name: pod for pod in pods}
        for event in self._items("warnings", _Event):
            involved = event.involved
            place = EvidencePlace("cluster/warnings.json", involved.namespace)
            if involved.kind == "Pod":
                pod = known.get(involved.name or "")
                if pod is None or pod.has("Ready") or (pod.status and pod.status.phase == "Succeeded"):
                    continue
                place = replace(place, pod=involved.name, node=pod.spec.node if pod.spec else None)
            elif _is_old(event.time, now):
                continue
            elif involved.kind == "Node":
                place = replace(place, node=involved.name)
            else:
                place = replace(place, other=f"{involved.kind} {involved.name}")
            yield Statement(place, _sentence(event.reason, event.message), event.count or 1, event.time)

    def _items(self, name: str, kind: type[_Kind]) -> list[_Kind]:
        document = self.documents.get(name)
        items: list[_Kind] = []
        for item in document if isinstance(document, list) else ():
            try:
                items.append(kind.model_validate(item))
            except ValidationError:
                continue
        return items


def _pod_states(pod: _Item, now: datetime) -> Iterator[Statement]:
    own, status, ready = pod.metadata, pod.status, pod.has("Ready")
    if status is None:
        return
    place = EvidencePlace("cluster/pods.json", own.namespace, own.name, node=pod.spec.node if pod.spec else None)
    if status.phase == "Failed":
        yield Statement(place, _sentence(status.reason, status.message))
    for item in pod.conditions:
        if item.type == "PodScheduled" and item.status == "False":
            yield Statement(place, _sentence(item.reason, item.message), time=item.last_transition)
    for container in (*(status.init_containers or ()), *(status.containers or ())):
        for states in (container.state, container.last):
            for state in (states.waiting, states.terminated) if states else ():
                over = ready and state is not None and _is_old(state.finished, now)
                if state and state.reason and state.reason not in _NOT_TOLD and not over:
                    code = f", exit code {state.exit_code}" if state.exit_code is not None else ""
                    line = f"{_sentence(state.reason, state.message)}{code}"
                    yield Statement(replace(place, container=container.name), line, time=state.finished)


def _sentence(reason: str | None, message: str | None) -> str:
    return " ".join(": ".join(filter(None, (reason, message))).split())


def _is_old(time: str | None, now: datetime) -> bool:
    try:
        return time is None or now - datetime.fromisoformat(time) > RECENT
    except (ValueError, TypeError):
        return True
