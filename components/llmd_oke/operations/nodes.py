"""Nodes of a stack's GPU pools: their replacement in batches, and a change of a pool's size without an update."""

import re
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker

from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.operations.previews import Preview
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import ClientOf, no_client
from llmd_oke.operations.updates import Confirm
from llmd_oke.planning import Plan
from llmd_oke.planning.model_plan import PlannedPool

if TYPE_CHECKING:  # updates don't import lightkube
    from llmd_oke.operations.draining import Drain

_LAUNCH = re.compile(r"(?P<pool>.+)-instance-(?P<index>\d+)-launch")
_STASH = "pulumi:index:Stash"
_NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
_CLUSTER_NETWORK = "oci:Core/clusterNetwork:ClusterNetwork"
_INSTANCE = "oci:Core/instance:Instance"

LAUNCH_S = 7200.0
"""Longest wait for OCI to launch a pool's missing nodes in seconds: `GPU_INSTANCE` of `cluster/provider.py`."""

SCALING_S = 2700.0
"""Longest wait for OCI to change a pool's size in seconds. The kit's own choice: most of the hour that a node may need
to end its pods."""

POLL_S = 15.0

_OF_GPUS = "llmd-oke:index:GpuPool$"
"""Part of the URNs of node pools that a `GpuPool` declares."""

_TRANSIENT = frozenset({"CREATING_IMAGE", "MOVING", "PROVISIONING", "STARTING", "STOPPING", "TERMINATING"}).union(
    {"CREATING", "UPDATING", "DELETING"}
)
"""Transient lifecycle states of instances and of OKE's nodes (OCI API, Instance and Node)."""


@dataclass(frozen=True)
class LaunchedNode:
    """GPU node of a stack.

    `identifier` is the OCID of the instance; `current` is true if the node was launched with the stack file's present
    settings. Otherwise the node is replaced by a replacement of the resources `urns`, or, if `pool` (the OCID of an
    instance pool or of a node pool) is given, by the deletion of the node, after which the pool launches another.
    """

    name: str
    identifier: str
    current: bool
    urns: tuple[str, ...] = ()
    pool: str = ""


def launched_nodes(resources: Sequence[Mapping[str, Any]]) -> list[LaunchedNode]:
    """Return the nodes that the stack's state has as single instances, sorted by pool and index."""
    by_name = {str(resource["urn"]).rpartition("::")[2]: resource for resource in resources}
    nodes: list[tuple[str, int, LaunchedNode]] = []
    for resource in resources:
        name = str(resource["urn"]).rpartition("::")[2]
        match = _LAUNCH.fullmatch(name)
        instance = by_name.get(name.removesuffix("-launch"))
        if resource.get("type") == _STASH and match and instance:
            launch = resource["inputs"].get("input")
            has_it = instance["inputs"].get("metadata") == launch["metadata"]
            current = has_it and resource["outputs"].get("output") == launch
            pool, index = match["pool"], int(match["index"])
            urns = (str(resource["urn"]), str(instance["urn"]))
            nodes.append((pool, index, LaunchedNode(f"{pool}-{index}", str(instance.get("id")), current, urns)))
    return [node for _, _, node in sorted(nodes, key=lambda entry: entry[:2])]


@dataclass(frozen=True)
class ReplaceOptions:
    """Options of a replacement of nodes: batches of `at_once` nodes, which are drained first unless `drain` is None.

    `client` returns a client of OCI; `pause` and `clock` are `time.sleep` and `time.monotonic`.
    """

    at_once: int = 1
    drain: "Drain | None" = None
    client: ClientOf = no_client
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def replace_nodes(
    pulumi: PulumiCli, progress: Progress, confirm: Confirm, names: Sequence[str], how: ReplaceOptions, *, yes: bool
) -> int:
    """Replace nodes: those whose names or OCIDs are in `names`, or, without names, those that aren't current.

    Nodes that an interrupted run has replaced are current, so that the next run continues with the others. Returns an
    exit code, 1 if the user declines.

    Raises:
        KitError: a node doesn't exist, the preview of an update has other changes, a node can't be drained, or its
            replacement isn't there in time.
    """
    resources = pulumi.resources()
    pools = _Pools(resources, progress, how)
    known = [*launched_nodes(resources), *pools.nodes()]
    unknown = sorted(set(names) - {name for node in known for name in (node.name, node.identifier)})
    if unknown:
        listed = ", ".join(node.name for node in known) or "none"
        raise KitError(f"The stack has no GPU node {unknown[0]}.", f"One of: {listed}.")
    chosen = [node for node in known if ({node.name, node.identifier} & set(names) if names else not node.current)]
    others = {node.identifier: node.name for node in known if node.pool and node not in chosen}
    if how.drain and others and not names:  # an interrupted run's last replacement may not be Ready yet
        how.drain.await_ready(others)
    if not chosen:
        progress.step("all nodes were launched as the stack file says")
        return 0
    _refuse_other_changes(pulumi.preview(), [node.urns[1] for node in chosen if node.urns])
    progress.step(f"launching anew, {how.at_once} at a time: {', '.join(node.name for node in chosen)}")
    back = " OCI gets each machine back before it gives another." if any(node.pool for node in chosen) else ""
    if not yes and not confirm(f"Their servers end.{back} Go on?"):
        return 1
    for start in range(0, len(chosen), how.at_once):
        _replace_batch(pulumi, pools, progress, chosen[start : start + how.at_once], how.drain)
    return 0


