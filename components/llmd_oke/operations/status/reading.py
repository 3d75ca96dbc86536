"""Concurrent reads of a stack's objects from its cluster; a failed read doesn't affect the other parts."""

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
from lightkube.resources.core_v1 import Event, Node, Pod, Secret
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from pydantic import BaseModel, TypeAdapter, ValidationError

from llmd_oke.operations.cluster_access import FAILURES, ClusterAccess
from llmd_oke.operations.objects import metadata

LIMIT_S = 20.0
"""Limit in seconds for all reads of a cluster together; each request has 10 s (lightkube's default)."""

REQUEST_TIMEOUT_S = 10.0

_FORBIDDEN = 403
_LONGEST_WHY = 300

Part = TypeVar("Part")
_generic: Any = generic_resource
LeaderWorkerSet: type[GenericNamespacedResource] = _generic.create_namespaced_resource(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", verbs=("get", "list")
)
"""lightkube's class for LeaderWorkerSets, which run servers over several nodes; specs and statuses are mappings."""

Object = TypeVar("Object", Node, Pod, Deployment, GenericNamespacedResource, Job, Event, Secret)


class _List(BaseModel):
    items: list[dict[str, Any]]


class _Refusal(BaseModel):
    message: str


_LIST, _REFUSAL, _VERSION = TypeAdapter(_List), TypeAdapter(_Refusal), TypeAdapter(dict[str, str])


class ForbiddenError(KitError):
    """Error for a request that the API server refuses with status 403."""


@dataclass(frozen=True)
class Unread:
    """Placeholder for a part of a stack's status that couldn't be read, with the reason."""

    why: str


class ThreadedRead(Generic[Part]):
    """Read from the cluster in a daemon thread, whose result is abandoned if it takes too long, for example because the
    API server or the kubeconfig's exec plug-in hangs.
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
        """Return the result, or `Unread` with the reason; waits until `moment_s`, in seconds of `time.monotonic`."""
        try:
            return self._future.result(max(0.0, moment_s - time.monotonic()))
        except KitError as error:
            return Unread(error.message)
        except FAILURES as error:
            return Unread(reason(error) if self._future.done() else "no answer in time")


def reason(error: Exception) -> str:
    """Return an exception of a failed request to the API server as text of one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WHY].rstrip(": ")


@dataclass(frozen=True)
class ClusterReading:
    """Objects of a cluster from which a stack's status is determined. Deployments, LeaderWorkerSets and Jobs are those
    of the stack's namespace; pods are those of all namespaces, unless `own_pods_only`, and so are warning events where
    the user may list them. Secrets are those that were asked for and exist.
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
    secrets: tuple[Secret, ...] | Unread = ()

    @property
    def silent(self) -> str | None:
        """Reason why nothing could be read from the cluster; None if at least one part was read."""
        parts = (self.kubernetes, self.nodes, self.pods, self.deployments, self.jobs, self.warnings)
        why = [part.why for part in parts if isinstance(part, Unread)]
        return why[0] if len(why) == len(parts) else None


def read_cluster(
    access: ClusterAccess,
    namespace: str,
    limit_s: float = LIMIT_S,
    *,
    with_sets: bool = False,
    secrets: Iterable[str] = (),
) -> ClusterReading:
    """Read a cluster's objects from the API server, concurrently and within `limit_s` seconds; LeaderWorkerSets only
    with `with_sets`, for stacks that need their controller, and Secrets of the namespace only by the names in
    `secrets`.
    """
    until_s = time.monotonic() + limit_s
    way = ThreadedRead(lambda: access.api("")).until(until_s)

    def ask(read: Callable[[HttpEndpoint], Part]) -> Callable[[], Part | Unread]:
        """Start the read of a part; return a function that waits for the result."""
        match way:
            case Unread() as unread:
                return lambda: unread
            case endpoint:
                return partial(ThreadedRead(partial(read, endpoint)).until, until_s)

    def ask_for(path: str) -> Callable[[], bytes | Unread]:
        return ask(lambda way: get(way, path))

    version, nodes, pods = (
        ask_for("/version"),
        ask_for("/api/v1/nodes"),
        ask(lambda way: _of_all_namespaces(way, "pods", namespace)),
    )
    deployments = ask_for(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    sets = ask_for(f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets") if with_sets else None
    jobs = ask_for(f"/apis/batch/v1/namespaces/{namespace}/jobs")
    warnings = ask(lambda way: _of_all_namespaces(way, "events?fieldSelector=type%3DWarning", namespace)[0])
    by_name = f"/api/v1/namespaces/{namespace}/secrets?fieldSelector=metadata.name%3D"
    named = [ask_for(by_name + name) for name in secrets]
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
        secrets=_together([_objects(answer(), "v1", Secret) for answer in named]),
    )


def _together(lists: Iterable[tuple[Secret, ...] | Unread]) -> tuple[Secret, ...] | Unread:
    """Return the Secrets of all lists, or the first list that couldn't be read."""
    read: list[Secret] = []
    for part in lists:
        if isinstance(part, Unread):
            return part
        read += part
    return tuple(read)


