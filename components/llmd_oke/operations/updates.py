"""An update with what comes before it: a look at what was changed by hand, a preview that is judged, and servers that
have to go first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_oke.errors import KitError
from llmd_oke.operations import drift, guards
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.order import displacement
from llmd_oke.operations.previews import Preview
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import ClientOf, no_client, recover
from llmd_oke.planning import Plan
from llmd_oke.progress import Progress

Confirm = Callable[[str], bool]


def update(
    pulumi: PulumiCli,
    plan: Plan,
    progress: Progress,
    confirm: Confirm,
    *,
    yes: bool,
    allow_replace: bool,
    client: ClientOf = no_client,
) -> int:
    """Brings a stack to its file; the answer is the CLI's exit code. `confirm` asks before anything is deleted early,
    `client` gives a client of OCI for what a killed engine had begun.

    Raises:
        KitError: there is no preview, or it would take a guarded resource away, or OKE would refuse a version, or
            something pending can't be matched.
    """
    recover(pulumi, progress, client)
    told = _read_drift(pulumi, progress)
    progress.step("previewing the update")
    preview = pulumi.preview()
    _tell(drift.found_in_preview(preview.changes, told), progress)
    guards.refuse_losses(preview, allowed=allow_replace)
    guards.refuse_skipped_versions(preview)
    unprotected = unprotect(pulumi, preview, progress) if allow_replace else []
    if preview.errors and not unprotected:
        raise KitError("The preview failed:\n" + "\n".join(preview.errors))
    first = displacement(preview, plan.gpus)
    if first is not None:
        progress.step(str(first))
        if not yes and not confirm("Delete them now?"):
            return 1
        if status := pulumi.destroy(yes=True, targets=[change.urn for change in first.first]):
            return status
    upgraded = [f"{change.name} {before} -> {after}" for before, after, change in guards.upgrades(preview)]
    if upgraded:
        progress.step(f"Kubernetes, one after the other: {', '.join(upgraded)}")
    return pulumi.up(yes=yes, skip_preview=yes, one_at_a_time=bool(upgraded))


def _read_drift(pulumi: PulumiCli, progress: Progress) -> list[Drift]:
    """Tells what was changed by hand, and has the stack's state say it too, so that the update takes it back.

    Raises:
        KitError: the state can't be changed.
    """
    found = drift.look(pulumi, progress)
    _tell(found, progress)
    urns = drift.to_read(found)
    if urns and not pulumi.refresh and pulumi.read(urns):
        raise KitError("What was changed by hand can't be read into the stack's state.", "`pulumi refresh` says why.")
    return found


def _tell(found: Sequence[Drift], progress: Progress) -> None:
    for each in found:
        progress.step(f"changed by hand: {each}")


def unprotect(pulumi: PulumiCli, preview: Preview, progress: Progress) -> list[str]:
    """Takes the protection of what would go away; the answer is what was protected. The engine's error names the
    first such resource only, as far as it got.

    Raises:
        KitError: the state can't be changed.
    """
    going = {change.urn for change in guards.losses(preview)}
    if not going and not preview.errors:
        return []
    told = "\n".join(preview.errors)
    chosen = [urn for urn in protected_urns(pulumi) if urn in going or urn in told]
    for urn in chosen:
        progress.detail(f"no longer protected: {urn.rsplit('::', 1)[-1]}")
    if pulumi.unprotect(chosen):
        raise KitError("The protection can't be taken away.", "`pulumi state unprotect` said why.")
    return chosen


def destroy(pulumi: PulumiCli, progress: Progress, *, yes: bool, unprotect: bool, client: ClientOf = no_client) -> int:
    """Destroys a stack, with what a killed engine had begun; the answer is the CLI's exit code.

    Raises:
        KitError: something is protected and `unprotect` isn't given, or something pending can't be matched.
    """
    recover(pulumi, progress, client)
    protected = protected_urns(pulumi)
    guards.refuse_protected(protected, allowed=unprotect)
    if protected:
        names = ", ".join(urn.rsplit("::", 1)[-1] for urn in protected)
        progress.step(f"no longer protected: {names}")
        if status := pulumi.unprotect(protected):
            return status
    return pulumi.destroy(yes=yes)


def protected_urns(pulumi: PulumiCli) -> list[str]:
    """The protected resources of a stack's state."""
    return [str(resource["urn"]) for resource in pulumi.resources() if resource.get("protect")]