def _replace_batch(
    pulumi: PulumiCli,
    pools: "_Pools",
    progress: Progress,
    batch: Sequence[LaunchedNode],
    drain: "Drain | None",
) -> None:
    """Drain and end these nodes, and wait until their replacements are Ready with the same devices."""
    names = ", ".join(node.name for node in batch)
    instances = [node for node in batch if node.urns]
    pooled = [node for node in batch if node.pool]
    old = {node.identifier: node.name for node in batch}
    with drain.drained(old) if drain else nullcontext(dict[str, int]()) as devices:
        progress.step(f"launching anew: {names}")
        for node in pooled:
            pools.end(node)
        urns = [urn for node in instances for urn in node.urns]
        if urns and (pulumi.unprotect([node.urns[1] for node in instances]) or pulumi.replace(urns)):
            raise KitError(
                f"Not launched anew: {names}.",
                "`pulumi up` said why. The same command goes on with those that are left.",
            )
    there = [
        node for node in launched_nodes(pulumi.resources()) if node.urns in {instance.urns for instance in instances}
    ]
    there += pools.successors(pooled)
    if drain:
        drain.await_ready({node.identifier: node.name for node in there}, devices)


@dataclass(frozen=True)
class _PoolNow:
    """A pool in OCI: `size` is the requested number of nodes, `count` the actual number, and `nodes` those of them that
    aren't in a transient state.
    """

    name: str
    size: int
    count: int
    nodes: Sequence[LaunchedNode]


class _Pools:
    """Nodes of a stack's cluster networks and GPU node pools, as read from OCI."""

    def __init__(self, resources: Sequence[Mapping[str, Any]], progress: Progress, how: ReplaceOptions) -> None:
        self._progress = progress
        self._how = how
        self._client = cache(how.client)
        self._kinds: dict[str, _InstancePools | _NodePools] = {}
        for resource in resources:
            type_, identifier = resource.get("type"), resource.get("id")
            if type_ == _CLUSTER_NETWORK and identifier:
                network = self._client().get("compute", f"/clusterNetworks/{identifier}")
                self._kinds |= {str(pool["id"]): _InstancePools(self._client) for pool in network["instancePools"]}
            if type_ == _NODE_POOL and identifier and _OF_GPUS in str(resource["urn"]):
                self._kinds[str(identifier)] = _NodePools(self._client)
        self._known: set[str] = set()

    def nodes(self) -> list[LaunchedNode]:
        """Wait until no node of the pools is in a transient state; return all nodes."""
        nodes = [node for pool in self._kinds for node in self._stable_nodes(pool)]
        self._known = {node.identifier for node in nodes}
        return nodes

    def end(self, node: LaunchedNode) -> None:
        """End a node's instance; its pool launches another with the pool's present settings."""
        self._kinds[node.pool].end(node)

    def successors(self, gone: Sequence[LaunchedNode]) -> list[LaunchedNode]:
        """Wait until the replacements of the nodes `gone` run; return the replacements."""
        before, identifiers = self._known, {node.identifier for node in gone}
        pools = dict.fromkeys(node.pool for node in gone)
        nodes = [node for pool in pools for node in self._stable_nodes(pool, identifiers)]
        new = [node for node in nodes if node.identifier not in before]
        self._known = before | {node.identifier for node in new}
        return new

    def _stable_nodes(self, pool_id: str, gone: Set[str] = frozenset()) -> list[LaunchedNode]:
        """Wait until a pool has its requested number of nodes, none in a transient state and none of the OCIDs `gone`;
        return the nodes.

        Raises:
            KitError: the pool isn't complete after `LAUNCH_S`.
        """
        ends_s = self._how.clock() + LAUNCH_S
        ticker = Ticker(self._progress, clock=self._how.clock)
        while True:
            pool = self._kinds[pool_id].read(pool_id)
            running = [node for node in pool.nodes if node.identifier not in gone]
            if len(running) == pool.count >= pool.size:
                return running
            words = f"{len(running)} of {pool.size} instances of {pool.name}"
            if self._how.clock() >= ends_s:
                raise KitError(
                    f"OCI has {words} after {LAUNCH_S / 60:.0f} minutes.",
                    "The console's work requests say what it waits for. The same command goes on from there.",
                )
            ticker.tell(f"OCI has {words}", pool_id)
            self._how.pause(POLL_S)


