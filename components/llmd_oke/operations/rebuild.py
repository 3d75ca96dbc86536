"""Preparation of a stack for an update after its cluster or pools were deleted in OCI: what is gone is removed from
Pulumi's state, so that the update creates it again and leaves the rest unchanged.

Objects of a lost cluster can be neither read nor deleted by their provider. They are taken out of the state with the
cluster, by `pulumi stack export` and `import`, without a request to the cluster.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.catalogue.operations import oci_resources
from llmd_oke.operations.previews import ResourceChange
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import ClientOf, State

OCI = "**oci:**"
"""Target pattern of the engine that matches the URNs of all resources of OCI's provider."""

CLUSTER = "oci:ContainerEngine/cluster:Cluster"
_KUBERNETES_PROVIDER = "pulumi:providers:kubernetes"
_SELF_MANAGED = ("oci:Core/clusterNetwork:ClusterNetwork", "oci:Core/instance:Instance")
"""Types of GPU nodes that outlive their cluster and can't join another: their boot metadata has its address and CA."""

_NOT_FOUND = 404

_LAUNCH = "-launch"
"""End of the names of the stashes with the settings that instances were launched with (`cluster/gpu_pool.py`)."""


@dataclass(frozen=True)
class Losses:
    """Resources of a stack's state, by their fate when the stack is rebuilt after a loss in OCI.

    `gone` are those that OCI no longer has. If the cluster is among them, `objects` are those of its Kubernetes
    provider, which went with it, and `nodes` are self-managed GPU nodes, which are deleted because they can't join
    another cluster. `kept` are all others that OCI has.
    """

    gone: tuple[Mapping[str, Any], ...] = ()
    objects: tuple[Mapping[str, Any], ...] = ()
    nodes: tuple[Mapping[str, Any], ...] = ()
    kept: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gone or self.objects)

    def lines(self) -> Iterator[str]:
        """Yield a line of text for each group of resources: gone, deleted, kept."""
        if self.gone:
            yield f"gone, made anew: {_named(self.gone)}"
        if self.objects:
            count = sum(str(item["type"]).startswith("kubernetes:") for item in self.objects)
            yield f"gone with the cluster, made anew: {count} object{'s' * (count != 1)}"
        if self.nodes:
            yield f"deleted and made anew, as they can't join another cluster: {_named(self.nodes)}"
        if self.gone:
            yield f"stays: {_named(self.kept) or 'nothing'}"


def find_losses(pulumi: PulumiCli, client: ClientOf, compartment_id: str, progress: Progress) -> Losses:
    """Find the resources of a stack's state that OCI no longer has, and return them. Nothing is changed.

    Args:
        pulumi: the CLI and the stack.
        client: makes a client of OCI, which must be allowed to list the clusters of the compartment: to an identity
            that may not, OCI answers as if everything were gone.
        compartment_id: OCID of the cluster's compartment.
        progress: receiver of messages.

    Raises:
        KitError: OCI doesn't answer, doesn't show the compartment, or has a cluster that the plug-in doesn't find.
    """
    state: State = pulumi.export()["deployment"] or {}
    resources: Sequence[Mapping[str, Any]] = state.get("resources") or ()
    progress.step("asking OCI for what the stack has made")
    there = _clusters(client(), compartment_id)
    lost = {change.urn for change in pulumi.look(OCI) if change.operation == "delete"}
    gone = tuple(item for item in resources if item["urn"] in lost)
    for item in gone:
        if item["type"] == CLUSTER and item.get("id") in there:
            raise KitError(
                f"OCI lists the cluster {item['id']}, and its plug-in doesn't find it.",
                "Sign in as somebody who may read clusters: `llmd-oke preflight` shows which rights are missing.",
            )
    if not any(item["type"] == CLUSTER for item in gone):
        return Losses(gone, kept=tuple(item for item in resources if _is_kept(item) and item not in gone))
    objects = tuple(item for item in resources if _is_of_cluster(item) and item not in gone)
    nodes = tuple(item for item in resources if item["type"] in _SELF_MANAGED and item not in gone)
    taken = {item["urn"] for item in (*gone, *objects, *nodes)}
    return Losses(
        gone, objects, nodes, tuple(item for item in resources if _is_kept(item) and item["urn"] not in taken)
    )


def find_lost_objects(pulumi: PulumiCli, client: ClientOf, identifier: str, progress: Progress) -> Losses:
    """Find the Kubernetes objects in the state of a stack that were in a lost cluster of another stack, and return
    them. Nothing is changed.

    Args:
        pulumi: the CLI and the stack.
        client: makes a client of OCI, which must be allowed to read the new cluster.
        identifier: OCID of the cluster that the stack is to serve on now.
        progress: receiver of messages.

    Raises:
        KitError: OCI doesn't answer or doesn't show the new cluster, or still has the one that the objects are in.
    """
    resources = pulumi.resources()
    providers = [item for item in resources if item["type"] == _KUBERNETES_PROVIDER]
    before = {str(item["inputs"].get("clusterIdentifier")) for item in providers} - {identifier}
    if not before:
        return Losses()
    progress.step("asking OCI for the cluster that the stack's objects were in")
    if not _is_there(client(), identifier):
        raise KitError(
            f"OCI doesn't show {identifier} to this identity, so that nothing says what is gone.",
            "Rebuild the cluster's own stack first, or sign in as somebody who may read clusters.",
        )
    if there := [known for known in sorted(before) if _is_there(client(), known)]:
        raise KitError(
            f"The cluster {there[0]} is there, with this stack's objects.",
            "Have `llmd-oke destroy` take them away, and then serve on the other cluster.",
        )
    return Losses(objects=tuple(item for item in resources if _is_of_cluster(item)))


