"""Checks of a preview before its update: resources that would be lost, changes that OKE would refuse, servers to delete
first.

Updates that would delete or replace a cluster or a pool are refused, with the input that causes it, and so are updates
that OKE would refuse half way. The engine creates new resources before it deletes old ones. On nodes without free GPUs,
new servers would wait for the GPUs of old servers until the update fails; so the old servers must be deleted first.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from llmd_base.errors import KitError

from llmd_oke.catalogue.cluster import node_comparison
from llmd_oke.operations.previews import UNKNOWN, Preview, ResourceChange

GUARDED = {
    "oci:ContainerEngine/cluster:Cluster": "cluster",
    "oci:ContainerEngine/nodePool:NodePool": "node pool",
    "oci:Core/clusterNetwork:ClusterNetwork": "cluster network",
    "oci:Core/computeCluster:ComputeCluster": "compute cluster",
    "oci:Core/instance:Instance": "instance",
    "oci:Core/vcn:Vcn": "network",
}
"""Resource types that take hours to create again, or can't be created again when capacity is scarce, with their names
in messages."""


LONGEST_VALUES = 240
"""Largest sum of the lengths of an old and a new value, in characters, at which messages show both."""


UNPROTECT = "To do it all the same: llmd-oke up --allow-replace."


NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"


BOOT_VOLUME = "BOOT_VOLUME_REPLACE"
"""Cycle mode that replaces only the boot volume of each instance (OCI API, NodePoolCyclingDetails)."""


SERVERS = (
    "kubernetes:apps/v1:Deployment",
    "kubernetes:leaderworkerset.x-k8s.io/v1:LeaderWorkerSet",
    "kubernetes:disaggregatedset.x-k8s.io/v1:DisaggregatedSet",
)
"""Resource types of servers."""


GPU = "amd.com/gpu"


@dataclass(frozen=True)
class Displacement:
    """Servers that an update must delete first (`first`), because its new servers need `wanted_gpus` GPUs and only
    `free_gpus` are free.
    """

    first: Sequence[ResourceChange]
    wanted_gpus: int
    free_gpus: int

    def __str__(self) -> str:
        names = ", ".join(change.name for change in self.first)
        return (
            f"new servers want {self.wanted_gpus} GPUs and {self.free_gpus} are free, so {names} must go before they"
            " come: the model is not served meanwhile"
        )


def losses(preview: Preview) -> list[ResourceChange]:
    """Return the resources that an update would delete or replace and that are protected or of a type in `GUARDED`,
    each once.
    """
    lost: dict[str, ResourceChange] = {}
    for change in preview.changes:
        if change.deletes and (change.type in GUARDED or change.protected):
            known = lost.get(change.urn)
            if known is None or (change.replaced_by and not known.replaced_by):
                lost[change.urn] = change
    return list(lost.values())


def refuse_losses(preview: Preview, *, allowed: bool = False) -> None:
    """Refuse a preview that deletes or replaces guarded or protected resources, unless `allowed`.

    Raises:
        KitError: the preview does; the message names each resource, and the input properties that cause the loss.
    """
    lost = losses(preview)
    if lost and not allowed:
        lines = "\n".join(f"  {describe(change)}" for change in lost)
        raise KitError(f"The update would take away what is hard to get back:\n{lines}", UNPROTECT)


def unjudged(preview: Preview, *, allowed: bool = False) -> list[str]:
    """Return a text for each existing guarded resource with inputs that are known only during the update.

    No preview shows whether such inputs replace the resource. The engine replaces no resource that both state and
    program protect (Pulumi 3.250, `step_generator.go`).

    Raises:
        KitError: such a resource isn't protected, and `allowed` is false.
    """
    resources = [change for change in preview.changes if change.type in GUARDED and change.old and change.unknown]
    if not allowed and (open_ended := [_open_inputs(change) for change in resources if not change.stays_protected]):
        lines = "\n".join(f"  {text}" for text in open_ended)
        raise KitError(
            "No preview says whether the update takes away what is hard to get back, and nothing protects it:"
            f"\n{lines}",
            f"An update with `protect: true` before it, or with what these inputs come from alone. {UNPROTECT}",
        )
    return [
        f"{_open_inputs(change)}: {'protected, it stays' if change.stays_protected else 'it may be replaced'}"
        for change in resources
    ]


def _open_inputs(change: ResourceChange) -> str:
    return f"{GUARDED[change.type]} {change.name}, whose {', '.join(change.unknown)} only the update will know"


def refuse_skipped_versions(preview: Preview) -> None:
    """Refuse a preview that upgrades a cluster's control plane by more than one minor version, or downgrades it, as OKE
    would refuse that.

    Raises:
        KitError: the preview does; the message names the cluster, both versions, and the next allowed version.
    """
    for before, after, change in upgrades(preview):
        step = _minor(after) - _minor(before)
        if change.type == "oci:ContainerEngine/cluster:Cluster" and (step > 1 or _numbers(after) < _numbers(before)):
            raise KitError(
                f"OKE can't take the control plane of {change.name} from {before} to {after}: it goes up by one minor"
                " version, and never down.",
                f"cluster.kubernetesVersion: a v1.{_minor(before) + 1} on offer, then on from there; or {before}.",
            )


def upgrades(preview: Preview) -> Iterator[tuple[str, str, ResourceChange]]:
    """Yield old and new Kubernetes version, and the change, of each cluster and pool whose version changes."""
    for change in preview.changes:
        before, after = (inputs.get("kubernetesVersion") for inputs in (change.old, change.new))
        if change.type in GUARDED and isinstance(before, str) and isinstance(after, str) and before != after:
            yield before, after, change


@dataclass(frozen=True)
class Cycle:
    """Replacement of a node pool's nodes, or their boot volumes, by OKE in an update: cycle mode, and the changed
    inputs that cause it.
    """

    pool: ResourceChange
    mode: str
    causes: tuple[str, ...]

    def __str__(self) -> str:
        how = "gets new boot volumes" if self.mode == BOOT_VOLUME else "is replaced by others"
        size = value_at(self.pool.new, "nodeConfigDetails.size")
        return f"node pool {self.pool.name}: each of its {size} nodes {how}, because of {', '.join(self.causes)}"

    @property
    def refused(self) -> list[str]:
        """Changed inputs with which OKE's replacement of the nodes fails half way."""
        facts = node_comparison()
        others = [cause for cause in self.causes if not _is_in(cause, (*facts.boot_volume, *facts.placement))]
        placement = [cause for cause in self.causes if _is_in(cause, facts.placement)]
        return [*placement, *(others if self.mode == BOOT_VOLUME else [])]