@dataclass(frozen=True)
class _InstancePools:
    """Instance pools of cluster networks (API reference: GetInstancePool, ListInstancePoolInstances,
    DetachInstancePoolInstance).
    """

    client: Callable[[], OciClient]

    def read(self, pool_id: str) -> _PoolNow:
        """Return an instance pool with its nodes. A node is current if its instance configuration is the pool's."""
        pool = self.client().get("compute", f"/instancePools/{pool_id}")
        path, place = f"/instancePools/{pool_id}/instances", {"compartmentId": pool["compartmentId"]}
        there: Sequence[Mapping[str, Any]] = self.client().get("compute", path, **place)
        nodes = [
            LaunchedNode(
                str(instance.get("displayName") or instance["id"]),
                str(instance["id"]),
                instance["instanceConfigurationId"] == pool["instanceConfigurationId"],
                pool=pool_id,
            )
            for instance in there
            if str(instance["state"]).upper() not in _TRANSIENT
        ]
        return _PoolNow(str(pool.get("displayName") or pool_id), int(pool["size"]), len(there), nodes)

    def end(self, node: LaunchedNode) -> None:
        """Detach an instance and terminate it; the pool keeps its size."""
        body = {"instanceId": node.identifier, "isDecrementSize": False, "isAutoTerminate": True}
        self.client().send("POST", "compute", f"/instancePools/{node.pool}/actions/detachInstance", body)


@dataclass(frozen=True)
class _NodePools:
    """Node pools of OKE (API reference: GetNodePool, DeleteNode; GetInstance for images)."""

    client: Callable[[], OciClient]

    def read(self, pool_id: str) -> _PoolNow:
        """Return a node pool with its nodes. A node is current if it has the pool's Kubernetes version and image: OKE
        states no other launch settings of a node.
        """
        pool = self.client().get("containerengine", f"/nodePools/{pool_id}")
        source: Mapping[str, Any] = pool.get("nodeSourceDetails") or {}
        there = [node for node in pool.get("nodes") or () if node.get("lifecycleState") != "DELETED"]
        nodes: list[LaunchedNode] = []
        for node in there:
            if node.get("lifecycleState") not in _TRANSIENT:
                identifier = str(node["id"])
                current = node.get("kubernetesVersion") == pool.get("kubernetesVersion")
                current = current and self._image(identifier) in {None, source.get("imageId")}
                nodes.append(LaunchedNode(str(node.get("name") or identifier), identifier, current, pool=pool_id))
        return _PoolNow(str(pool.get("name")), int(pool["nodeConfigDetails"]["size"]), len(there), nodes)

    def end(self, node: LaunchedNode) -> None:
        """Delete a node by force, with the pods that are left on it; the pool keeps its size."""
        how = "isDecrementSize=false&overrideEvictionGraceDuration=PT0M&isForceDeletionAfterOverrideGraceDuration=true"
        path = f"/nodePools/{node.pool}/node/{node.identifier}?{how}"
        self.client().send("DELETE", "containerengine", path)

    def _image(self, identifier: str) -> str | None:
        """Return the image's OCID of a node's instance; None if OCI answers 404: the instance is gone, or this user may
        not read it.
        """
        try:
            return str(self.client().get("compute", f"/instances/{identifier}").get("imageId"))
        except OciError as error:
            if error.status != 404:
                raise
            return None


_POOL_JOBS = ("-gate-job", "-acceptance-job")
"""Suffixes of the resource names of Jobs that run for new nodes."""


def _refuse_other_changes(preview: Preview, instances: Sequence[str]) -> None:
    """Refuse a preview with changes other than those of the given instances (URNs) and of the Jobs for new nodes.

    A replacement is an update of the whole stack, in which other changes would be made without a check. An interrupted
    replacement shows as changes of the instances and of the gate's Job.

    Raises:
        KitError: the preview has other changes, or errors.
    """
    others = [
        change.short_name
        for change in preview.effective
        if change.type != _STASH and change.urn not in instances and not change.name.endswith(_POOL_JOBS)
    ]
    if others or preview.errors:
        reasons = "; ".join(preview.errors) or ", ".join(others[:3])
        raise KitError(f"The stack is not as its file says: {reasons}.", "`llmd-oke up` first, then replace nodes.")


_POOL_NAMES = {_NODE_POOL: "name", _CLUSTER_NETWORK: "displayName"}
"""Types of resources that contain a pool's nodes, with the input that has the pool's name. Single instances have the
pool's name in their resource name."""


