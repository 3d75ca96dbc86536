"""The steps of an operation as `pulumi preview --json` would list them, taken from the engine's events."""

from collections.abc import Callable
from typing import Any

from pulumi.automation import events

from llmd_oke.operations.recovery import BEGUN_FIELDS


class Steps:
    """Hears the engine's events, keeps each resource's step and what went wrong, and hands the event on."""

    def __init__(self, hear: Callable[[events.EngineEvent], Any]) -> None:
        self.recorded: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self._hear = hear

    def hear(self, event: events.EngineEvent) -> None:
        """One event."""
        if event.resource_pre_event:
            self.recorded.append(step(event.resource_pre_event.metadata))
        if kept := logged(event):
            self.log.append(kept)
        self._hear(event)


def logged(event: events.EngineEvent) -> dict[str, Any]:
    """What the CLI writes of an event to its event log, where a resource failed or the engine complains."""
    if event.diagnostic_event:
        diagnostic = event.diagnostic_event
        return {"diagnosticEvent": {"urn": diagnostic.urn, "message": diagnostic.message}}
    if event.res_op_failed_event is None:
        return {}
    metadata = event.res_op_failed_event.metadata
    new = {name: getattr(metadata.new, name, None) for name in BEGUN_FIELDS}
    return {"resOpFailedEvent": {"metadata": {"op": _text(metadata.op), "urn": metadata.urn, "new": new}}}


def step(metadata: events.StepEventMetadata) -> dict[str, Any]:
    """A step in the words of `pulumi preview --json`."""
    differences = metadata.detailed_diff or {}
    return {
        "op": _text(metadata.op),
        "urn": metadata.urn,
        "oldState": _state(metadata.old),
        "newState": _state(metadata.new),
        "detailedDiff": {
            path: {"kind": _text(how.diff_kind), "inputDiff": how.input_diff} for path, how in differences.items()
        },
        "replaceReasons": list(metadata.keys or ()),
        "diffReasons": list(metadata.diffs or ()),
    }


def step_with_outputs(metadata: events.StepEventMetadata) -> dict[str, Any]:
    """A step with what the resource was and is, beside its inputs."""
    states = {"oldState": metadata.old, "newState": metadata.new}
    outputs = {name: dict(state.outputs or {}) if state else {} for name, state in states.items()}
    told = step(metadata)
    return {**told, **{name: {**told[name], "outputs": outputs[name]} for name in states}}


def _state(state: events.StepEventStateMetadata | None) -> dict[str, Any]:
    return {"protect": bool(state.protect), "inputs": dict(state.inputs or {})} if state else {}


def _text(value: Any) -> str:
    """The SDK gives names as text or as an enum."""
    return str(getattr(value, "value", value))
