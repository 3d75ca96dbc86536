"""What the engine says while it works, in a few words: a line for each resource that changes, none for the others."""

import sys
import threading
import time
from typing import Any

from pulumi.automation import events

from llmd_oke.errors import KitError
from llmd_oke.operations import guards
from llmd_oke.operations.previews import of_document
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.engine_steps import step
from llmd_oke.rehearsal.engine_words import tidy

HEARTBEAT_S = 5.0
_DONE = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "create-replacement": "created anew",
    "delete-replaced": "deleted the old",
    "import": "imported",
}
"""Operations that are told; the engine's own name for a replacement comes beside its two halves."""
_PLANNED = {
    "create": "would create",
    "update": "would update",
    "delete": "would delete",
    "replace": "would replace",
    "import": "would import",
}
_MOST_DIFFERENCES = 4
_LINES_OF_THE_ENGINE = 8
_IN_ALL = "update failed"
"""What the engine says once more beside each error."""


class Narrator:
    """Hears the engine's events; keeps errors for the end and says every few seconds what is still waited for."""

    def __init__(self, progress: Progress, *, is_preview: bool = False) -> None:
        self._progress = progress
        self._words = _PLANNED if is_preview else _DONE
        self._running: dict[str, float] = {}
        self._errors: list[str] = []
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def hear(self, event: events.EngineEvent) -> None:
        """One event."""
        with self._lock:
            if event.resource_pre_event:
                self._begin(event.resource_pre_event.metadata)
            elif event.res_outputs_event:
                self._end(event.res_outputs_event.metadata)
            elif event.res_op_failed_event:
                self._running.pop(event.res_op_failed_event.metadata.urn, None)
            elif event.diagnostic_event:
                self._diagnose(event.diagnostic_event)

    def failure(self, operation: str, output: str = "") -> KitError:
        """The error that the operation ended with, in the engine's words; `output` counts where no event told."""
        with self._lock:
            told = [error for error in dict.fromkeys(self._errors) if error != _IN_ALL] or self._errors[:1]
            words = "\n".join(told) or _end_of(output)
        return KitError(f"`pulumi {operation}` failed:\n{words}")

    def _begin(self, metadata: Any) -> None:
        if _operation(metadata) in self._words:
            self._running[metadata.urn] = time.monotonic()

    def _end(self, metadata: Any) -> None:
        began = self._running.pop(metadata.urn, None)
        if began is None or "pulumi:" in metadata.type:
            return
        seconds = time.monotonic() - began
        took = f" in {seconds:.0f} s" if seconds >= 1 else ""
        changed = differences(metadata) if self._words is _PLANNED else ""
        self._say(f"{self._words[_operation(metadata)]} {short_name(metadata.urn)}{took}{changed}")

    def _diagnose(self, diagnostic: Any) -> None:
        text = diagnostic.message.strip()
        if diagnostic.severity == "error":
            print(text, file=sys.stderr, flush=True)
            told = tidy(text)
            self._errors.append(f"{short_name(diagnostic.urn)}: {told}" if diagnostic.urn else told)
        elif diagnostic.severity == "warning":
            self._say(f"warning: {text}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._progress.detail(text)

    def _beat(self) -> None:
        while True:
            time.sleep(1.0)
            with self._lock:
                if time.monotonic() - self._said > HEARTBEAT_S:
                    self._say(f"waiting for {self._waited_for()}")

    def _waited_for(self) -> str:
        waiting = [
            urn for urn in self._running if "pulumi:pulumi:Stack" not in urn and "llmd-oke:index:" not in _type(urn)
        ]
        if not waiting:
            return f"the engine ({time.monotonic() - self._began:.0f} s)"
        oldest = min(waiting, key=lambda urn: self._running[urn])
        seconds = time.monotonic() - self._running[oldest]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{short_name(oldest)}{more} ({seconds:.0f} s)"


def differences(metadata: events.StepEventMetadata) -> str:
    """What a step would change, to be put behind the resource's name: `: spec.replicas changes from 8 to 6`."""
    (change,) = of_document({"steps": [step(metadata)]}).changes
    paths = change.replaced_by if change.operation == "replace" else change.changed
    told = [guards.difference(path, change) for path in paths[:_MOST_DIFFERENCES]]
    more = [f"{len(paths) - len(told)} more"] if len(paths) > len(told) else []
    return f": {'; '.join([*told, *more])}" if told else ""


def short_name(urn: str) -> str:
    """`Deployment gpt-oss-120b-decode` for a resource's URN."""
    return f"{_type(urn).rsplit(':', 1)[-1]} {urn.rsplit('::', 1)[-1]}"


def _type(urn: str) -> str:
    """The resource's own type: URNs list the parents' types before it, separated by dollar signs."""
    return urn.split("::")[-2].rsplit("$", maxsplit=1)[-1] if urn.count("::") >= 3 else urn


def _end_of(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-_LINES_OF_THE_ENGINE:]) or "the engine gave no reason"


def _operation(metadata: Any) -> str:
    return str(getattr(metadata.op, "value", metadata.op))
