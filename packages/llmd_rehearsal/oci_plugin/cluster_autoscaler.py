"""Simulation of OKE's add-on ClusterAutoscaler: adds nodes for unschedulable pods and removes empty nodes.

Like the real add-on it changes the sizes of node pools at OCI, within the limits of its setting `nodes`, and reports by
events and in the ConfigMap `cluster-autoscaler-status`. It never drains nodes, because servers use local storage
(`skipNodesWithLocalStorage`). It counts the GPUs of a joined node before the node advertises them, where the real
add-on may add another node.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Protocol

from llmd_base.records import document
from llmd_oke.values import Entry, entry_reader

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.devices import tolerates
from llmd_rehearsal.kubernetes_plugin.client import ApiError, Cluster, Unreachable
from llmd_rehearsal.oci_plugin.facts import DEFAULT_REGION
from llmd_rehearsal.oci_plugin.nodes import Machines, machine_spec
from llmd_rehearsal.oci_plugin.region import Records, ResourceRecord, WorkRequestFailed
from llmd_rehearsal.plugin_values import JsonObject, dig, dig_list, dig_map
from llmd_rehearsal.pods.environment import quantity

ADD_ON: Final = "ClusterAutoscaler"
STATUS_NAMESPACE: Final = "kube-system"
STATUS_NAME: Final = "cluster-autoscaler-status"
SHORTEST_PAUSE_S: Final = 0.25
"""Shortest wall time in seconds between two evaluations by the simulated cluster autoscaler, whatever the time
scale.
"""
_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}

_log = logging.getLogger(__name__)


class AutoscalerDurations(Entry):
    """Durations of the cluster autoscaler in seconds, from `values/rehearsal/cluster-autoscaler.yaml`: scan interval,
    scale-down delays, and OCI's time to provide a node.
    """

    scan_interval_s: float
    scale_down_unneeded_s: float
    scale_down_delay_after_add_s: float
    provision_s: float


figures = entry_reader("rehearsal", "cluster-autoscaler", AutoscalerDurations)
"""Return the simulated cluster autoscaler's durations, from `values/rehearsal/cluster-autoscaler.yaml`."""


@dataclass(frozen=True)
class NodeGroup:
    """Node pool, identified by its OCID, with its smallest and largest permitted number of nodes."""

    pool_id: str
    least: int
    most: int


@dataclass(frozen=True)
class AutoscalerSettings:
    """Settings from the configuration of the add-on ClusterAutoscaler: the node pools that it scales, and durations in
    seconds.
    """

    groups: tuple[NodeGroup, ...]
    unneeded_s: float
    delay_after_add_s: float


def read_settings(configurations: Mapping[str, str]) -> AutoscalerSettings:
    """Return the settings in the configuration of the add-on ClusterAutoscaler, with the documented defaults for
    missing ones.
    """
    groups = [entry.strip().split(":", 2) for entry in configurations.get("nodes", "").split(",") if entry.strip()]
    return AutoscalerSettings(
        tuple(NodeGroup(pool_id, int(least), int(most)) for least, most, pool_id in groups),
        _duration_s(configurations.get("scaleDownUnneededTime")) or figures().scale_down_unneeded_s,
        _duration_s(configurations.get("scaleDownDelayAfterAdd")) or figures().scale_down_delay_after_add_s,
    )


def _duration_s(text: str | None) -> float:
    """Return the seconds of a duration in Go's notation, such as `1h30m`; 0 for None."""
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text or ""))


@dataclass(frozen=True)
class PodRequest:
    """Resources and scheduling constraints of a pod, by which the cluster autoscaler decides; `node` is empty for a pod
    that isn't bound yet.
    """

    namespace: str
    name: str
    uid: str
    node: str
    requests: Mapping[str, Decimal]
    selector: Mapping[str, str]
    tolerations: Sequence[JsonObject]
    of_daemon_set: bool
    unschedulable: bool


Room = dict[str, Decimal]


