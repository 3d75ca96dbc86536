"""After a rehearsal's engine that was killed or failed: what its state doesn't know, and what it has wrong."""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from pulumi import automation

from llmd_oke.operations.recovery import Find, Pending, look, recovered
from llmd_oke.operations.refreshing import is_taken_back
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.oci_plugin.inputs import without_defaults


def adopt(stack: automation.Stack, checkpoint: Path, journal: Path, progress: Progress) -> None:
    """Takes up what a killed engine left half done, and reads what became of it.

    `checkpoint` is the engine's file of the stack, `journal` that of the stand-in for OCI; neither need be there.
    """
    if not _is_pending(checkpoint):
        return
    progress.step("taking up what an engine that was killed had begun")
    state = stack.export_stack()
    recovery = look(state.deployment or {}, in_journal(journal))
    state.deployment = recovered(state.deployment or {}, recovery)
    try:
        stack.import_stack(state)
    except automation.ConcurrentUpdateError:  # the killed engine's lock: no other engine runs beside this one
        stack.cancel()
        stack.import_stack(state)
    if urns := recovery.urns:
        stack.refresh(target=list(urns), color="never")


def is_wrong(checkpoint: Path) -> bool:
    """Whether the state has something that OCI's plug-in took back, so that an operation has to read first."""
    return any(is_taken_back(resource) for resource in _latest(checkpoint).get("resources") or ())


def _is_pending(checkpoint: Path) -> bool:
    return bool(_latest(checkpoint).get("pending_operations"))


def _latest(checkpoint: Path) -> Mapping[str, Any]:
    """The stack's state as the engine wrote it down last; empty where there is none."""
    if not checkpoint.is_file():
        return {}
    return json.loads(checkpoint.read_text())["checkpoint"].get("latest") or {}


def in_journal(journal: Path) -> Find:
    """Finds what the stand-in for OCI has, by type and what was asked for."""
    there: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        record: dict[str, Any] = json.loads(line)
        if "token" in record:
            there[record["id"]] = record
        else:
            there.pop(record["id"], None)

    def find(pending: Pending, known: Set[str]) -> str | None:
        asked = without_defaults(dict(pending.inputs))
        alike = (id_ for id_, each in there.items() if each["token"] == pending.type and each["inputs"] == asked)
        return next((id_ for id_ in alike if id_ not in known), None)

    return find
