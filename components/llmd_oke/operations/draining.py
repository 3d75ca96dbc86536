"""Draining of nodes before their instances end: they are cordoned, and their pods evicted through the Eviction API, so
that disruption budgets hold. DaemonSets' and static pods stay, as with `kubectl drain`.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import httpx2
import lightkube
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType
from lightkube.utils.quantity import parse_quantity
from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker

from llmd_oke.catalogue.cluster import eviction

CORDONED = "llmd-oke/cordoned"
"""Annotation of nodes that the kit has cordoned, so that a later run takes back what one that was killed left."""

JOIN_S = 3600.0
"""How long is waited for a node to be Ready after its instance was launched; ours, as bare metal boots for a quarter of
an hour."""

POLL_S = 5.0

_PROVIDER = "oci://"
_MIRROR = "kubernetes.io/config.mirror"
_ENDED = ("Succeeded", "Failed")
_GONE, _BUDGET, _SERVER_ERROR = 404, 429, 500
_FAILURES = (ApiError, httpx2.HTTPError, ConfigError, OSError, ValueError)
"""Of the API server, of the way there, and of the kubeconfig's program."""

Instances = Mapping[str, str]
"""The names of instances by their OCIDs."""

Devices = Mapping[str, int]
"""How many of each extended resource a node offers, such as `amd.com/gpu`."""

NO_DEVICES: Devices = MappingProxyType({})


def drain_limit_s() -> float:
    """Return the default limit of draining a node, in seconds: as OKE's where GPU nodes replace each other."""
    return eviction().cycling_grace_minutes * 60.0


@dataclass(frozen=True)
class Drain:
    """Draining of a cluster's nodes within `limit_s` seconds. With `force` what runs on them after that ends with them.

    `pause` and `clock` are those of `time`.
    """

    client: lightkube.Client
    progress: Progress
    limit_s: float
    force: bool = False
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def require_cluster(self) -> None:
        """Make sure that the API server answers.

        Raises:
            KitError: it doesn't; says how.
        """
        try:
            self.client.get(Node, "llmd-oke-answers")
        except ApiError as error:
            if error.status.code != _GONE:
                raise KitError(f"The API server refuses: {error}") from error
        except _FAILURES as error:
            raise KitError(f"The API server can't be reached: {error}") from error

    @contextmanager
    def drained(self, instances: Instances) -> Generator[Devices]:
        """Drain the nodes of instances before the block, which gets the devices that they offer, the most of each.
        Where draining or the block fails, those that are left take pods again.

        Raises:
            KitError: the time is over, or the API server refuses.
        """
        nodes = self._nodes(instances)
        for name in sorted(set(instances.values()) - {name for _, name in nodes}):
            self.progress.step(f"{name} is no node of the cluster: there is nothing to drain")
        try:
            for node, name in nodes:
                limit = f"{self.limit_s / 60:.0f} minutes at most"
                self.progress.step(
                    f"draining {name}, {limit}: it takes no pods any more, those that it has are evicted"
                )
                if not (node.spec and node.spec.unschedulable):
                    self._patch(node, unschedulable=True)
            for name in [name for node, name in nodes if not _is_ready(node)]:
                self.progress.step(f"{name} is not Ready: nothing there can end its pods in peace, they go with it")
            self._empty([(node, name) for node, name in nodes if _is_ready(node)])
            yield _most(_devices(node) for node, _ in nodes)
        except BaseException:  # Ctrl-C gives up too
            self._take_pods_again(instances)
            raise

    def await_ready(self, instances: Instances, devices: Devices = NO_DEVICES) -> None:
        """Wait until these instances are nodes that are Ready, offer so many devices each, and take pods.

        Raises:
            KitError: they are not in time.
        """
        ends_s, ticker = self.clock() + JOIN_S, Ticker(self.progress, clock=self.clock)
        offer = "".join(f" with {count} {name}" for name, count in sorted(devices.items()))
        while missing := self._not_ready(instances, devices):
            if self.clock() >= ends_s:
                raise KitError(
                    f"{', '.join(missing)}: no node is Ready{offer} after {JOIN_S / 60:.0f} minutes.",
                    "The instance's serial console says why it doesn't join. The same command goes on from there.",
                )
            ticker.tell(f"waiting for nodes to be Ready{offer}: {', '.join(missing)}", "joining")
            self.pause(POLL_S)
        self._take_pods_again(instances)

    def _not_ready(self, instances: Instances, devices: Devices) -> list[str]:
        try:
            ready = {name for node, name in self._nodes(instances) if _is_ready(node) and _offers(node, devices)}
        except KitError:
            ready = set[str]()  # the API server may restart meanwhile
        return sorted(set(instances.values()) - ready)

    def _nodes(self, instances: Instances) -> list[tuple[Node, str]]:
        """The nodes that these instances are, with the instances' names."""
        try:
            nodes = list(self.client.list(Node))
        except _FAILURES as error:
            raise KitError(f"The cluster's nodes can't be listed: {error}") from error
        return [(node, name) for node in nodes if (name := _instance_name(node, instances))]

    def _take_pods_again(self, instances: Instances) -> None:
        """Uncordon what the kit has cordoned; what somebody else has stays so."""
        try:
            for node, name in self._nodes(instances):
                if CORDONED in _metadata(node.metadata).annotations:
                    self._patch(node, unschedulable=False)
                    self.progress.step(f"{name} takes pods again")
        except KitError as error:
            names = ", ".join(instances.values())
            self.progress.step(f"{names} may still be cordoned (`kubectl uncordon` ends it): {error.message}")

    def _patch(self, node: Node, *, unschedulable: bool) -> None:
        annotation = "true" if unschedulable else None
        spec = {"unschedulable": unschedulable or None}
        patch = {"metadata": {"annotations": {CORDONED: annotation}}, "spec": spec}
        try:
            self.client.patch(Node, _metadata(node.metadata).name, patch, patch_type=PatchType.MERGE)
        except _FAILURES as error:
            raise KitError(f"The node {_metadata(node.metadata).name} can't be changed: {error}") from error

    def _empty(self, nodes: Sequence[tuple[Node, str]]) -> None:
        """Evict pods until none is left, again and again where a budget does not allow it yet."""
        ends_s, ticker = self.clock() + self.limit_s, Ticker(self.progress, clock=self.clock)
        names = [_metadata(node.metadata).name for node, _ in nodes]
        while left := self._evict(names):
            if self.clock() >= ends_s:
                self._end_anyway(left, [name for _, name in nodes])
                return
            ticker.tell(f"pods left: {len(left)}, such as {next(iter(left.values()))}", "draining")
            self.pause(POLL_S)

    def _end_anyway(self, left: Mapping[str, str], names: Sequence[str]) -> None:
        reasons = "; ".join(list(dict.fromkeys(left.values()))[:3])
        words = f"Pods of {', '.join(names)} have not ended in {self.limit_s / 60:.0f} minutes: {reasons}"
        if not self.force:
            remedy = "Give servers another place, or more time (--drain-limit); --force ends them with their node."
            raise KitError(words, remedy)
        self.progress.step(f"{words}; they end with their node (--force)")

    def _evict(self, names: Sequence[str]) -> dict[str, str]:
        """Ask for each pod of these nodes to go; return why those that are left are still there, by pod."""
        left: dict[str, str] = {}
        for name in names:
            try:
                pods = list(self.client.list(Pod, namespace="*", fields={"spec.nodeName": name}))
            except _FAILURES as error:
                left[name] = f"the API server does not answer: {error}"
                continue
            for pod in filter(_has_to_go, pods):
                if reason := self._request_eviction(pod):
                    left[_full_name(pod)] = reason
        return left

    def _request_eviction(self, pod: Pod) -> str:
        """Ask for the eviction of a pod; return why it is still there, empty where it is gone."""
        metadata = _metadata(pod.metadata)
        if metadata.ending:
            return f"{_full_name(pod)} is ending"
        try:
            body = Pod.Eviction(metadata=ObjectMeta(name=metadata.name, namespace=metadata.namespace))
            self.client.create(body, metadata.name, namespace=metadata.namespace)
        except ApiError as error:
            if error.status.code == _GONE:
                return ""
            if error.status.code == _BUDGET or (error.status.code or 0) >= _SERVER_ERROR:
                return f"{_full_name(pod)}: {_cause(error)}"
            raise KitError(f"{_full_name(pod)} can't be evicted: {error}", "May this user create evictions?") from error
        except _FAILURES as error:
            return f"{_full_name(pod)}: the API server does not answer: {error}"
        return f"{_full_name(pod)} is ending"