def pods_of(objects: Iterable[JsonObject]) -> Iterator[PodRequest]:
    """Yield the pods that occupy resources of a node or wait for a node."""
    for pod in objects:
        if dig(pod, "status", "phase") in {"Succeeded", "Failed"}:
            continue
        owners = {owner.get("kind") for owner in dig_list(pod, "metadata", "ownerReferences")}
        conditions = dig_list(pod, "status", "conditions")
        requests: Room = {}  # a limit without a request counts as a request
        for container in dig_list(pod, "spec", "containers"):
            asked = dig_map(container, "resources", "limits") | dig_map(container, "resources", "requests")
            for resource, amount in asked.items():
                requests[resource] = requests.get(resource, Decimal()) + quantity(amount)
        yield PodRequest(
            namespace=pod["metadata"]["namespace"],
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            node=dig(pod, "spec", "nodeName") or "",
            requests=requests,
            selector=dig_map(pod, "spec", "nodeSelector"),
            tolerations=dig_list(pod, "spec", "tolerations"),
            of_daemon_set="DaemonSet" in owners,
            unschedulable=not dig(pod, "metadata", "deletionTimestamp")
            and any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions),
        )


def room_of(node: NodeConfig) -> Room:
    """Return the resources that pods can request from an empty node, by resource name, with the devices that the node
    advertises once their device plug-in runs.
    """
    return {resource: quantity(amount) for resource, amount in {**node.capacity, **node.devices}.items()}


def without_room(
    pods: Iterable[PodRequest], node: NodeConfig, rooms: Sequence[Room], most: int
) -> tuple[int, list[PodRequest]]:
    """Return the number of nodes like `node` to add for unschedulable pods, at most `most`, and the pods that cause new
    nodes.

    Pods are placed largest first, each on the first node with enough free resources; `rooms` are the free resources of
    existing and arriving nodes.
    """
    free, new, served = [dict(room) for room in rooms], 0, list[PodRequest]()
    for pod in sorted(pods, key=lambda pod: max(pod.requests.values(), default=Decimal()), reverse=True):
        if not waits_for([pod], node):
            continue
        room = next((room for room in free if _fits(pod, room)), None)
        if room is None:
            if new == most:
                continue
            new, room = new + 1, room_of(node)
            free.append(room)
            served.append(pod)
        _take(room, pod)
    return new, served


def waits_for(pods: Iterable[PodRequest], node: NodeConfig) -> bool:
    """Tell whether one of the pods is unschedulable and would fit an empty node like `node`."""
    taints, whole = [taint.model_dump() for taint in node.taints], room_of(node)
    return any(
        pod.unschedulable
        and pod.selector.items() <= node.labels.items()
        and tolerates(pod.tolerations, taints)
        and _fits(pod, whole)
        for pod in pods
    )


def _fits(pod: PodRequest, room: Room) -> bool:
    return all(amount <= room.get(resource, Decimal()) for resource, amount in pod.requests.items())


def _take(room: Room, pod: PodRequest) -> None:
    for resource, amount in pod.requests.items():
        room[resource] = room.get(resource, Decimal()) - amount


class ClusterView(Protocol):
    """Requests to the cluster's API server that the simulated cluster autoscaler makes."""

    def pods(self) -> list[PodRequest]:
        """Return all pods that occupy resources of a node or wait for a node."""
        ...

    def nodes(self) -> set[str]:
        """Return the names of all nodes of the cluster, also of those that no autoscaler manages."""
        ...

    def taint(self, node: str, *, tainted: bool) -> None:
        """Add to a node (`tainted`), or remove from it, the taint by which a cluster autoscaler keeps new pods away
        before it removes the node.
        """
        ...

    def tell_scale_up(self, pod: PodRequest, message: str) -> None:
        """Create an event of an unschedulable pod, which says that nodes were added for it."""
        ...

    def tell_status(self, text: str) -> None:
        """Write `text` into the ConfigMap `cluster-autoscaler-status`, as the real cluster autoscaler does."""
        ...


@dataclass
class _Pool:
    """State of a pool: expected arrivals as (time in seconds, number of nodes), the time since which each empty node is
    empty, and the time of the latest arrival.
    """

    arrivals: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    empty_since: dict[str, float] = field(default_factory=dict[str, float])
    grown_at: float = float("-inf")