@dataclass(frozen=True)
class PoolMachines:
    """A resource of a stack's state that contains nodes of a pool: a node pool, a cluster network or an instance."""

    urn: str
    type: str
    identifier: str


def machines(resources: Sequence[Mapping[str, Any]], pool: str) -> list[PoolMachines]:
    """Return the resources of the state that contain the nodes of a pool; empty if the stack created none."""
    instance = re.compile(rf"(.+-)?{re.escape(pool)}-instance-\d+")
    held: list[PoolMachines] = []
    for resource in resources:
        type_, urn = str(resource.get("type")), str(resource["urn"])
        inputs: Mapping[str, Any] = resource.get("inputs") or {}
        named = type_ in _POOL_NAMES and inputs.get(_POOL_NAMES[type_]) == pool
        launched = type_ == _INSTANCE and instance.fullmatch(urn.rpartition("::")[2])
        if (named or launched) and resource.get("id"):
            held.append(PoolMachines(urn, type_, str(resource["id"])))
    return held


def unready_pools(resources: Sequence[Mapping[str, Any]], plan: Plan) -> list[PlannedPool]:
    """Return the plan's pools whose nodes exist, and hence cost money, but haven't passed the node gate or the
    acceptance test.
    """
    passed = {
        str(resource["urn"]).rpartition("::")[2] for resource in resources if not (resource.get("initErrors") or ())
    }
    needed = {pool.name: {f"{pool.name}-gate-job"} for pool in plan.pools}
    for accepted in plan.acceptance:
        needed[accepted.pool.name] |= {f"{accepted.pool.name}-acceptance-job"} if accepted.in_update else set()
    return [pool for pool in plan.pools if machines(resources, pool.name) and not needed[pool.name] <= passed]


def scale_pool(
    pulumi: PulumiCli,
    progress: Progress,
    client: OciClient,
    pool: PlannedPool,
    size: int,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Change the size of a pool of GPU nodes in OCI and in the stack's state, without an update. The next update
    restores the stack file's size, unless the cluster autoscaler changes the pool's size.

    Raises:
        KitError: the stack has no nodes of the pool, the size is larger than the stack file's, OCI refuses, or the size
            isn't reached within `SCALING_S`.
    """
    held = machines(pulumi.resources(), pool.name)
    if not held:
        raise KitError(f"The stack's state has no nodes of {pool.name}.", "There is nothing to scale.")
    if not 0 <= size <= pool.limits.most:
        raise KitError(f"{pool.name} can't have {size} nodes.", f"0 to {pool.limits.most}, as the stack file says.")
    if size and held[0].type == _INSTANCE:
        raise KitError(f"{pool.name} is launched instance by instance.", "0; the next `up` launches them anew.")
    progress.step(f"scaling {pool.name} to {size} nodes")
    for machine in held:
        _request_size(client, machine, size)
    for _ in range(int(SCALING_S / POLL_S)):
        if all(_has_size(client, machine, size) for machine in held):
            break
        pause(POLL_S)
    else:
        raise KitError(
            f"OCI has not scaled {pool.name} to {size} nodes in {SCALING_S / 60:.0f} minutes.",
            "It may go on; the same command looks again. The console's work requests say what it waits for.",
        )
    if pulumi.read([machine.urn for machine in held]):
        raise KitError(f"{pool.name} has {size} nodes, but they can't be read into the state.", "`pulumi refresh`.")


def _request_size(client: OciClient, held: PoolMachines, size: int) -> None:
    """Request another size from OCI (API reference: UpdateNodePool, UpdateClusterNetwork, TerminateInstance)."""
    if held.type == _NODE_POOL:
        body = {"nodeConfigDetails": {"size": size}}
        client.send("PUT", "containerengine", f"/nodePools/{held.identifier}", body)
    elif held.type == _CLUSTER_NETWORK:
        path = f"/clusterNetworks/{held.identifier}"
        pools = client.get("compute", path)["instancePools"]
        client.send("PUT", "compute", path, {"instancePools": [{"id": pool["id"], "size": size} for pool in pools]})
    elif not _has_size(client, held, size):
        client.send("DELETE", "compute", f"/instances/{held.identifier}")


def _has_size(client: OciClient, held: PoolMachines, size: int) -> bool:
    if held.type == _NODE_POOL:
        nodes = client.get("containerengine", f"/nodePools/{held.identifier}").get("nodes") or ()
        return sum(node.get("lifecycleState") != "DELETED" for node in nodes) == size
    if held.type == _CLUSTER_NETWORK:
        network = client.get("compute", f"/clusterNetworks/{held.identifier}")
        settled = network["lifecycleState"] in {"RUNNING", "STOPPED"}
        return settled and all(pool["size"] == size for pool in network["instancePools"])
    return client.get("compute", f"/instances/{held.identifier}")["lifecycleState"] == "TERMINATED"
