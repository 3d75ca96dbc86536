"""Reading of a stack from its cluster, each part by itself: one without an answer takes nothing from the others."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Thread
from typing import Any, Generic, TypeVar

import httpx2
from lightkube import generic_resource
from lightkube.codecs import from_dict
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.models.core_v1 import Container, ContainerStatus
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Node, Pod
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from pydantic import BaseModel, TypeAdapter, ValidationError

from llmd_oke.operations.cluster_access import FAILURES, ClusterAccess
from llmd_oke.operations.objects import metadata

LIMIT_S = 20.0
"""For all that is read of a cluster once; each request has ten seconds (lightkube's own)."""

REQUEST_TIMEOUT_S = 10.0

_FORBIDDEN = 403
_LONGEST_WHY = 300

Part = TypeVar("Part")
_generic: Any = generic_resource
LeaderWorkerSet: type[GenericNamespacedResource] = _generic.create_namespaced_resource(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", verbs=("get", "list")
)
"""Servers that span nodes, by the objects that their controller knows; specs and statuses are maps."""

Object = TypeVar("Object", Node, Pod, Deployment, GenericNamespacedResource, Job, Event)


class _List(BaseModel):
    items: list[dict[str, Any]]


class _Refusal(BaseModel):
    message: str


_LIST, _REFUSAL, _VERSION = TypeAdapter(_List), TypeAdapter(_Refusal), TypeAdapter(dict[str, str])


class ForbiddenError(KitError):
    """The API server knows who asks, and does not let him."""


@dataclass(frozen=True)
class Unread:
    """A part that could not be read, and why."""

    why: str


class ThreadedRead(Generic[Part]):
    """Reading by a thread of its own. It is given up where it takes too long, whatever it waits for: an API server, or
    a program of the kubeconfig that hangs.
    """

    def __init__(self, read: Callable[[], Part]) -> None:
        self._future: Future[Part] = Future()
        Thread(target=self._run, args=(read,), daemon=True).start()

    def _run(self, read: Callable[[], Part]) -> None:
        try:
            self._future.set_result(read())
        except Exception as error:  # `until` raises it
            self._future.set_exception(error)

    def until(self, moment_s: float) -> Part | Unread:
        """Return what was read, or why it wasn't; a moment is one of `time.monotonic`."""
        try:
            return self._future.result(max(0.0, moment_s - time.monotonic()))
        except KitError as error:
            return Unread(error.message)
        except FAILURES as error:
            return Unread(reason(error) if self._future.done() else "no answer in time")


def reason(error: Exception) -> str:
    """Explain in a line why the API server, or something on the way there, gave no answer."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WHY].rstrip(": ")


@dataclass(frozen=True)
class ClusterReading:
    """The parts of a cluster that tell how a stack is. Deployments, LeaderWorkerSets, Jobs and warnings are those of
    its namespace; pods are those of all namespaces, unless `own_pods_only`.
    """

    taken: datetime
    kubernetes: str | Unread
    nodes: tuple[Node, ...] | Unread
    pods: tuple[Pod, ...] | Unread
    own_pods_only: bool
    deployments: tuple[Deployment, ...] | Unread
    leader_worker_sets: tuple[GenericNamespacedResource, ...] | Unread
    jobs: tuple[Job, ...] | Unread
    warnings: tuple[Event, ...] | Unread

    @property
    def silent(self) -> str | None:
        """Reason why nothing of the stack could be read; None where anything could."""
        parts = (self.kubernetes, self.nodes, self.pods, self.deployments, self.jobs, self.warnings)
        why = [part.why for part in parts if isinstance(part, Unread)]
        return why[0] if len(why) == len(parts) else None


def read_cluster(
    access: ClusterAccess, namespace: str, limit_s: float = LIMIT_S, *, over_nodes: bool = False
) -> ClusterReading:
    """All parts, side by side, within a limit; LeaderWorkerSets where servers span nodes (`over_nodes`)."""
    until_s = time.monotonic() + limit_s
    way = ThreadedRead(lambda: access.api("")).until(until_s)

    def ask(read: Callable[[HttpEndpoint], Part]) -> Callable[[], Part | Unread]:
        """Begin to read a part; return a function that waits for it."""
        match way:
            case Unread() as unread:
                return lambda: unread
            case endpoint:
                return partial(ThreadedRead(partial(read, endpoint)).until, until_s)

    def ask_for(path: str) -> Callable[[], bytes | Unread]:
        return ask(lambda way: get(way, path))

    version, nodes, pods = ask_for("/version"), ask_for("/api/v1/nodes"), ask(lambda way: _pods(way, namespace))
    deployments = ask_for(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    sets = ask_for(f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets") if over_nodes else None
    jobs = ask_for(f"/apis/batch/v1/namespaces/{namespace}/jobs")
    warnings = ask_for(f"/api/v1/namespaces/{namespace}/events?fieldSelector=type%3DWarning")
    listed = pods()
    return ClusterReading(
        taken=datetime.now(UTC),
        kubernetes=_version(version()),
        nodes=_objects(nodes(), "v1", Node),
        pods=listed if isinstance(listed, Unread) else _objects(listed[0], "v1", Pod),
        own_pods_only=not isinstance(listed, Unread) and listed[1],
        deployments=_objects(deployments(), "apps/v1", Deployment),
        leader_worker_sets=_objects(sets(), "leaderworkerset.x-k8s.io/v1", LeaderWorkerSet) if sets else (),
        jobs=_objects(jobs(), "batch/v1", Job),
        warnings=_objects(warnings(), "v1", Event),
    )


def _pods(way: HttpEndpoint, namespace: str) -> tuple[bytes, bool]:
    """The pods of all namespaces, or those of the stack's own where the user may list no others, and which."""
    try:
        return get(way, "/api/v1/pods"), False
    except ForbiddenError:
        return get(way, f"/api/v1/namespaces/{namespace}/pods"), True


def _objects(content: bytes | Unread, api: str, kind: type[Object]) -> tuple[Object, ...] | Unread:
    """The objects of a list. One thread reads them: what lightkube reads them with ends a process where several do."""
    if isinstance(content, Unread):
        return content
    try:
        listed = _LIST.validate_json(content)
        known = (from_dict({**item, "apiVersion": api, "kind": kind.__name__}) for item in listed.items)
        return tuple(item for item in known if isinstance(item, kind))
    except ValueError:  # of both readers
        return Unread("what answers is no API server")


def _version(content: bytes | Unread) -> str | Unread:
    if isinstance(content, Unread):
        return content
    try:
        return _VERSION.validate_json(content)["gitVersion"]
    except (ValidationError, KeyError):
        return Unread("what answers is no API server")


def get(endpoint: HttpEndpoint, path: str = "") -> bytes:
    """Read what lies at a path behind an address.

    Raises:
        KitError: it is refused; says in the API server's words why.
        httpx2.HTTPError: there is no answer.
    """
    address, verify = endpoint.url + path, endpoint.verify
    answer = httpx2.get(address, headers=dict(endpoint.headers), verify=verify, timeout=REQUEST_TIMEOUT_S)
    if answer.is_success:
        return answer.content
    try:
        message = _REFUSAL.validate_json(answer.content).message
    except ValidationError:
        message = ""
    words = f"HTTP {answer.status_code}{f': {message}' if message else ''}"
    raise ForbiddenError(words) if answer.status_code == _FORBIDDEN else KitError(words)


def condition(item: Node | Pod, kind: str) -> tuple[bool, str, datetime | None]:
    """Return whether a condition is true, what is said of it, and since when; false and silent where it isn't told."""
    for told in (item.status.conditions if item.status else None) or ():
        if told.type == kind:
            words = ": ".join(filter(None, (told.reason, told.message)))
            return told.status == "True", words, told.lastTransitionTime
    return False, "", None


def containers(pod: Pod) -> Iterable[Container]:
    """All containers of a pod, sidecars among them."""
    return [*(pod.spec.initContainers or ()), *pod.spec.containers] if pod.spec else ()


def container_statuses(pod: Pod) -> Iterable[ContainerStatus]:
    """Yield what is known of all containers of a pod."""
    status = pod.status
    return [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())] if status else ()


def name_of(item: object) -> str:
    """An object's name."""
    return metadata(item).name or ""


def ended(pod: Pod) -> bool:
    """Tell whether a pod needs nothing of its node any more."""
    return pod.status is not None and pod.status.phase in {"Succeeded", "Failed"}


def age_text(since: datetime | None, now: datetime) -> str:
    """Write how long ago something was, in its largest unit: `3 min`."""
    if since is None:
        return "unknown"
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit}"
    return f"{seconds} s"