class ClusterAutoscalerAddOn:
    """Simulated cluster autoscaler of one OKE cluster. `time_scale` is wall seconds for one second of its durations."""

    def __init__(self, records: Records, machines: Machines, cluster: ClusterView, time_scale: float = 1.0) -> None:
        self._records, self._machines, self._cluster = records, machines, cluster
        self._time_scale = time_scale
        self._settings: AutoscalerSettings | None = None
        self._pools: dict[str, _Pool] = {}
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def configure(self, configurations: Mapping[str, str]) -> None:
        """Start to scale node pools by an add-on's configuration, or continue with a changed configuration."""
        with self._lock:
            self._settings = read_settings(configurations)
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="cluster autoscaler", daemon=True)
                self._thread.start()

    def remove(self) -> None:
        """Stop scaling because the add-on was removed; all node pools keep their sizes."""
        with self._lock:
            self._settings = None

    def end(self) -> None:
        """End the autoscaler's thread; the add-on can't be configured afterwards."""
        self._ended = True
        self._changed.set()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._changed.wait(max(figures().scan_interval_s * self._time_scale, SHORTEST_PAUSE_S)):
            try:
                self.look((time.monotonic() - began) / self._time_scale)
            except (ApiError, Unreachable, WorkRequestFailed) as error:
                _log.warning("cluster autoscaler: %s", error)

    def look(self, now_s: float) -> None:
        """Evaluate the cluster once, at the time `now_s` in seconds of the autoscaler's own clock, and add and remove
        nodes as the pods require.

        Raises:
            ApiError: the API server refused a request.
            Unreachable: the API server doesn't answer.
            WorkRequestFailed: OCI didn't launch a node.
        """
        with self._lock:
            settings = self._settings
        if settings is None:
            return
        for group in settings.groups:
            self._let_arrive(group, now_s)
        pods, nodes = self._cluster.pods(), self._cluster.nodes()
        for group in settings.groups:
            if (record := self._records.get(group.pool_id)) is None:
                continue
            if not self._grow(group, record, pods, now_s):
                self._shrink(group, settings, pods, nodes, now_s)
        self._cluster.tell_status(self._status(settings, nodes))

    def _let_arrive(self, group: NodeGroup, now_s: float) -> None:
        """Launch the machines whose arrival is due. The pool's size at OCI already includes machines that are still to
        arrive.
        """
        pool = self._pools.setdefault(group.pool_id, _Pool())
        arrived = sum(count for at_s, count in pool.arrivals if at_s <= now_s)
        record = self._records.get(group.pool_id)
        if not arrived or record is None:
            return
        pool.arrivals = [(at_s, count) for at_s, count in pool.arrivals if at_s > now_s]
        pool.grown_at = now_s
        size = size_of(record)
        launched = self._machines.converge(
            with_size(record, min(size, len(record.machines) + arrived)), DEFAULT_REGION, None
        )
        self._records.put(with_size(launched, size))

    def _grow(self, group: NodeGroup, record: ResourceRecord, pods: Sequence[PodRequest], now_s: float) -> bool:
        """Request nodes for unschedulable pods; return whether a pod waits for this pool, so that no node may be
        removed.
        """
        pool, spec = self._pools[group.pool_id], machine_spec(record, self._records)
        if spec is None:
            return False
        node, size = spec.node(spec.name, 0, DEFAULT_REGION, record.id), size_of(record)
        rooms = {machine["name"]: room_of(node) for machine in record.machines}
        for pod in pods:
            if pod.node in rooms:
                _take(rooms[pod.node], pod)
        coming = [room_of(node) for _, count in pool.arrivals for _ in range(count)]
        count, served = without_room(pods, node, [*rooms.values(), *coming], max(0, group.most - size))
        count = max(count, group.least - size)  # enforceNodeGroupMinSize
        if count <= 0:
            return waits_for(pods, node)
        self._records.put(with_size(record, size + count))
        pool.arrivals.append((now_s + figures().provision_s, count))
        _log.info("cluster autoscaler: %s %d->%d (max: %d)", group.pool_id, size, size + count, group.most)
        for pod in served:
            message = f"pod triggered scale-up: [{{{group.pool_id} {size}->{size + count} (max: {group.most})}}]"
            self._cluster.tell_scale_up(pod, message)
        return True

    def _shrink(
        self, group: NodeGroup, settings: AutoscalerSettings, pods: Sequence[PodRequest], nodes: set[str], now_s: float
    ) -> None:
        pool, record = self._pools[group.pool_id], self._records.get(group.pool_id)
        if record is None:
            return
        joined = {str(machine["name"]): str(machine["id"]) for machine in record.machines if machine["name"] in nodes}
        empty = joined.keys() - {pod.node for pod in pods if not pod.of_daemon_set}
        pool.empty_since = {name: pool.empty_since.get(name, now_s) for name in empty}
        if pool.arrivals or now_s - pool.grown_at < settings.delay_after_add_s:
            return
        for name in sorted(empty, reverse=True):
            unneeded = now_s - pool.empty_since[name] >= settings.unneeded_s
            if unneeded and size_of(self._records.get(group.pool_id) or record) > group.least:
                self._take_away(group, name, joined[name])

    def _take_away(self, group: NodeGroup, node: str, machine_id: str) -> None:
        """Terminate the machine of a node, unless a pod was bound to the node before the taint took effect."""
        self._cluster.taint(node, tainted=True)
        if any(pod.node == node and not pod.of_daemon_set for pod in self._cluster.pods()):
            self._cluster.taint(node, tainted=False)
            return
        if (record := self._records.get(group.pool_id)) is None:
            return
        self._machines.detach(record, machine_id)
        left = self._records.get(group.pool_id) or record
        self._machines.converge(with_size(left, size_of(record) - 1), DEFAULT_REGION, None)
        self._pools[group.pool_id].empty_since.pop(node, None)
        _log.info("cluster autoscaler: %s is gone from %s", node, group.pool_id)

    def _status(self, settings: AutoscalerSettings, nodes: set[str]) -> str:
        """Return the status in the format of Kubernetes' cluster autoscaler (clusterstate/api), as JSON, which is valid
        YAML.
        """
        groups: list[JsonObject] = []
        for group in settings.groups:
            record, pool = self._records.get(group.pool_id), self._pools[group.pool_id]
            if record is None:
                continue
            ready = sum(machine["name"] in nodes for machine in record.machines)
            health = {
                "status": "Healthy",
                "nodeCounts": {"registered": {"total": ready, "ready": ready}},
                "cloudProviderTarget": size_of(record),
                "minSize": group.least,
                "maxSize": group.most,
            }
            growing = "InProgress" if pool.arrivals else "NoActivity"
            down = {"status": "CandidatesPresent" if pool.empty_since else "NoCandidates"}
            groups.append({"name": group.pool_id, "health": health, "scaleUp": {"status": growing}, "scaleDown": down})
        return json.dumps({"autoscalerStatus": "Running", "nodeGroups": groups}, indent=2)


