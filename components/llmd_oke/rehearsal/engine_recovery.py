"""After a rehearsal's engine that was killed or failed: what its state doesn't know, and what it has wrong."""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from pulumi import automation

from llmd_oke.operations.recovery import Find, Pending, look, recovered, unanswered, with_begun
from llmd_oke.operations.refreshing import is_taken_back
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.oci_plugin.inputs import without_defaults
from llmd_oke.rehearsal.state_files import in_oci, latest


def adopt(stack: automation.Stack, checkpoint: Path, journal: Path, progress: Progress) -> None:
    """Takes up what a killed engine left half done, and reads what became of it.

    `checkpoint` is the engine's file of the stack, `journal` that of the stand-in for OCI; neither need be there.
    """
    if not _is_pending(checkpoint):
        return
    progress.step("taking up what an engine had begun and did not end")
    _take(stack, (), journal)


def adopt_unanswered(
    stack: automation.Stack, log: Iterable[Mapping[str, Any]], journal: Path, progress: Progress
) -> None:
    """Takes up what was created by requests that got no answer; `log` has the events of the engine that sent them."""
    if begun := unanswered(log):
        progress.step("looking for what was created by a request that got no answer")
        _take(stack, begun, journal)


def _take(stack: automation.Stack, begun: Sequence[Mapping[str, Any]], journal: Path) -> None:
    state = stack.export_stack()
    deployment = with_begun(state.deployment or {}, begun)
    recovery = look(deployment, in_journal(journal))
    state.deployment = recovered(deployment, recovery)
    try:
        stack.import_stack(state)
    except automation.ConcurrentUpdateError:  # the killed engine's lock: no other engine runs beside this one
        stack.cancel()
        stack.import_stack(state)
    if urns := recovery.urns:
        stack.refresh(target=list(urns), color="never")


def remove_unfinished_locks(checkpoint: Path) -> None:
    """Removes locks that an engine could not write to its end, as on a full disk: engines can't read them, and refuse
    every operation with `unexpected end of JSON input` (seen with Pulumi 3.250). No other engine may run meanwhile.
    """
    locks = checkpoint.parents[2] / "locks"
    for lock in locks.rglob("*.json*"):
        if lock.suffix == ".tmp" or not lock.stat().st_size:
            lock.unlink()


def is_wrong(checkpoint: Path) -> bool:
    """Whether the state has something that OCI's plug-in took back, so that an operation has to read first."""
    return any(is_taken_back(resource) for resource in latest(checkpoint).get("resources") or ())


def _is_pending(checkpoint: Path) -> bool:
    return bool(latest(checkpoint).get("pending_operations"))


def in_journal(journal: Path) -> Find:
    """Finds what the stand-in for OCI has, by type and what was asked for."""
    there = in_oci(journal)

    def find(pending: Pending, known: Set[str]) -> str | None:
        asked = without_defaults(dict(pending.inputs))
        alike = (id_ for id_, each in there.items() if each["token"] == pending.type and each["inputs"] == asked)
        return next((id_ for id_ in alike if id_ not in known), None)

    return find
