"""Updates that would take a cluster or a pool away are refused, with the input that causes it, and such as OKE would
refuse half way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from llmd_oke.errors import KitError
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


def losses(preview: Preview) -> list[Change]:
    """Guarded or protected resources that an update would delete or replace, each once."""
    found: dict[str, Change] = {}
    for change in preview.changes:
        if change.deletes and (change.type in GUARDED or change.protected):
            known = found.get(change.urn)
            if known is None or (change.replaced_by and not known.replaced_by):
                found[change.urn] = change
    return list(found.values())


def refuse_losses(preview: Preview, *, allowed: bool = False) -> None:
    """Lets a preview pass that takes nothing guarded away, or where that is allowed.

    Raises:
        KitError: names every resource that would go, and the input properties that cause it.
    """
    lost = losses(preview)
    if lost and not allowed:
        told = "\n".join(f"  {describe(change)}" for change in lost)
        raise KitError(f"The update would take away what is hard to get back:\n{told}", UNPROTECT)


def unjudged(preview: Preview, *, allowed: bool = False) -> list[str]:
    """Guarded resources that are there, with the inputs that only the update will know: whether those replace them,
    no preview says. The engine replaces none that state and program protect (Pulumi 3.250, `step_generator.go`).

    Raises:
        KitError: names those that are not protected, unless they may be replaced.
    """
    resources = [change for change in preview.changes if change.type in GUARDED and change.old and change.unknown]
    if not allowed and (open_ended := [_unjudged(change) for change in resources if not change.stays_protected]):
        told = "\n".join(f"  {text}" for text in open_ended)
        raise KitError(
            f"No preview says whether the update takes away what is hard to get back, and nothing protects it:\n{told}",
            f"An update with `protect: true` before it, or with what these inputs come from alone. {UNPROTECT}",
        )
    return [
        f"{_unjudged(change)}: {'protected, it stays' if change.stays_protected else 'it may be replaced'}"
        for change in resources
    ]


def _unjudged(change: Change) -> str:
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
