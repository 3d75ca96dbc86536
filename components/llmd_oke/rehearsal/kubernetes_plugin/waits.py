"""Waiting until an object is ready, or gone."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from llmd_oke.rehearsal.kubernetes_plugin.client import Cluster, Resource
from llmd_oke.rehearsal.kubernetes_plugin.conditions import WAITS, Limits, Scene, Verdict, Wait
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError
from llmd_oke.rehearsal.kubernetes_plugin.feeds import Feed, Feeds
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind, kind_of_object
from llmd_oke.rehearsal.kubernetes_plugin.objects import (
    SKIP_AWAIT,
    TIMEOUT_SECONDS,
    annotation,
    is_annotated_true,
    name_of,
    namespace_of,
    uid_of,
)
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

LOOK_S: Final = 1.0
"""How often a wait looks whether it was cancelled."""

# At a delete the real plug-in heeds skipAwait for these kinds only.
_DELETE_HEEDS_SKIP: Final = frozenset(
    {"v1/Namespace", "v1/Pod", "apps/v1/DaemonSet", "apps/v1/Deployment", "apps/v1/StatefulSet", "batch/v1/Job"}
)


class NotReady(Exception):
    """A wait that ended without what it waited for; `live` is the object as last seen, `reasons` say more."""

    def __init__(self, live: JsonObject, text: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.live = live
        self.reasons = tuple(reasons)


@dataclass(frozen=True)
class Waiter:
    """Waits for objects of one cluster; `cancelled` ends all of its waits."""

    cluster: Cluster
    feeds: Feeds
    limits: Limits = field(default_factory=Limits)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def until_ready(
        self, obj: JsonObject, inputs: JsonObject, previous: JsonObject | None, timeout_s: float
    ) -> JsonObject:
        """The object once it is ready. Raises NotReady.

        `obj` is what the API server answered to the write that came before; a program asks for a limit by
        `timeout_s` or by an annotation of its `inputs`.
        """
        wait = WAITS.get(kind_of_object(obj).id)
        if wait is None or is_annotated_true(inputs, SKIP_AWAIT):
            return obj
        if wait.condition(Scene(obj, previous, settle_s=self.limits.settle_s)).ready:
            return obj
        limit_s = wait.fixed_limit(self.limits) if wait.fixed_limit else self._limit_s(inputs, timeout_s)
        return self._ready(_Awaited(obj, previous, wait, time.monotonic(), limit_s))

    def check(self, live: JsonObject) -> None:
        """Raises NotReady where a wait for the object wouldn't end now."""
        wait = WAITS.get(kind_of_object(live).id)
        if wait is None or not wait.checked_on_read or is_annotated_true(live, SKIP_AWAIT):
            return
        related = self._related((*wait.watched, *wait.evidence), live)
        verdict = wait.condition(Scene(live, related=related, quiet_s=self.limits.settle_s, settle_s=0))
        if not verdict.ready:
            raise NotReady(live, f"Resource '{name_of(live)}' was created but failed to initialize", verdict.reasons)

    def until_gone(self, obj: JsonObject, inputs: JsonObject, timeout_s: float) -> None:
        """Returns once the object is gone. Raises NotReady."""
        kind = kind_of_object(obj)
        if kind.id in _DELETE_HEEDS_SKIP and is_annotated_true(inputs, SKIP_AWAIT):
            return
        if self._is_gone(kind, obj):
            return
        ends_at = time.monotonic() + self._limit_s(inputs, timeout_s)
        news = threading.Event()
        with self.feeds.following((self.cluster.resource(kind),), namespace_of(obj), news) as (feed,):
            while True:
                seen = feed.one(name_of(obj))
                if (seen is None or uid_of(seen) != uid_of(obj)) and self._is_gone(kind, obj):
                    return
                if time.monotonic() >= ends_at or self.cancelled.is_set():
                    raise NotReady(seen or obj, f"'{name_of(obj)}' timed out waiting to be deleted", _finalizers(seen))
                news.wait(LOOK_S)
                news.clear()

    def _is_gone(self, kind: Kind, obj: JsonObject) -> bool:
        try:
            return uid_of(self.cluster.get(kind, namespace_of(obj), name_of(obj))) != uid_of(obj)
        except ApiError as error:
            if error.not_found:
                return True
            raise

    def _limit_s(self, inputs: JsonObject, timeout_s: float) -> float:
        asked = annotation(inputs, TIMEOUT_SECONDS)
        return timeout_s or (float(asked) if asked.isdigit() else self.limits.ready_s)

    def _ready(self, awaited: "_Awaited") -> JsonObject:
        obj, news = awaited.obj, threading.Event()
        own = self.cluster.resource(kind_of_object(obj))
        with self.feeds.following((own, *awaited.wait.watched), namespace_of(obj), news) as feeds:
            while True:
                scene = self._scene(awaited, feeds)
                verdict = awaited.wait.condition(scene) if scene else Verdict()
                live = scene.live if scene else obj
                if verdict.ready:
                    return live
                if verdict.failed:
                    text = f"Resource '{name_of(obj)}' was created but failed to initialize"
                    raise NotReady(live, text, self._explained(awaited, scene or Scene(obj)).reasons)
                if awaited.is_over:
                    return self._at_limit(awaited, scene or Scene(obj))
                if self.cancelled.is_set():
                    raise NotReady(live, f'Resource operation was cancelled for "{name_of(obj)}"', verdict.reasons)
                news.wait(min(LOOK_S, awaited.left_s, verdict.look_again_s or LOOK_S))
                news.clear()

    def _scene(self, awaited: "_Awaited", feeds: Sequence[Feed]) -> Scene | None:
        """What there is to judge by; None as long as the feed hasn't seen the last write."""
        own, *others = feeds
        obj = awaited.obj
        live = own.one(name_of(obj))
        if live is None or uid_of(live) != uid_of(obj) or _version(live) < _version(obj):
            return None
        related = {resource.plural: feed.all() for resource, feed in zip(awaited.wait.watched, others, strict=True)}
        return Scene(
            live=_typed(live, obj),
            previous=awaited.previous,
            related=related,
            quiet_s=awaited.quiet_s(others),
            settle_s=self.limits.settle_s,
        )

    def _at_limit(self, awaited: "_Awaited", scene: Scene) -> JsonObject:
        verdict = self._explained(awaited, scene)
        if verdict.ready or verdict.passes_at_limit:
            return scene.live
        name = name_of(scene.live)
        polled = awaited.wait.fixed_limit is not None
        text = f"Timeout occurred polling for '{name}'" if polled else f"'{name}' timed out waiting to be Ready"
        raise NotReady(scene.live, text, verdict.reasons)

    def _explained(self, awaited: "_Awaited", scene: Scene) -> Verdict:
        """The verdict with what its evidence adds."""
        evidence = self._related(awaited.wait.evidence, scene.live)
        return awaited.wait.condition(replace(scene, related={**scene.related, **evidence}))

    def _related(self, resources: Sequence[Resource], live: JsonObject) -> dict[str, list[JsonObject]]:
        paths = {resource.plural: resource.path(namespace_of(live)) for resource in resources}
        return {plural: self.cluster.get_path(path)["items"] for plural, path in paths.items()}


@dataclass(frozen=True)
class _Awaited:
    """One wait under way. `since` is on the monotonic clock."""

    obj: JsonObject
    previous: JsonObject | None
    wait: Wait
    since: float
    limit_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.since + self.limit_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def quiet_s(self, feeds: Sequence[Feed]) -> float | None:
        """How long the object's namesakes in the feeds are as they are, as far as this wait saw."""
        changes = [feed.changed_at(name_of(self.obj)) for feed in feeds]
        known = [change for change in changes if change is not None]
        return time.monotonic() - max(*known, self.since) if known else None


def _version(obj: JsonObject) -> int:
    return int(dig(obj, "metadata", "resourceVersion") or 0)


def _typed(item: JsonObject, like: JsonObject) -> JsonObject:
    """Items of a list lack what they are."""
    return {**item, "apiVersion": like["apiVersion"], "kind": like["kind"]}


def _finalizers(obj: JsonObject | None) -> list[str]:
    finalizers: list[str] = dig(obj, "metadata", "finalizers") or []
    return [f"finalizers might be preventing deletion ({', '.join(finalizers)})"] if finalizers else []