def cycles(preview: Preview) -> Iterator[Cycle]:
    """Yield the node pools whose nodes or boot volumes OKE replaces in an update. Inputs that are known only during the
    update aren't among the causes, since no preview shows whether they change.
    """
    for change in preview.changes:
        modes = value_at(change.new, "nodePoolCyclingDetails.cycleModes") or ["INSTANCE_REPLACE"]
        if change.type != NODE_POOL or change.operation != "update":
            continue
        if value_at(change.new, "nodePoolCyclingDetails.isNodeCyclingEnabled") is not True:
            continue
        before, after = _flat(change.old), _flat(change.new)
        changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
        known = [path for path in changed if UNKNOWN not in json.dumps(after.get(path))]
        causes = tuple(sorted(path for path in known if not _is_in(path, node_comparison().pool)))
        if causes:
            yield Cycle(change, str(modes[0]), causes)


def _flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs by property path, with nested objects flattened by one level (`a.b`), without the provider's
    `__defaults`.
    """
    flat: dict[str, Any] = {}
    for key, value in inputs.items():
        inner = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else dict[str, Any]()
        flat |= {f"{key}.{name}": part for name, part in inner.items()} if inner else {key: value}
    return {path: value for path, value in flat.items() if not path.endswith("__defaults")}


def _is_in(path: str, inputs: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in inputs)


def refuse_failing_cycles(preview: Preview) -> None:
    """Refuse a preview in which OKE's replacement of a pool's nodes would fail half way.

    Raises:
        KitError: the preview has one; the message names each pool, and the inputs that make the cycling fail.
    """
    failing = [(cycle, cycle.refused) for cycle in cycles(preview) if cycle.refused]
    if failing:
        lines = "\n".join(f"  node pool {cycle.pool.name}: {', '.join(inputs)}" for cycle, inputs in failing)
        raise KitError(
            f"OKE's cycling can't bring these changes to nodes that are there, and would fail half way:\n{lines}",
            "Undo them, or leave `cycling` of the pool out for this update, so that its nodes stay as they are; labels,"
            " shapes and security groups come with `mode: replace-node`, another place or reservation with other nodes"
            " only.",
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.removeprefix("v").split(".")]


def _minor(version: str) -> int:
    return _numbers(version)[1]


def refuse_protected(urns: Sequence[str], *, allowed: bool = False) -> None:
    """Refuse to destroy a stack with protected resources (`urns`), unless `allowed`.

    Raises:
        KitError: the stack has protected resources; the message names them.
    """
    if urns and not allowed:
        names = ", ".join(urn.rsplit("::", 1)[-1] for urn in urns)
        raise KitError(f"The stack has protected resources: {names}.", "To destroy them too: add --unprotect.")


def displacement(preview: Preview, gpus: int, resource: str = GPU) -> Displacement | None:
    """Return the servers that must be deleted before the update on nodes with `gpus` GPUs in total; None if the GPUs
    suffice for old and new servers together.
    """
    deployments = [change for change in preview.changes if change.type in SERVERS]
    created = sum(gpus_of(change.new, resource) for change in deployments if change.operation == "create")
    # Upper bound for kept servers while they change; replaced ones are deleted before they are created.
    held = sum(
        max(gpus_of(change.old, resource), gpus_of(change.new, resource))
        for change in deployments
        if change.operation != "create"
    )
    leaving = [change for change in deployments if change.operation == "delete" and gpus_of(change.old, resource)]
    leaving.sort(key=lambda change: change.name)
    free = max(0, gpus - held)
    return Displacement(leaving, created, free) if created > free and leaving else None


def gpus_of(deployment: Mapping[str, Any], resource: str = GPU) -> int:
    """Return the number of GPUs of all pods of a Deployment, LeaderWorkerSet or DisaggregatedSet."""
    return sum(
        count * int(_nested(container, "resources", "limits").get(resource, 0))
        for count, template in pod_templates(deployment)
        for container in _nested(template, "spec").get("containers") or ()
    )


def pod_templates(workload: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield number and template of the pods of a Deployment or LeaderWorkerSet, or of each role of a
    DisaggregatedSet.
    """
    spec = _nested(workload, "spec")
    for part in [_nested(role, "spec") for role in spec["roles"]] if "roles" in spec else [spec]:
        group = _nested(part, "leaderWorkerTemplate")
        count = int(part.get("replicas", 1)) * int(group.get("size", 1))
        yield count, _nested(group, "workerTemplate") or _nested(part, "template")


