"""Draining of nodes before their instances are ended: nodes are cordoned, and pods evicted through the Eviction API, so
that PodDisruptionBudgets hold. Pods of DaemonSets and static pods stay, as with `kubectl drain`.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
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
from llmd_oke.serving.leader_worker_set import GROUP_LABEL

CORDONED = "llmd-oke/cordoned"
"""Annotation of nodes that the kit has cordoned, so that a later run can uncordon the nodes of a killed run."""

JOIN_S = 3600.0
"""Longest wait in seconds for a node to be Ready after its instance was launched. The kit's own choice: bare metal
boots for 15 minutes."""

POLL_S = 5.0

_PROVIDER = "oci://"
_MIRROR = "kubernetes.io/config.mirror"
_ENDED = ("Succeeded", "Failed")
_GONE, _BUDGET, _SERVER_ERROR = 404, 429, 500
_FAILURES = (ApiError, httpx2.HTTPError, ConfigError, OSError, ValueError)
"""Exceptions of requests to the API server: its refusals, network errors, and errors of the kubeconfig's exec plug-in.
"""

Instances = Mapping[str, str]
"""Names of OCI instances by their OCID."""

Devices = Mapping[str, int]
"""Allocatable quantity of a node's extended resources, by resource name (`amd.com/gpu`)."""

NO_DEVICES: Devices = MappingProxyType({})


def drain_limit_s() -> float:
    """Return the default limit for the draining of a node in seconds: the eviction grace duration of pools with
    cycling.
    """
    return eviction().cycling_grace_minutes * 60.0


@dataclass(frozen=True)
class Drain:
    """Draining of a cluster's nodes within `limit_s` seconds. With `force`, pods that are left after the limit are no
    error, and end with their node.

    `pause` and `clock` are `time.sleep` and `time.monotonic`.
    """

    client: lightkube.Client
    progress: Progress
    limit_s: float
    force: bool = False
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def require_cluster(self) -> None:
        """Require that the API server answers.

        Raises:
            KitError: the API server can't be reached, or refuses the request.
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
        """Drain the nodes of instances, then run the block. Yields the nodes' devices, with the largest quantity of
        each resource on any node. If draining or the block fails, the nodes that still exist are uncordoned.

        Raises:
            KitError: pods are left after `limit_s` and `force` is false, or the API server refuses.
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
            self._tell_groups([_metadata(node.metadata).name for node, _ in nodes])
            self._empty([(node, name) for node, name in nodes if _is_ready(node)])
            most: dict[str, int] = {}
            for node, _ in nodes:
                most |= {name: max(count, most.get(name, 0)) for name, count in _devices(node).items()}
            yield most
        except BaseException:  # also KeyboardInterrupt
            self._take_pods_again(instances)
            raise

    def await_ready(self, instances: Instances, devices: Devices = NO_DEVICES) -> None:
        """Wait until the nodes of these instances are Ready, each with at least `devices`; then uncordon them.

        Raises:
            KitError: a node isn't Ready with these devices after `JOIN_S`.
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
            ready = {
                name
                for node, name in self._nodes(instances)
                if _is_ready(node) and all(_devices(node).get(device, 0) >= count for device, count in devices.items())
            }
        except KitError:
            ready = set[str]()  # the API server may restart meanwhile
        return sorted(set(instances.values()) - ready)

    def _nodes(self, instances: Instances) -> list[tuple[Node, str]]:
        """Return the nodes of these instances, each with the instance's name."""
        try:
            nodes = list(self.client.list(Node))
        except _FAILURES as error:
            raise KitError(f"The cluster's nodes can't be listed: {error}") from error
        return [(node, name) for node in nodes if (name := _instance_name(node, instances))]

    def _take_pods_again(self, instances: Instances) -> None:
        """Uncordon the nodes that the kit has cordoned, not those that other users have."""
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

    def _tell_groups(self, names: Sequence[str]) -> None:
        """Name the servers that span nodes of which these have a part: their controller ends all pods of a group where
        one ends, and makes them anew together.
        """
        groups: dict[str, list[Pod]] = {}
        try:
            for pod in self.client.list(Pod, namespace="*", labels={GROUP_LABEL: None}):
                groups.setdefault(_metadata(pod.metadata).labels[GROUP_LABEL], []).append(pod)
        except _FAILURES as error:
            self.progress.step(f"whether servers span nodes can't be told: {error}")
        for pods in groups.values():
            places = [(pod.spec.nodeName if pod.spec else None) or "no node yet" for pod in pods]
            if set(places) & set(names):
                others = ", ".join(sorted(set(places) - set(names)))
                elsewhere = f"; it has pods on {others} too, which go with it" if others else ""
                members = ", ".join(sorted(map(_full_name, pods)))
                self.progress.step(
                    f"a server that spans nodes ends as a whole and comes back as one ({members}){elsewhere}"
                )

    def _empty(self, nodes: Sequence[tuple[Node, str]]) -> None:
        """Evict the pods of these nodes until none is left, with retries while a PodDisruptionBudget forbids an
        eviction.

        Raises:
            KitError: pods are left after `limit_s` and `force` is false.
        """
        ends_s, ticker = self.clock() + self.limit_s, Ticker(self.progress, clock=self.clock)
        names = [_metadata(node.metadata).name for node, _ in nodes]
        while left := self._evict(names):
            if self.clock() >= ends_s:
                reasons = "; ".join(list(dict.fromkeys(left.values()))[:3])
                of_nodes = f"Pods of {', '.join(name for _, name in nodes)}"
                words = f"{of_nodes} have not ended in {self.limit_s / 60:.0f} minutes: {reasons}"
                if not self.force:
                    remedy = (
                        "Give servers another place, or more time (--drain-limit); --force ends them with their node."
                    )
                    raise KitError(words, remedy)
                self.progress.step(f"{words}; they end with their node (--force)")
                return
            ticker.tell(f"pods left: {len(left)}, such as {next(iter(left.values()))}", "draining")
            self.pause(POLL_S)

    def _evict(self, names: Sequence[str]) -> dict[str, str]:
        """Request the eviction of each pod of these nodes; return the reasons of pods that are still there, by pod."""
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
        """Request the eviction of a pod; return why the pod is still there, empty if it is gone."""
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
    """The fields of an object's metadata that this module reads, without the None that lightkube's types allow."""

    name: str
    namespace: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    ending: bool
    controllers: Sequence[str]


