"""Whether a preview may become an update: what it would take away, what OKE would refuse, what has to go first.

Updates that would take a cluster or a pool away are refused, with the input that causes it, and so are those that OKE
would refuse half way. The engine creates first and deletes last, which is right wherever there is room for both. On
full nodes new servers would wait for GPUs that old ones hold, until the update fails.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_pods.errors import KitError

from llmd_oke.operations.previews import Change, Preview

GUARDED = {
    "oci:ContainerEngine/cluster:Cluster": "cluster",
    "oci:ContainerEngine/nodePool:NodePool": "node pool",
    "oci:Core/clusterNetwork:ClusterNetwork": "cluster network",
    "oci:Core/computeCluster:ComputeCluster": "compute cluster",
    "oci:Core/instance:Instance": "instance",
    "oci:Core/vcn:Vcn": "network",
}
"""What takes hours to get back, or can't be had again where capacity is scarce."""


LONGEST_VALUES = 240
"""Characters of two values that are shown side by side."""


UNPROTECT = "To do it all the same: llmd-oke up --allow-replace."


DEPLOYMENT = "kubernetes:apps/v1:Deployment"


GPU = "amd.com/gpu"


@dataclass(frozen=True)
class Displacement:
    """Servers that must be deleted before the update: the GPUs that new ones want, and those that are free."""

    first: Sequence[Change]
    wanted_gpus: int
    free_gpus: int

    def __str__(self) -> str:
        names = ", ".join(change.name for change in self.first)
        return (
            f"new servers want {self.wanted_gpus} GPUs and {self.free_gpus} are free, so {names} must go before they"
            " come: the model is not served meanwhile"
        )


def losses(preview: Preview) -> list[Change]:
    """Guarded or protected resources that an update would delete or replace, each once."""
    lost: dict[str, Change] = {}
    for change in preview.changes:
        if change.deletes and (change.type in GUARDED or change.protected):
            known = lost.get(change.urn)
            if known is None or (change.replaced_by and not known.replaced_by):
                lost[change.urn] = change
    return list(lost.values())


def refuse_losses(preview: Preview, *, allowed: bool = False) -> None:
    """Lets a preview pass that takes nothing guarded away, or where that is allowed.

    Raises:
        KitError: names every resource that would go, and the input properties that cause it.
    """
    lost = losses(preview)
    if lost and not allowed:
        lines = "\n".join(f"  {describe(change)}" for change in lost)
        raise KitError(f"The update would take away what is hard to get back:\n{lines}", UNPROTECT)


def unjudged(preview: Preview, *, allowed: bool = False) -> list[str]:
    """Guarded resources that are there, with the inputs that only the update will know: whether those replace them,
    no preview says. The engine replaces none that state and program protect (Pulumi 3.250, `step_generator.go`).

    Raises:
        KitError: names those that are not protected, unless they may be replaced.
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


def _open_inputs(change: Change) -> str:
    return f"{GUARDED[change.type]} {change.name}, whose {', '.join(change.unknown)} only the update will know"


def refuse_skipped_versions(preview: Preview) -> None:
    """Lets a preview pass that takes the control plane of a cluster at most one minor version up, as OKE does.

    Raises:
        KitError: names the cluster, both versions, and what comes next.
    """
    for before, after, change in upgrades(preview):
        step = _minor(after) - _minor(before)
        if change.type == "oci:ContainerEngine/cluster:Cluster" and (step > 1 or _numbers(after) < _numbers(before)):
            raise KitError(
                f"OKE can't take the control plane of {change.name} from {before} to {after}: it goes up by one minor"
                " version, and never down.",
                f"cluster.kubernetesVersion: a v1.{_minor(before) + 1} on offer, then on from there; or {before}.",
            )


def upgrades(preview: Preview) -> Iterator[tuple[str, str, Change]]:
    """Clusters and pools that get another version of Kubernetes: what they have, and what they get."""
    for change in preview.changes:
        before, after = (inputs.get("kubernetesVersion") for inputs in (change.old, change.new))
        if change.type in GUARDED and isinstance(before, str) and isinstance(after, str) and before != after:
            yield before, after, change


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.removeprefix("v").split(".")]


def _minor(version: str) -> int:
    return _numbers(version)[1]


def refuse_protected(urns: Sequence[str], *, allowed: bool = False) -> None:
    """Lets a stack be destroyed that has nothing protected, or where that is allowed.

    Raises:
        KitError: names what is protected.
    """
    if urns and not allowed:
        names = ", ".join(urn.rsplit("::", 1)[-1] for urn in urns)
        raise KitError(f"The stack has protected resources: {names}.", "To destroy them too: add --unprotect.")


def displacement(preview: Preview, gpus: int, resource: str = GPU) -> Displacement | None:
    """The servers that have to go first on nodes with that many GPUs; None where there is room for all at once."""
    deployments = [change for change in preview.changes if change.type == DEPLOYMENT]
    created = sum(gpus_of(change.new, resource) for change in deployments if change.operation == "create")
    # What stays needs at most this while it changes; what is replaced goes before it comes anew.
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
    """The GPUs of all pods of a Deployment."""
    spec = _nested(deployment, "spec")
    containers: list[Mapping[str, Any]] = _nested(spec, "template", "spec").get("containers") or []
    limits = [_nested(container, "resources", "limits") for container in containers]
    return int(spec.get("replicas", 1)) * sum(int(limit.get(resource, 0)) for limit in limits)


def _nested(value: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) or {}
    return value


def describe(change: Change) -> str:
    """What would happen to a resource and why: `replace node pool prod-mi300x, because nodeShape changes from ...`."""
    what = GUARDED.get(change.type, change.type.rsplit(":", 1)[-1])
    action = "delete" if change.operation == "delete" else "replace"
    if action == "delete":
        return f"delete {what} {change.name}, because the stack file no longer has it"
    causes = [difference(path, change) for path in change.replaced_by]
    because = "; ".join(causes) or "of what it depends on"
    return f"{action} {what} {change.name}, because {because}"


def difference(path: str, change: Change) -> str:
    """What becomes of one input of a resource: `nodeShape changes from 'a' to 'b'`; long values are left out."""
    before, after = (repr(value_at(inputs, path)) for inputs in (change.old, change.new))
    if before == after or len(before) + len(after) > LONGEST_VALUES:
        return f"{path} changes"
    return f"{path} changes from {before} to {after}"


def value_at(inputs: Mapping[str, Any], path: str) -> Any:
    """The value at a property path such as `nodeConfigDetails.computeClusterId` or `placementConfigs[0].subnetId`."""
    current: Any = inputs
    for step in steps(path):
        try:
            current = current[step]
        except (KeyError, IndexError, TypeError):
            return None
    return current


def steps(path: str) -> Iterable[str | int]:
    """The keys and indices of a property path; keys with dots stand in brackets and quotes."""
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