def _nested(value: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) or {}
    return value


def describe(change: ResourceChange) -> str:
    """Describe a change of a resource and its cause: `replace node pool prod-mi300x, because nodeShape changes from
    ...`.
    """
    what = GUARDED.get(change.type, change.type.rsplit(":", 1)[-1])
    action = "delete" if change.operation == "delete" else "replace"
    if action == "delete":
        return f"delete {what} {change.name}, because the stack file no longer has it"
    causes = [difference(path, change) for path in change.replaced_by]
    because = "; ".join(causes) or "of what it depends on"
    return f"{action} {what} {change.name}, because {because}"


def difference(path: str, change: ResourceChange) -> str:
    """Describe the change of one input of a resource: `nodeShape changes from 'a' to 'b'`, or, if the values are long,
    `nodeShape changes`.
    """
    before, after = (repr(value_at(inputs, path)) for inputs in (change.old, change.new))
    if before == after or len(before) + len(after) > LONGEST_VALUES:
        return f"{path} changes"
    return f"{path} changes from {before} to {after}"


def value_at(inputs: Mapping[str, Any], path: str) -> Any:
    """Return the value at a property path such as `nodeConfigDetails.computeClusterId` or
    `placementConfigs[0].subnetId`; None if the path doesn't exist.
    """
    current: Any = inputs
    for step in steps(path):
        try:
            current = current[step]
        except (KeyError, IndexError, TypeError):
            return None
    return current


def steps(path: str) -> Iterable[str | int]:
    """Yield the keys and indices of a property path. Keys with dots have the form `["key"]`."""
    rest = path
    while rest:
        if rest.startswith('["'):
            key, _, rest = rest[2:].partition('"]')
            yield key
        elif rest.startswith("["):
            index, _, rest = rest[1:].partition("]")
            yield int(index)
        else:
            end = min((at for at in (rest.find("."), rest.find("[")) if at >= 0), default=len(rest))
            yield rest[:end]
            rest = rest[end:]
        rest = rest.removeprefix(".")
