"""After an engine that was killed or failed: what its state doesn't know, and what it has wrong.

An engine writes down what it is about to create, and the id once it is there. Where it was killed in between, the
resource may exist without the state knowing it, and creating it again would fail or make another. It is looked up, and
taken into the state.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pulumi import automation

from llmd_oke.operations.refreshing import is_taken_back
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.oci_plugin.inputs import without_defaults

Resource = dict[str, Any]
FindId = Callable[[Resource], str | None]
"""Gives the id of a resource that was about to be created, None where there is none."""


def adopt(stack: automation.Stack, checkpoint: Path, journal: Path, progress: Progress) -> None:
    """Takes up what a killed engine left half done, and reads what became of it.

    `checkpoint` is the engine's file of the stack, `journal` that of the stand-in for OCI; neither need be there.
    """
    if not _is_pending(checkpoint):
        return
    progress.step("taking up what an engine that was killed had begun")
    state = stack.export_stack()
    ids = oci_ids(journal)
    state.deployment, adopted = without_pending(state.deployment or {}, lambda each: kubernetes_id(each) or ids(each))
    try:
        stack.import_stack(state)
    except automation.ConcurrentUpdateError:  # the killed engine's lock: no other engine runs beside this one
        stack.cancel()
        stack.import_stack(state)
    if adopted:
        stack.refresh(target=list(adopted), color="never")


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


def without_pending(deployment: Mapping[str, Any], find_id: FindId) -> tuple[dict[str, Any], Sequence[str]]:
    """The state without pending operations, and the URNs of what is taken into it because it may be there."""
    known = {resource["urn"] for resource in deployment.get("resources") or ()}
    pending: list[dict[str, Any]] = list(deployment.get("pending_operations") or ())
    begun = [each["resource"] for each in pending if each["type"] == "creating"]
    found = [{**each, "id": id_} for each in begun if each["urn"] not in known and (id_ := find_id(each))]
    resources = [*(deployment.get("resources") or ()), *found]
    return {**deployment, "resources": resources, "pending_operations": []}, [each["urn"] for each in found]


def kubernetes_id(resource: Resource) -> str | None:
    """The id of an object or a Helm release, which follows from its name; None for what is neither."""
    if not resource["type"].startswith("kubernetes:"):
        return None
    inputs: Mapping[str, Any] = resource.get("inputs") or {}
    named: Mapping[str, Any] = inputs.get("metadata") or inputs
    name, namespace = named.get("name"), named.get("namespace")
    if not name:
        return None
    return f"{namespace}/{name}" if namespace else str(name)


def oci_ids(journal: Path) -> FindId:
    """The ids of what the stand-in for OCI has, by type and what was asked for."""
    there: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        record: dict[str, Any] = json.loads(line)
        if "token" in record:
            there[record["id"]] = record
        else:
            there.pop(record["id"], None)

    def find(resource: Resource) -> str | None:
        asked = without_defaults(resource.get("inputs") or {})
        alike = (id_ for id_, each in there.items() if each["token"] == resource["type"] and each["inputs"] == asked)
        return next(alike, None)

    return find
