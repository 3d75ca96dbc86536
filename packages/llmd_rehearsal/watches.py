"""Local stores of API objects for the node agent, each kept up to date by a watch."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar, cast

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import GlobalResource, NamespacedResourceG
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.resources.core_v1 import Pod
from llmd_base.errors import KitError
from llmd_oke.operations.objects import metadata

_log = logging.getLogger(__name__)
_RETRY_S = (0.1, 0.5, 1.0, 2.0, 5.0)
_LOOKS = 4
"""Pause between two evaluations of changes, as a multiple of the last evaluation's duration: with hundreds of objects,
changes never cease.
"""

Kind = TypeVar("Kind", bound=NamespacedResourceG | GlobalResource)


@dataclass(frozen=True)
class ObjectIdentity:
    """Identity of an API object by namespace, name and uid; an object with the same name may be created later with
    another uid.
    """

    namespace: str
    name: str
    uid: str


def identity(thing: object) -> ObjectIdentity:
    """Return the identity of an API object."""
    meta = metadata(thing)
    return ObjectIdentity(meta.namespace or "", meta.name or "", meta.uid or "")


def spec_of(pod: Pod) -> PodSpec:
    """Return the pod's spec, which the API server always sets although its model is optional."""
    return pod.spec or PodSpec(containers=[])


def is_sidecar(container: Container) -> bool:
    """Tell whether an init container is a native sidecar."""
    return container.restartPolicy == "Always"


def is_ready(pod: Pod) -> bool:
    """Tell whether the pod's status has the condition Ready."""
    conditions = (pod.status.conditions if pod.status else None) or []
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def timestamp(moment: datetime) -> str:
    """Return a UTC time in the format of Kubernetes' `Time`, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectStore(Generic[Kind]):
    """Store of all objects of one kind in all namespaces, as the API server has them.

    `run` lists the objects, follows the watch, and lists again if the watch fails or its resource version has expired.
    Subscribers are called for each change with the object and whether it still exists.
    """

    def __init__(self, client: AsyncClient, kind: type[Kind]) -> None:
        self._client = client
        self._kind = cast("type[NamespacedResourceG]", kind)  # lightkube's types don't allow either scope
        self._namespace = cast("str", "*" if issubclass(kind, NamespacedResourceG) else None)
        self._objects: dict[tuple[str, str], Kind] = {}
        self._subscribers: list[Callable[[Kind, bool], None]] = []
        self._synced = asyncio.Event()

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._objects.values()))

    def get(self, namespace: str, name: str) -> Kind | None:
        """Return the object with this name as the store last saw it; None if there is none."""
        return self._objects.get((namespace, name))

    def subscribe(self, subscriber: Callable[[Kind, bool], None]) -> None:
        """Register a function that is called as `subscriber(object, exists)` for each future change of an object in the
        store.
        """
        self._subscribers.append(subscriber)

    async def synced(self, timeout_s: float = 30.0) -> None:
        """Wait until the store has the API server's first list of objects.

        Raises:
            KitError: the list hasn't arrived after `timeout_s` seconds.
        """
        try:
            await asyncio.wait_for(self._synced.wait(), timeout_s)
        except TimeoutError:
            message = f"the API server gave no list of {self._kind.__name__} within {timeout_s:.0f} s"
            raise KitError(message, "See kube-apiserver.log in the stack's logs folder.") from None

    async def run(self) -> None:
        """Keep the store up to date with the API server until cancelled."""
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                watch = self._client.watch(self._kind, namespace=self._namespace, resource_version=version)
                async for event, thing in watch:
                    self._set(_key(thing), cast("Kind", thing), exists=event != "DELETED")
            except (ApiError, httpx2.HTTPError) as error:
                _log.warning("watch of %s ended: %s", self._kind.__name__, error or type(error).__name__)
                await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1

    async def _list(self) -> str:
        listing = self._client.list(self._kind, namespace=self._namespace)
        objects = {_key(thing): cast("Kind", thing) async for thing in listing}
        for key in self._objects.keys() - objects.keys():
            self._set(key, self._objects[key], exists=False)
        for key, thing in objects.items():
            before = self._objects.get(key)
            if before is None or metadata(before).resourceVersion != metadata(thing).resourceVersion:
                self._set(key, thing, exists=True)
        self._synced.set()
        return listing.resourceVersion

    def _set(self, key: tuple[str, str], thing: Kind, *, exists: bool) -> None:
        if exists:
            self._objects[key] = thing
        else:
            self._objects.pop(key, None)
        for subscriber in self._subscribers:
            subscriber(thing, exists)


class Changes:
    """Signal that API objects have changed, for work that evaluates whole stores and combines many changes."""

    def __init__(self, gather_s: float) -> None:
        """Set the shortest time in seconds for which changes are gathered."""
        self._gather_s = gather_s
        self._noted = asyncio.Event()

    def note(self, *_change: object) -> None:
        """Record that an object has changed; suitable as a subscriber of any store."""
        self._noted.set()

    async def follow(self, look: Callable[[], Awaitable[None]]) -> None:
        """Call `look` now, and again each time that changes were recorded since its last call, until cancelled."""
        while True:
            self._noted.clear()
            started_s = time.monotonic()
            await look()
            took_s = time.monotonic() - started_s
            await self._noted.wait()
            await asyncio.sleep(max(self._gather_s, _LOOKS * took_s))


def status_code(error: httpx2.HTTPStatusError) -> int | None:
    """Return the HTTP status code of an error response, which may lack a Kubernetes status if the API group isn't
    served yet.
    """
    return error.status.code if isinstance(error, ApiError) else error.response.status_code


def _key(thing: object) -> tuple[str, str]:
    meta = metadata(thing)
    return meta.namespace or "", meta.name or ""