_LAUNCH = re.compile(r"(?P<pool>.+)-instance-(?P<index>\d+)-launch")
_STASH = "pulumi:index:Stash"


@dataclass(frozen=True)
class LaunchedNode:
    """An instance that is a node by itself (`compute-cluster-instances`). `urns` are what has to be made anew for
    another one; `current` says whether it was launched as the stack file has it now.
    """

    name: str
    urns: tuple[str, str]
    current: bool


def launched_nodes(resources: Sequence[Mapping[str, Any]]) -> list[LaunchedNode]:
    """The instances of a stack's state, in order of their names and numbers."""
    by_name = {str(resource["urn"]).rpartition("::")[2]: resource for resource in resources}
    nodes: list[tuple[str, int, LaunchedNode]] = []
    for resource in resources:
        name = str(resource["urn"]).rpartition("::")[2]
        match = _LAUNCH.fullmatch(name)
        instance = by_name.get(name.removesuffix("-launch"))
        if resource.get("type") == _STASH and match and instance:
            wanted = resource["inputs"].get("input")
            has_it = instance["inputs"].get("metadata") == wanted["metadata"]
            current = has_it and resource["outputs"].get("output") == wanted
            pool, index = match["pool"], int(match["index"])
            node = LaunchedNode(f"{pool}-{index}", (str(resource["urn"]), str(instance["urn"])), current)
            nodes.append((pool, index, node))
    return [node for _, _, node in sorted(nodes, key=lambda each: each[:2])]


def replace_nodes(
    pulumi: PulumiCli, progress: Progress, confirm: Confirm, names: Sequence[str], *, at_once: int, yes: bool
) -> int:
    """Launches nodes anew, so many at a time: those of these names, or without any those that were launched otherwise
    than the stack file says. The answer is the CLI's exit code; what is done already is not done again.

    Raises:
        KitError: there is no such node, or the stack is not as its file says.
    """
    known = launched_nodes(pulumi.resources())
    if unknown := sorted(set(names) - {node.name for node in known}):
        listed = ", ".join(node.name for node in known) or "none"
        raise KitError(
            f"The stack has no node {unknown[0]} that it launches by itself.",
            f"Those of launch mode compute-cluster-instances: {listed}. Pools of OKE have `cycling`.",
        )
    chosen = [node for node in known if (node.name in names if names else not node.current)]
    if not chosen:
        progress.step("all nodes were launched as the stack file says")
        return 0
    _refuse_other_changes(pulumi.preview(), [node.urns[1] for node in chosen])
    told = ", ".join(node.name for node in chosen)
    progress.step(f"launching anew, {at_once} at a time: {told}")
    if not yes and not confirm("Their servers end. Go on?"):
        return 1
    for start in range(0, len(chosen), at_once):
        batch = chosen[start : start + at_once]
        progress.step(f"launching anew: {', '.join(node.name for node in batch)}")
        if status := pulumi.unprotect([node.urns[1] for node in batch]):
            return status
        if status := pulumi.replace([urn for node in batch for urn in node.urns]):
            return status
    return 0


def _refuse_other_changes(preview: Preview, instances: Sequence[str]) -> None:
    """A replacement is an update of the whole stack, which nobody has judged for anything but the instances: one that
    was interrupted shows as theirs and their gate's.
    """
    others = [
        change.short_name
        for change in preview.effective
        if change.type != _STASH and change.urn not in instances and not change.name.endswith("-gate-job")
    ]
    if others or preview.errors:
        told = "; ".join(preview.errors) or ", ".join(others[:3])
        raise KitError(f"The stack is not as its file says: {told}.", "`llmd-oke up` first, then replace nodes.")
