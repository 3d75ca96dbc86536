"""Readiness and deletion of Kubernetes objects: waits that all depend on shared informers.

One list and watch of a collection, an informer, serves all waits that depend on the collection.
"""

import json
import logging
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx2

from llmd_rehearsal import running_time
from llmd_rehearsal.kubernetes_plugin.client import ApiError, ApiResource, Cluster, Unreachable
from llmd_rehearsal.kubernetes_plugin.objects import (
    SKIP_AWAIT,
    TIMEOUT_SECONDS,
    WAIT_FOR,
    ObjectKind,
    annotation,
    is_annotated_true,
    kind_of_object,
    name_of,
    namespace_of,
    uid_of,
)
from llmd_rehearsal.kubernetes_plugin.readiness import (
    WAITS,
    Readiness,
    ReadinessEvidence,
    Wait,
    WaitLimits,
    awaited_condition,
)
from llmd_rehearsal.plugin_values import JsonObject, dig

POLL_S: Final = 1.0
"""Seconds between two checks whether the engine cancelled a wait for an object."""
WATCH_LIMIT_S: Final = 20
"""Seconds after which the API server ends a watch; an informer without subscribers ends with its watch."""
RETRY_S: Final = 0.5
GATHER_S: Final = 0.005
"""Seconds by which each wait on a collection lengthens the time for which changes are gathered before all these waits
evaluate them: 64 waits that each evaluated every change kept one processor fully busy.
"""
# At a deletion, the real plug-in honours skipAwait only for these kinds.
_DELETE_OBEYS_SKIP: Final = frozenset(
    {"v1/Namespace", "v1/Pod", "apps/v1/DaemonSet", "apps/v1/Deployment", "apps/v1/StatefulSet", "batch/v1/Job"}
)

_log = logging.getLogger(__name__)