def _metadata(meta: ObjectMeta | None) -> _Metadata:
    metadata = meta or ObjectMeta()
    controllers = [owner.kind for owner in metadata.ownerReferences or () if owner.controller]
    ending = metadata.deletionTimestamp is not None
    annotations = cast("Mapping[str, str]", metadata.annotations or {})
    labels = cast("Mapping[str, str]", metadata.labels or {})
    return _Metadata(metadata.name or "", metadata.namespace or "", annotations, labels, ending, controllers)


def _full_name(pod: Pod) -> str:
    metadata = _metadata(pod.metadata)
    return f"{metadata.namespace}/{metadata.name}"


def _has_to_go(pod: Pod) -> bool:
    metadata = _metadata(pod.metadata)
    ended = pod.status is not None and pod.status.phase in _ENDED
    return not (ended or _MIRROR in metadata.annotations or "DaemonSet" in metadata.controllers)


def _instance_name(node: Node, instances: Instances) -> str:
    """Return the name of a node's instance, by provider ID, or by the node's name if it has no provider ID; empty if
    the node's instance isn't among `instances`.
    """
    identifier = ((node.spec.providerID if node.spec else None) or "").removeprefix(_PROVIDER)
    if identifier:
        return instances.get(identifier, "")
    name = _metadata(node.metadata).name
    return name if name in instances.values() else ""


def _is_ready(node: Node) -> bool:
    conditions = (node.status.conditions if node.status else None) or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def _devices(node: Node) -> Devices:
    """Return a node's allocatable extended resources: those with a slash in their name, unlike Kubernetes' own."""
    allocatable = cast("Mapping[str, str]", (node.status.allocatable if node.status else None) or {})
    counts = {name: int(parse_quantity(text) or 0) for name, text in allocatable.items() if "/" in name}
    return {name: count for name, count in counts.items() if count}


def _cause(error: ApiError) -> str:
    """Return the API server's message, with the causes that name the PodDisruptionBudget."""
    causes = (error.status.details.causes if error.status.details else None) or ()
    messages = [cause.message for cause in causes if cause.message]
    return "; ".join([error.status.message or str(error), *messages])
