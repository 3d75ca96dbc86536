"""What was changed by hand in a rehearsed stack's cluster: told before an update, and read so that it is taken back."""

import json
from pathlib import Path
from typing import Any

from pulumi import automation
from pulumi.automation import events

from llmd_oke.operations import drift
from llmd_oke.operations.previews import of_document
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.engine_steps import step_with_outputs


def read_drift(stack: automation.Stack, checkpoint: Path, progress: Progress) -> list[str]:
    """Tells each change by hand, and has the state say of these objects what they are; the answer is what was told.

    `checkpoint` is the engine's file of the stack; without objects in it there is nothing to look for.
    """
    if not _has_objects(checkpoint):
        return []
    steps: list[dict[str, Any]] = []

    def hear(event: events.EngineEvent) -> None:
        if event.res_outputs_event:
            steps.append(step_with_outputs(event.res_outputs_event.metadata))

    stack.preview_refresh(target=[drift.OBJECTS], on_event=hear, color="never")
    found = drift.found_by_refresh(of_document({"steps": steps}).changes)
    for each in found:
        progress.step(f"changed by hand: {each}")
    urns = drift.to_read(found)
    if urns:
        stack.refresh(target=urns, color="never")
    return [str(each) for each in found]


def _has_objects(checkpoint: Path) -> bool:
    if not checkpoint.is_file():
        return False
    latest: dict[str, Any] = json.loads(checkpoint.read_text())["checkpoint"].get("latest") or {}
    return any(resource["type"].startswith("kubernetes:") for resource in latest.get("resources") or ())