@dataclass(frozen=True)
class _Metadata:
    """Fields of an object's metadata that are read, of which lightkube says that all may be missing."""

    name: str
    namespace: str
    annotations: Mapping[str, str]
    ending: bool
    controllers: Sequence[str]


def _metadata(meta: ObjectMeta | None) -> _Metadata:
    metadata = meta or ObjectMeta()
    controllers = [owner.kind for owner in metadata.ownerReferences or () if owner.controller]
    ending = metadata.deletionTimestamp is not None
    annotations = cast("Mapping[str, str]", metadata.annotations or {})
    return _Metadata(metadata.name or "", metadata.namespace or "", annotations, ending, controllers)


def _full_name(pod: Pod) -> str:
    metadata = _metadata(pod.metadata)
    return f"{metadata.namespace}/{metadata.name}"


def _has_to_go(pod: Pod) -> bool:
    metadata = _metadata(pod.metadata)
    ended = pod.status is not None and pod.status.phase in _ENDED
    return not (ended or _MIRROR in metadata.annotations or "DaemonSet" in metadata.controllers)


def _instance_name(node: Node, instances: Instances) -> str:
    """The name of the instance that a node is, by its provider ID or, where it has none, by its name."""
    identifier = ((node.spec.providerID if node.spec else None) or "").removeprefix(_PROVIDER)
    if identifier:
        return instances.get(identifier, "")
    name = _metadata(node.metadata).name
    return name if name in instances.values() else ""


def _is_ready(node: Node) -> bool:
    conditions = (node.status.conditions if node.status else None) or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def _devices(node: Node) -> Devices:
    """The extended resources that a node offers; Kubernetes gives all of its own names without a slash."""
    allocatable = cast("Mapping[str, str]", (node.status.allocatable if node.status else None) or {})
    counts = {name: int(parse_quantity(text) or 0) for name, text in allocatable.items() if "/" in name}
    return {name: count for name, count in counts.items() if count}


def _offers(node: Node, devices: Devices) -> bool:
    """Tell whether a node offers at least so many of each."""
    there = _devices(node)
    return all(there.get(name, 0) >= count for name, count in devices.items())


def _most(offers: Iterable[Devices]) -> Devices:
    """The most of each."""
    most: dict[str, int] = {}
    for offer in offers:
        most |= {name: max(count, most.get(name, 0)) for name, count in offer.items()}
    return most


def _cause(error: ApiError) -> str:
    """Kubernetes' own words, with the budget that does not allow it."""
    causes = (error.status.details.causes if error.status.details else None) or ()
    messages = [cause.message for cause in causes if cause.message]
    return "; ".join([error.status.message or str(error), *messages])
