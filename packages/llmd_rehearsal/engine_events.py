"""Events of the Pulumi engine during an operation: one line for each changed resource, the steps of a preview, and
concise errors.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
from lightkube import Client
from lightkube.core.decoders import decode_list, decode_status  # pyright: ignore[reportUnknownVariableType]
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.records import document
from llmd_oke.operations import guards
from llmd_oke.operations.objects import metadata as object_metadata
from llmd_oke.operations.previews import of_document
from llmd_oke.operations.recovery import BEGUN_FIELDS
from llmd_oke.operations.status.reading import container_statuses, name_of
from pulumi.automation import events

HEARTBEAT_S = 5.0

_PAST_VERBS = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "create-replacement": "created anew",
    "delete-replaced": "deleted the old",
    "import": "imported",
}
"""Verbs of reports, by engine operation. The engine's summary operation `replace` is left out, as its two halves are
reported.
"""

_PREVIEW_VERBS = {
    "create": "would create",
    "update": "would update",
    "delete": "would delete",
    "replace": "would replace",
    "import": "would import",
}

_MAX_DIFFERENCES = 4
_LONGEST_LINE = 200
_LINES_OF_THE_ENGINE = 8

_CONSEQUENCES = {"update failed", "Resource monitor has terminated, shutting down"}
"""Error messages of engine and program that only follow from other errors; those others state the cause."""


class EventReporter:
    """Listener for engine events that reports changed resources and collects errors.

    If nothing was reported for `HEARTBEAT_S` seconds, the reporter says which resource is being waited for, with the
    text that `trouble` returns about the cluster.
    """

    def __init__(
        self, progress: Progress, *, is_preview: bool = False, trouble: Callable[[], str | None] = lambda: None
    ) -> None:
        self._progress = progress
        self._trouble = trouble
        self._verbs = _PREVIEW_VERBS if is_preview else _PAST_VERBS
        self._running: dict[str, float] = {}
        self._errors: list[str] = []
        self._started_s = self._reported_s = time.monotonic()
        self._lock = threading.Lock()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def hear(self, event: events.EngineEvent) -> None:
        """Note from one of the engine's events which resource is in progress, has changed or has failed, and report
        changes.
        """
        with self._lock:
            if event.resource_pre_event:
                metadata = event.resource_pre_event.metadata
                if _text(metadata.op) in self._verbs:
                    self._running[metadata.urn] = time.monotonic()
            elif event.res_outputs_event:
                self._end(event.res_outputs_event.metadata)
            elif event.res_op_failed_event:
                self._running.pop(event.res_op_failed_event.metadata.urn, None)
            elif event.diagnostic_event:
                diagnostic = event.diagnostic_event
                text = diagnostic.message.strip()
                if diagnostic.severity == "error":
                    print(text, file=sys.stderr, flush=True)
                    error = concise_error(text)
                    self._errors.append(f"{short_name(diagnostic.urn)}: {error}" if diagnostic.urn else error)
                elif diagnostic.severity == "warning":
                    self._say(f"warning: {text}")

    def failure(self, operation: str, output: str = "") -> KitError:
        """Return the error of a failed operation, with the engine's messages; without messages, with the end of the
        engine's text `output`.
        """
        with self._lock:
            errors = [error for error in dict.fromkeys(self._errors) if error not in _CONSEQUENCES]
            last = [line for line in output.splitlines() if line.strip()][-_LINES_OF_THE_ENGINE:]
            text = "\n".join(errors or last) or "the engine gave no reason"
        return KitError(f"`pulumi {operation}` failed:\n{text}")

    def _end(self, metadata: Any) -> None:
        started_s = self._running.pop(metadata.urn, None)
        if started_s is None or "pulumi:" in metadata.type:
            return
        seconds = time.monotonic() - started_s
        took = f" in {seconds:.0f} s" if seconds >= 1 else ""
        changed = differences(metadata) if self._verbs is _PREVIEW_VERBS else ""
        self._say(f"{self._verbs[_text(metadata.op)]} {short_name(metadata.urn)}{took}{changed}")

    def _say(self, text: str) -> None:
        self._reported_s = time.monotonic()
        self._progress.detail(text)

    def _beat(self) -> None:
        while True:
            time.sleep(1.0)
            with self._lock:
                quiet = time.monotonic() - self._reported_s > HEARTBEAT_S
            if quiet:
                trouble = self._trouble()
                with self._lock:
                    self._say(f"waiting for {self._waited_for()}{f'; {trouble}' if trouble else ''}")

    def _waited_for(self) -> str:
        waiting = [
            urn for urn in self._running if "pulumi:pulumi:Stack" not in urn and "llmd-oke:index:" not in _type(urn)
        ]
        if not waiting:
            return f"the engine ({time.monotonic() - self._started_s:.0f} s)"
        oldest = min(waiting, key=lambda urn: self._running[urn])
        seconds = time.monotonic() - self._running[oldest]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{short_name(oldest)}{more} ({seconds:.0f} s)"


def prepare_decoding() -> None:
    """Decode a list of pods and a status once, so that several threads can decode such objects at the same time
    afterwards.

    msgspec 0.22 gathers the fields of a model at the first decoding; if a second thread decodes that model at the same
    time, the process ends with a segmentation fault.
    """
    decode_list(b'{"items": []}', Pod)
    decode_status(b"{}")


def failed_container(client: Client) -> str | None:
    """Describe one container of the cluster that ended and is being restarted, with its last log line; None if there is
    none or the API server doesn't answer. Exit code 0 counts too, because a vLLM server whose engine died ends with 0.
    """
    try:
        for pod in client.list(Pod, namespace="*"):
            for status in container_statuses(pod):
                last = status.lastState.terminated if status.lastState else None
                if status.ready or not last:
                    continue
                name, namespace = name_of(pod), object_metadata(pod).namespace
                log = client.log(name, namespace=namespace, container=status.name, tail_lines=5)
                words = [line.strip() for line in log if line.strip()]
                again = f"ended with {last.exitCode}, {status.restartCount} restarts"
                return f"{status.name} of Pod {name} {again}{f': {words[-1][:_LONGEST_LINE]}' if words else ''}"
    except (ApiError, httpx2.HTTPError):
        return None
    return None


def differences(metadata: events.StepEventMetadata) -> str:
    """Return the property changes of a step as text to append to the resource's name: `: spec.replicas changes from 8
    to 6`.
    """
    (change,) = of_document({"steps": [step(metadata)]}).changes
    paths = change.replaced_by if change.operation == "replace" else change.changed
    texts = [guards.difference(path, change) for path in paths[:_MAX_DIFFERENCES]]
    more = [f"{len(paths) - len(texts)} more"] if len(paths) > len(texts) else []
    return f": {'; '.join([*texts, *more])}" if texts else ""


def short_name(urn: str) -> str:
    """Return the type and name of a resource's URN, for example `Deployment gpt-oss-120b-decode`."""
    return f"{_type(urn).rsplit(':', 1)[-1]} {urn.rsplit('::', 1)[-1]}"


def _type(urn: str) -> str:
    """Return the resource's own type from a URN, which lists the parents' types before it, separated by dollar
    signs.
    """
    return urn.split("::")[-2].rsplit("$", maxsplit=1)[-1] if urn.count("::") >= 3 else urn


class StepRecorder:
    """Listener for engine events that records each resource's step, the errors and the counts of changes, and passes
    every event to `hear`.
    """

    def __init__(self, hear: Callable[[events.EngineEvent], Any]) -> None:
        self.changes: dict[str, int] = {}
        self.recorded: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self._hear = hear

    def hear(self, event: events.EngineEvent) -> None:
        """Record one engine event and pass it on to the function `hear` that the recorder was created with."""
        if event.resource_pre_event:
            self.recorded.append(step(event.resource_pre_event.metadata))
        if event.summary_event:
            self.changes = {_text(kind): count for kind, count in event.summary_event.resource_changes.items()}
        if entry := logged(event):
            self.log.append(entry)
        self._hear(event)


def logged(event: events.EngineEvent) -> dict[str, Any]:
    """Return the entry that the Pulumi CLI's event log would have for a failed resource or a diagnostic message; empty
    for other events.
    """
    if event.diagnostic_event:
        return {"diagnosticEvent": document("urn message", event.diagnostic_event)}
    if event.res_op_failed_event is None:
        return {}
    metadata = event.res_op_failed_event.metadata
    new = {name: getattr(metadata.new, name, None) for name in BEGUN_FIELDS}
    return {"resOpFailedEvent": {"metadata": document("op urn", metadata, op=_text(metadata.op), new=new)}}


def step(metadata: events.StepEventMetadata) -> dict[str, Any]:
    """Return the step of a resource, given an event's metadata, in the format of `pulumi preview --json`."""
    return document(
        "op urn",
        metadata,
        op=_text(metadata.op),
        oldState=_state(metadata.old),
        newState=_state(metadata.new),
        detailedDiff={
            path: {"kind": _text(difference.diff_kind), "inputDiff": difference.input_diff}
            for path, difference in (metadata.detailed_diff or {}).items()
        },
        replaceReasons=list(metadata.keys or ()),
        diffReasons=list(metadata.diffs or ()),
    )


def step_with_outputs(metadata: events.StepEventMetadata) -> dict[str, Any]:
    """Return the step of a resource, given an event's metadata, in the format of `pulumi preview --json`, with the old
    and new outputs beside the inputs.
    """
    states = {"oldState": metadata.old, "newState": metadata.new}
    outputs = {name: dict(state.outputs or {}) if state else {} for name, state in states.items()}
    row = step(metadata)
    return {**row, **{name: {**row[name], "outputs": outputs[name]} for name in states}}


def _state(state: events.StepEventStateMetadata | None) -> dict[str, Any]:
    return {"protect": bool(state.protect), "inputs": dict(state.inputs or {})} if state else {}


def _text(value: Any) -> str:
    """Return a name as text, which the SDK gives as text or as an enum member."""
    return str(getattr(value, "value", value))


_TRACEBACK = "Traceback (most recent call last):"
_CALLS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
_SEVERAL = re.compile(r"\d+ errors? occurred:")
_BULLET = re.compile(r"\n\s*\* ")
_MADE = re.compile(r'resource "[^"]*" was successfully created, but .*?: ')
_OBJECT = '{"message": '
_REPEATED = ("an unhandled error occurred: ", "python inline source runtime error: ")


def concise_error(text: str) -> str:
    """Return an engine's error in short: without Python tracebacks, with JSON error objects replaced by their messages,
    and with each of several combined errors on a line of its own.
    """
    error = text.strip()
    for prefix in _REPEATED:
        if error.startswith(prefix):
            error = error.removeprefix(prefix).partition(_TRACEBACK)[0].strip()
    error = _messages(_CALLS.sub("", error))
    if not _SEVERAL.match(error):
        return error
    parts = (_MADE.sub("", part.strip()) for part in _BULLET.split(_SEVERAL.sub("", error, count=1)))
    return "\n".join(part for part in parts if part)


def _messages(text: str) -> str:
    """Return the text with each JSON object that begins with `message` replaced by its message."""
    before, start, rest = text.partition(_OBJECT)
    if not start:
        return text
    try:
        content, end = json.JSONDecoder().raw_decode(start + rest)
    except ValueError:
        return text
    return f"{before}{content['message']}{_messages((start + rest)[end:])}"