class ObjectNotReady(Exception):
    """A wait ended before the object was ready or gone; `live` is the object as last seen, and `reasons` explain the
    failure.
    """

    def __init__(self, live: JsonObject, text: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.live = live
        self.reasons = tuple(reasons)


class Informer:
    """Local copy of one collection of API objects, updated by a watch in a thread as long as the informer has
    subscribers.
    """

    def __init__(self, cluster: Cluster, resource: ApiResource, namespace: str, changed: threading.Event) -> None:
        self._cluster = cluster
        self._resource = resource
        self._namespace = namespace
        self._lock = threading.Lock()
        self._objects: dict[str, JsonObject] = {}
        self._changed_at: dict[str, float] = {}
        self._subscribers = {changed}
        self._ended = False
        self.listed = threading.Event()
        threading.Thread(target=self._run, name=f"informer {resource.plural}", daemon=True).start()

    def subscribe(self, changed: threading.Event) -> bool:
        """Register an event that is set at every change of the collection; return False if the informer has ended
        already.
        """
        with self._lock:
            if not self._ended:
                self._subscribers.add(changed)
            return not self._ended

    def unsubscribe(self, changed: threading.Event) -> None:
        """Remove an event that `subscribe` registered."""
        with self._lock:
            self._subscribers.discard(changed)

    def gather(self, changed: threading.Event, limit_s: float) -> None:
        """Wait for a change of the collection, at most `limit_s` seconds, and after a change for `GATHER_S` seconds
        times the number of subscribers.
        """
        if changed.wait(limit_s):
            time.sleep(GATHER_S * len(self._subscribers))
        changed.clear()

    def one(self, name: str) -> JsonObject | None:
        """Return the object with this name; None if the collection has no such object."""
        with self._lock:
            return self._objects.get(name)

    def all(self) -> list[JsonObject]:
        """Return all objects of the collection."""
        with self._lock:
            return list(self._objects.values())

    def changed_at(self, name: str) -> float | None:
        """Return when the object last changed, in seconds of this process's running time (`running_time.now`); None if
        no change was seen.
        """
        with self._lock:
            return self._changed_at.get(name)

    def _run(self) -> None:
        version = ""
        while True:
            with self._lock:
                self._ended = not self._subscribers
                if self._ended:
                    return
            try:
                version = version or self._list()
                version = self._watch(version)
            except (ApiError, Unreachable, httpx2.TransportError, ValueError) as error:
                _log.info("informer of %s: %s", self._resource.plural, error)
                version = ""
                time.sleep(RETRY_S)

    def _list(self) -> str:
        response = self._cluster.get_path(self._resource.path(self._namespace))
        objects = {name_of(item): item for item in response["items"]}
        with self._lock:
            for name in objects.keys() | self._objects.keys():
                if objects.get(name) != self._objects.get(name):
                    self._changed_at[name] = running_time.now()
            self._objects = objects
        self.listed.set()
        self._notify()
        return response["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> str:
        """Follow one watch to its end and return the resource version to continue from; empty if the collection must be
        listed anew.
        """
        for line in self._cluster.watch(self._resource, self._namespace, version, WATCH_LIMIT_S):
            event: Any = json.loads(line)
            if event["type"] == "ERROR":
                return ""
            obj = event["object"]
            version = obj["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            with self._lock:
                self._changed_at[name_of(obj)] = running_time.now()
                if event["type"] == "DELETED":
                    self._objects.pop(name_of(obj), None)
                else:
                    self._objects[name_of(obj)] = obj
            self._notify()
        return version

    def _notify(self) -> None:
        with self._lock:
            for changed in self._subscribers:
                changed.set()


class Informers:
    """Informers (local copies of collections) of one API server, each started by its first subscription."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._informers: dict[tuple[ApiResource, str], Informer] = {}

    @contextmanager
    def subscribed(
        self, resources: tuple[ApiResource, ...], namespace: str, changed: threading.Event
    ) -> Generator[list[Informer]]:
        """Yield the informers of the collections; `changed` is set at every change in one of the collections."""
        with ExitStack() as stack:
            informers: list[Informer] = []
            for resource in resources:
                key = (resource, namespace if resource.namespaced else "")
                with self._lock:
                    informer = self._informers.get(key)
                    if informer is None or not informer.subscribe(changed):
                        informer = self._informers[key] = Informer(self._cluster, *key, changed)
                stack.callback(informer.unsubscribe, changed)
                informers.append(informer)
            for informer in informers:
                informer.listed.wait(RETRY_S * 10)
            yield informers


@dataclass(frozen=True)
class _PendingWait:
    """Wait in progress, started at the running time `since` in seconds."""

    obj: JsonObject
    previous: JsonObject | None
    wait: Wait
    since: float
    limit_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.since + self.limit_s - running_time.now())

    def quiet_s(self, informers: Sequence[Informer]) -> float | None:
        """Return the seconds since objects with the same name last changed in the collections, or since the wait's
        start if that is later; None if no change was seen.
        """
        changes = [informer.changed_at(name_of(self.obj)) for informer in informers]
        moments = [change for change in changes if change is not None]
        return running_time.now() - max(*moments, self.since) if moments else None


@dataclass(frozen=True)
class Waiter:
    """Waiter until objects of one API server are ready or gone; setting `cancelled` ends all of its waits."""

    cluster: Cluster
    informers: Informers
    limits: WaitLimits = field(default_factory=WaitLimits)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def until_ready(
        self, obj: JsonObject, inputs: JsonObject, previous: JsonObject | None, timeout_s: float
    ) -> JsonObject:
        """Wait until an object is ready and return the live object.

        `obj` is the API server's answer to the preceding write. The time limit in seconds is `timeout_s`, or, if 0, the
        value of an annotation in `inputs`.

        Raises:
            ObjectNotReady: the object failed, the time limit passed, or the wait was cancelled.
        """
        expression = annotation(inputs, WAIT_FOR)
        wait = awaited_condition(expression) if expression else WAITS.get(kind_of_object(obj).id)
        if wait is None or is_annotated_true(inputs, SKIP_AWAIT):
            return obj
        if wait.condition(ReadinessEvidence(obj, previous, settle_s=self.limits.settle_s)).ready:
            return obj
        limit_s = wait.fixed_limit(self.limits) if wait.fixed_limit else self._limit_s(inputs, timeout_s)
        return self._ready(_PendingWait(obj, previous, wait, running_time.now(), limit_s))

    def check(self, live: JsonObject) -> None:
        """Check that an object is ready now.

        Raises:
            ObjectNotReady: the object isn't ready.
        """
        wait = WAITS.get(kind_of_object(live).id)
        if wait is None or not wait.checked_on_read or is_annotated_true(live, SKIP_AWAIT):
            return
        related = self._related(wait.watched, live)
        observation = ReadinessEvidence(live, related=related, quiet_s=self.limits.settle_s, settle_s=0)
        if not wait.condition(observation).ready:
            reasons = self._explained(wait, observation).reasons
            raise ObjectNotReady(live, f"Resource '{name_of(live)}' was created but failed to initialize", reasons)

    def until_gone(self, obj: JsonObject, inputs: JsonObject, timeout_s: float) -> None:
        """Wait until the object is gone, or replaced by another object with the same name.

        Raises:
            ObjectNotReady: the object still exists at the time limit, or the wait was cancelled.
        """
        kind, name = kind_of_object(obj), name_of(obj)
        if kind.id in _DELETE_OBEYS_SKIP and is_annotated_true(inputs, SKIP_AWAIT):
            return
        if self._is_gone(kind, obj):
            return
        ends_at = running_time.now() + self._limit_s(inputs, timeout_s)
        changed = threading.Event()
        with self.informers.subscribed((self.cluster.resource(kind),), namespace_of(obj), changed) as (informer,):
            while True:
                live = informer.one(name)
                if (live is None or uid_of(live) != uid_of(obj)) and self._is_gone(kind, obj):
                    return
                if running_time.now() >= ends_at or self.cancelled.is_set():
                    finalizers: list[str] = dig(live, "metadata", "finalizers") or []
                    reasons = [f"finalizers might be preventing deletion ({', '.join(finalizers)})"]
                    text = f"'{name}' timed out waiting to be deleted"
                    raise ObjectNotReady(live or obj, text, reasons if finalizers else ())
                informer.gather(changed, POLL_S)

    def _is_gone(self, kind: ObjectKind, obj: JsonObject) -> bool:
        try:
            return uid_of(self.cluster.get(kind, namespace_of(obj), name_of(obj))) != uid_of(obj)
        except ApiError as error:
            if error.not_found:
                return True
            raise

    def _limit_s(self, inputs: JsonObject, timeout_s: float) -> float:
        annotated = annotation(inputs, TIMEOUT_SECONDS)
        return timeout_s or (float(annotated) if annotated.isdigit() else self.limits.ready_s)

    def _ready(self, pending: _PendingWait) -> JsonObject:
        obj, wait, changed = pending.obj, pending.wait, threading.Event()
        resource = self.cluster.resource(kind_of_object(obj))
        with self.informers.subscribed((resource, *wait.watched), namespace_of(obj), changed) as informers:
            while True:
                observation = self._observation(pending, informers)
                readiness = wait.condition(observation) if observation else Readiness()
                observation = observation or ReadinessEvidence(obj)
                if readiness.ready:
                    return observation.live
                if readiness.failed:
                    text = f"Resource '{name_of(obj)}' was created but failed to initialize"
                    raise ObjectNotReady(observation.live, text, self._explained(wait, observation).reasons)
                if pending.left_s <= 0:
                    readiness = self._explained(wait, observation)
                    if readiness.ready or readiness.passes_at_limit:
                        return observation.live
                    polled, name = wait.fixed_limit is not None, name_of(observation.live)
                    text = (
                        f"Timeout occurred polling for '{name}'"
                        if polled
                        else f"'{name}' timed out waiting to be Ready"
                    )
                    raise ObjectNotReady(observation.live, text, readiness.reasons)
                if self.cancelled.is_set():
                    text = f'Resource operation was cancelled for "{name_of(obj)}"'
                    raise ObjectNotReady(observation.live, text, readiness.reasons)
                informers[0].gather(changed, min(POLL_S, pending.left_s, readiness.look_again_s or POLL_S))

    def _observation(self, pending: _PendingWait, informers: Sequence[Informer]) -> ReadinessEvidence | None:
        """Return the data to judge an object by; None as long as the informer hasn't seen the latest write."""
        informer, *others = informers
        obj = pending.obj
        live = informer.one(name_of(obj))
        if live is None or uid_of(live) != uid_of(obj) or _version(live) < _version(obj):
            return None
        watched = zip(pending.wait.watched, others, strict=True)
        return ReadinessEvidence(
            live={**live, "apiVersion": obj["apiVersion"], "kind": obj["kind"]},  # items of a list lack both
            previous=pending.previous,
            related={resource.plural: informer.all() for resource, informer in watched},
            quiet_s=pending.quiet_s(others),
            settle_s=self.limits.settle_s,
        )

    def _explained(self, wait: Wait, observation: ReadinessEvidence) -> Readiness:
        """Return the verdict on readiness with additional reasons from the collections in `wait.evidence`."""
        evidence = self._related(wait.evidence, observation.live)
        return wait.condition(replace(observation, related={**observation.related, **evidence}))

    def _related(self, resources: Sequence[ApiResource], live: JsonObject) -> dict[str, list[JsonObject]]:
        paths = {resource.plural: resource.path(namespace_of(live)) for resource in resources}
        return {plural: self.cluster.get_path(path)["items"] for plural, path in paths.items()}


def _version(obj: JsonObject) -> int:
    return int(dig(obj, "metadata", "resourceVersion") or 0)