def _is_there(client: OciClient, identifier: str) -> bool:
    try:
        cluster = client.get("containerengine", f"/clusters/{identifier}")
    except OciError as error:
        if error.status != _NOT_FOUND:
            raise
        return False
    return cluster.get("lifecycleState") not in oci_resources().gone


def _clusters(client: OciClient, compartment_id: str) -> set[str]:
    """Return the OCIDs of the clusters that a compartment has."""
    try:
        listed = client.get("containerengine", "/clusters", compartmentId=compartment_id)
    except OciError as error:
        if error.status not in {401, 403, 404}:
            raise
        raise KitError(
            f"OCI doesn't show the clusters of {compartment_id} to this identity, so that nothing says what is gone.",
            "Sign in as somebody who may list them. If the compartment itself was deleted, name another one in the"
            " stack file (cluster.compartmentId).",
        ) from error
    return {str(item["id"]) for item in listed if item.get("lifecycleState") not in oci_resources().gone}


def forget_losses(pulumi: PulumiCli, losses: Losses, progress: Progress) -> None:
    """Remove lost resources from the stack's state, and delete self-managed nodes that can't join another cluster.
    After an interruption the next call continues, since the cluster is removed last.

    Raises:
        KitError: the state can't be changed, for example because an engine holds its lock, or a node isn't deleted.
    """
    if losses.objects:
        progress.step(f"the state forgets {len(losses.objects)} objects of the lost cluster")
        _forget(pulumi, {str(item["urn"]) for item in losses.objects})
    if losses.nodes:
        urns = [str(item["urn"]) for item in losses.nodes]
        progress.step(f"deleting {_named(losses.nodes)}")
        if pulumi.unprotect([str(item["urn"]) for item in losses.nodes if item.get("protect")]):
            raise KitError("The protection can't be taken away.", "`pulumi state unprotect` said why.")
        if pulumi.destroy(yes=True, targets=urns):
            raise KitError("Nodes of the lost cluster can't be deleted.", "`pulumi destroy` said why. Run it again.")
    if losses.gone:
        progress.step(f"the state forgets {_named(losses.gone)}")
        _forget(pulumi, {str(item["urn"]) for item in losses.gone})


def _forget(pulumi: PulumiCli, urns: Collection[str]) -> None:
    document = pulumi.export()
    pulumi.import_state({**document, "deployment": without(document["deployment"] or {}, urns)})


def without(state: State, urns: Collection[str]) -> dict[str, Any]:
    """Return a state without the resources of these URNs, and without other resources' dependencies on them."""
    kept = [item for item in state.get("resources") or () if item["urn"] not in urns]
    return {**state, "resources": [_independent(item, urns) for item in kept]}


def _independent(resource: Mapping[str, Any], urns: Collection[str]) -> dict[str, Any]:
    """Return a resource without its dependencies on these URNs."""
    changed = dict(resource)
    for key in ("dependencies", "replaceWith"):
        if changed.get(key):
            changed[key] = [urn for urn in changed[key] if urn not in urns]
    by_property: Mapping[str, Sequence[str] | None] = changed.get("propertyDependencies") or {}
    if by_property:
        changed["propertyDependencies"] = {
            name: [urn for urn in needed or () if urn not in urns] for name, needed in by_property.items()
        }
    if changed.get("deletedWith") in urns:
        del changed["deletedWith"]
    return changed


def _is_of_cluster(resource: Mapping[str, Any]) -> bool:
    """Tell whether a resource has no meaning without the cluster: objects and their provider, and the settings that
    nodes were launched with.
    """
    type_, provider = str(resource["type"]), str(resource.get("provider") or "")
    is_launch = type_ == "pulumi:index:Stash" and str(resource["urn"]).endswith(_LAUNCH)
    return type_ == _KUBERNETES_PROVIDER or f"::{_KUBERNETES_PROVIDER}::" in provider or is_launch


def _is_kept(resource: Mapping[str, Any]) -> bool:
    return str(resource["type"]).startswith("oci:")


def _named(resources: Sequence[Mapping[str, Any]]) -> str:
    """Return names of resources, by type: one by its name, several by their number."""
    by_type: dict[str, list[str]] = {}
    for item in resources:
        change = ResourceChange("", str(item["urn"]))
        by_type.setdefault(change.type.rsplit(":", 1)[-1], []).append(change.short_name)
    return ", ".join(
        names[0] if len(names) == 1 else f"{len(names)} x {kind}" for kind, names in sorted(by_type.items())
    )
