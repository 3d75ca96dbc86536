"""What the engine says while it works, in a few words: a line for each resource that changes, none for the others."""

import sys
import threading
import time
from typing import Any

from pulumi.automation import events

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.engine_words import tidy

HEARTBEAT_S = 5.0
_QUIET = {"same", "read", "refresh", "read-replacement", "discard"}
_DONE = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "replace": "replaced",
    "create-replacement": "created anew",
    "delete-replaced": "deleted the old",
    "import": "imported",
}
_PLANNED = {
    "create": "would create",
    "update": "would update",
    "delete": "would delete",
    "replace": "would replace",
    "create-replacement": "would create anew",
    "delete-replaced": "would delete the old",
    "import": "would import",
}
_LINES_OF_THE_ENGINE = 8


class Narrator:
    """Hears the engine's events; keeps errors for the end and says every few seconds what is still waited for."""

    def __init__(self, progress: Progress, *, is_preview: bool = False) -> None:
        self._progress = progress
        self._words = _PLANNED if is_preview else _DONE
        self._running: dict[str, float] = {}
        self._errors: list[str] = []
        self._said = time.monotonic()
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
            words = "\n".join(dict.fromkeys(self._errors)) or _end_of(output)
        return KitError(f"`pulumi {operation}` failed:\n{words}")

    def _begin(self, metadata: Any) -> None:
        if _operation(metadata) not in _QUIET:
            self._running[metadata.urn] = time.monotonic()

    def _end(self, metadata: Any) -> None:
        began = self._running.pop(metadata.urn, None)
        if began is None or "pulumi:" in metadata.type:
            return
        seconds = time.monotonic() - began
        took = f" in {seconds:.0f} s" if seconds >= 1 else ""
        self._say(f"{self._words.get(_operation(metadata), _operation(metadata))} {short_name(metadata.urn)}{took}")

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
                waiting = [
                    urn
                    for urn in self._running
                    if "pulumi:pulumi:Stack" not in urn and "llmd-oke:index:" not in _type(urn)
                ]
                if waiting and time.monotonic() - self._said > HEARTBEAT_S:
                    oldest = min(waiting, key=lambda urn: self._running[urn])
                    seconds = time.monotonic() - self._running[oldest]
                    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
                    self._say(f"waiting for {short_name(oldest)}{more} ({seconds:.0f} s)")


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
