"""What was changed by hand in a rehearsed stack's cluster: told before an update, and read so that it is taken back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulumi import automation
from pulumi.automation import events

from llmd_oke.operations import drift
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.previews import Change, of_document
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.engine_steps import step_with_outputs
from llmd_oke.rehearsal.state_files import latest


def read_drift(stack: automation.Stack, checkpoint: Path, progress: Progress) -> list[str]:
    """Tells each change by hand, and has the state say of these objects what they are; the answer is what was told.

    `checkpoint` is the engine's file of the stack; without objects in it there is nothing to look for.
    """
    if not _has_objects(checkpoint):
        return []
    found = drift.found_by_refresh(_refreshed(stack, [drift.OBJECTS]))
    for each in found:
        progress.step(f"changed by hand: {each}")
    urns = drift.to_read(found)
    if urns:
        stack.refresh(target=urns, color="never")
    return [str(each) for each in found]


def everywhere(stack: automation.Stack) -> list[Drift]:
    """What is not as the stack's state has it, in the stand-in for OCI and in the cluster; the state stays as it is."""
    return drift.found_by_refresh(_refreshed(stack, None), objects_only=False)


def _refreshed(stack: automation.Stack, targets: list[str] | None) -> Sequence[Change]:
    """What a refresh of these resources, or of all, would find."""
    steps: list[dict[str, Any]] = []

    def hear(event: events.EngineEvent) -> None:
        if event.res_outputs_event:
            steps.append(step_with_outputs(event.res_outputs_event.metadata))

    stack.preview_refresh(target=targets, on_event=hear, color="never")
    return of_document({"steps": steps}).changes


def _has_objects(checkpoint: Path) -> bool:
    return any(resource["type"].startswith("kubernetes:") for resource in latest(checkpoint).get("resources") or ())