def size_of(record: ResourceRecord) -> int:
    """Return the number of nodes that a node pool requests."""
    return int(dig(record.state, "nodeConfigDetails", "size") or 0)


def with_size(record: ResourceRecord, size: int) -> ResourceRecord:
    """Return a copy of a node pool's record that requests `size` nodes."""
    details = {**dig_map(record.state, "nodeConfigDetails"), "size": size}
    return replace(record, state={**record.state, "nodeConfigDetails": details})


class ApiClusterView:
    """Requests of the simulated cluster autoscaler to the real API server; `connect` returns a client once a kubeconfig
    exists.
    """

    def __init__(self, connect: Callable[[], Cluster]) -> None:
        self._connect = connect
        self._client: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def pods(self) -> list[PodRequest]:
        """Return all pods that occupy resources of a node or wait for a node."""
        return list(pods_of(self._items("/api/v1/pods")))

    def nodes(self) -> set[str]:
        """Return the names of all nodes of the cluster, also of those that no autoscaler manages."""
        return {node["metadata"]["name"] for node in self._items("/api/v1/nodes")}

    def taint(self, node: str, *, tainted: bool) -> None:
        """Add to a node (`tainted`), or remove from it, the taint by which a cluster autoscaler keeps new pods away
        before it removes the node.
        """
        live: Any = self._cluster.get_path(f"/api/v1/nodes/{node}")
        others = [taint for taint in dig_list(live, "spec", "taints") if taint["key"] != _TAINT]
        own = [{"key": _TAINT, "value": str(int(time.time())), "effect": "NoSchedule"}] if tainted else []
        kind = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        self._cluster.patch(kind, [{"op": "add", "path": "/spec/taints", "value": others + own}])

    def tell_scale_up(self, pod: PodRequest, message: str) -> None:
        """Create an event of an unschedulable pod, which says that nodes were added for it."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        involved = {"kind": "Pod", "apiVersion": "v1", **document("namespace name uid", pod)}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": pod.namespace, "generateName": f"{pod.name}."},
            "involvedObject": involved,
            "type": "Normal",
            "reason": "TriggeredScaleUp",
            "message": message,
            "source": {"component": "cluster-autoscaler"},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        self._cluster.create(event, dry_run=False)

    def tell_status(self, text: str) -> None:
        """Write `text` into the ConfigMap `cluster-autoscaler-status`, as the real cluster autoscaler does."""
        metadata = {"namespace": STATUS_NAMESPACE, "name": STATUS_NAME}
        status = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"status": text}}
        self._cluster.apply(status, manager="cluster-autoscaler", force=True, dry_run=False)

    def _items(self, path: str) -> list[JsonObject]:
        return dig_list(self._cluster.get_path(path), "items")