def _of_all_namespaces(way: HttpEndpoint, kind: str, namespace: str) -> tuple[bytes, bool]:
    """Return the list of a kind in all namespaces and False, or, if the user may not list these, that of the stack's
    namespace and True.
    """
    try:
        return get(way, f"/api/v1/{kind}"), False
    except ForbiddenError:
        return get(way, f"/api/v1/namespaces/{namespace}/{kind}"), True


def _objects(content: bytes | Unread, api: str, kind: type[Object]) -> tuple[Object, ...] | Unread:
    """Parse a list of objects. Must be called from one thread only: lightkube's parser crashes the process when several
    threads use it.
    """
    if isinstance(content, Unread):
        return content
    try:
        listed = _LIST.validate_json(content)
        known = (from_dict({**item, "apiVersion": api, "kind": kind.__name__}) for item in listed.items)
        return tuple(item for item in known if isinstance(item, kind))
    except ValueError:  # of pydantic's parser or lightkube's
        return Unread("what answers is no API server")


def _version(content: bytes | Unread) -> str | Unread:
    if isinstance(content, Unread):
        return content
    try:
        return _VERSION.validate_json(content)["gitVersion"]
    except (ValidationError, KeyError):
        return Unread("what answers is no API server")


def get(endpoint: HttpEndpoint, path: str = "") -> bytes:
    """Request a path of an endpoint by GET; return the body.

    Raises:
        KitError: the answer has an error status; the message is the API server's. ForbiddenError for status 403.
        httpx2.HTTPError: the server doesn't answer.
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
    """Return whether a condition of a node or pod is true, its reason and message, and the time of its last transition;
    False, "" and None if the object doesn't have the condition.
    """
    for told in (item.status.conditions if item.status else None) or ():
        if told.type == kind:
            words = ": ".join(filter(None, (told.reason, told.message)))
            return told.status == "True", words, told.lastTransitionTime
    return False, "", None


def containers(pod: Pod) -> Iterable[Container]:
    """Return all containers of a pod, init containers and sidecars included."""
    return [*(pod.spec.initContainers or ()), *pod.spec.containers] if pod.spec else ()


def container_statuses(pod: Pod) -> Iterable[ContainerStatus]:
    """Return the statuses of all containers of a pod, init containers and sidecars included."""
    status = pod.status
    return [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())] if status else ()


def name_of(item: object) -> str:
    """Return the name in an object's metadata."""
    return metadata(item).name or ""


def ended(pod: Pod) -> bool:
    """Return True if all containers of a pod have ended, so that it uses no resources of its node."""
    return pod.status is not None and pod.status.phase in {"Succeeded", "Failed"}


def age_text(since: datetime | None, now: datetime) -> str:
    """Return the time since `since` as text in its largest unit: `3 min`; `unknown` for None."""
    if since is None:
        return "unknown"
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit}"
    return f"{seconds} s"
