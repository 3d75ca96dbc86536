"""Parsed previews of an update (`pulumi preview --json`) and the engine's events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llmd_base.errors import KitError

_QUIET = {"same", "read", "refresh", "read-replacement", "read-discard", "discard-replaced"}
_REPLACES = "-replace"
_RESULT = "resOutputsEvent"

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Placeholder in previews for a value that is known only during the update (Pulumi's `UnknownStringValue`)."""


PROVIDERS = "pulumi:providers:"
"""Beginning of the types of providers, which the plug-in's name follows."""


def short_name(type_: str, name: str) -> str:
    """Return the name of a resource for messages, by its type and name in the engine: the type's last part and the name
    (`Deployment gpt-oss-120b-decode`), or `provider oci` for a provider.
    """
    return f"{'provider' if type_.startswith(PROVIDERS) else type_.rsplit(':', 1)[-1]} {name}"


@dataclass(frozen=True)
class ResourceChange:
    """Change of one resource, from old to new inputs and outputs.

    `changed` are the paths of changed inputs, `replaced_by` those that cause a replacement. `protected` is the state's
    protection; `stays_protected` is true if the program protects the resource too.
    """

    operation: str
    urn: str
    old: Mapping[str, Any] = field(default_factory=dict[str, Any])
    new: Mapping[str, Any] = field(default_factory=dict[str, Any])
    old_outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    new_outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changed: tuple[str, ...] = ()
    replaced_by: tuple[str, ...] = ()
    protected: bool = False
    stays_protected: bool = False

    @property
    def type(self) -> str:
        """Pulumi type of the resource, without the types of parents that the URN contains; empty if the URN
        has none.
        """
        return self.urn.split("::")[2].rsplit("$", 1)[-1] if self.urn.count("::") >= 3 else ""

    @property
    def name(self) -> str:
        """Name of the resource in the Pulumi program."""
        return self.urn.rsplit("::", 1)[-1]

    @property
    def short_name(self) -> str:
        """Name for messages, as by `short_name`."""
        return short_name(self.type, self.name)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of inputs whose values, or parts of them, are known only during the update."""
        return tuple(name for name, value in self.new.items() if _is_unknown(value))

    @property
    def deletes(self) -> bool:
        """True if the existing resource is deleted, including a replacement."""
        return self.operation in {"delete", "replace", "delete-replaced", "create-replacement"}


@dataclass(frozen=True)
class Preview:
    """Changes of all resources that an update would make, unchanged resources included, and the preview's errors."""

    changes: tuple[ResourceChange, ...]
    errors: tuple[str, ...] = ()

    @property
    def effective(self) -> Sequence[ResourceChange]:
        """The changes that create, update, replace or delete a resource."""
        return [change for change in self.changes if change.operation not in _QUIET]

    @property
    def counts(self) -> dict[str, int]:
        """Number of resources by operation (`create`, `same`, …)."""
        counts: dict[str, int] = {}
        for change in self.changes:
            counts[change.operation] = counts.get(change.operation, 0) + 1
        return counts


def _is_unknown(value: Any) -> bool:
    """Return True if a value or a part of it is known only during the update."""
    match value:
        case str():
            return UNKNOWN in value
        case Mapping():
            return any(map(_is_unknown, cast("Mapping[str, Any]", value).values()))
        case list():
            return any(map(_is_unknown, cast("list[Any]", value)))
        case _:
            return False


def parse(text: str) -> Preview:
    """Parse the output of `pulumi preview --json`.

    Raises:
        KitError: the output isn't a preview.
    """
    try:
        return of_document(json.loads(text))
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        excerpt = text.strip()[-500:] or "nothing"
        raise KitError(f"`pulumi preview --json` answered with no preview: {excerpt}") from error


def of_events(text: str) -> tuple[ResourceChange, ...]:
    """Parse the changes of resources from the engine's events, one JSON object in each line.

    Raises:
        KitError: the text isn't a stream of events.
    """
    try:
        events = [json.loads(line) for line in text.splitlines()]
        return tuple(_change(_step(event[_RESULT]["metadata"])) for event in events if _RESULT in event)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise KitError(f"The engine's events can't be read: {text.strip()[-500:] or 'nothing'}") from error


def errors_of_events(text: str) -> tuple[str, ...]:
    """Return the error messages among the engine's events in `text`; none if the text isn't a stream of events."""
    try:
        events: list[dict[str, Any]] = [json.loads(line).get("diagnosticEvent") or {} for line in text.splitlines()]
        return tuple(_errors(events))
    except (ValueError, AttributeError):
        return ()


def refusals_of_events(text: str) -> tuple[str, ...]:
    """Return the messages of violated mandatory policies among the engine's events in `text`, each once; none if the
    text isn't a stream of events.
    """
    try:
        events: list[dict[str, Any]] = [json.loads(line).get("policyEvent") or {} for line in text.splitlines()]
        mandatory = (event for event in events if event.get("enforcementLevel") == "mandatory")
        return tuple(dict.fromkeys(f"policy {event['policyName']}: {event['message'].strip()}" for event in mandatory))
    except (ValueError, AttributeError, KeyError):
        return ()


def failures_of_events(text: str) -> "Failures":
    """Return the resources that failed, or weren't begun, according to an update's events; none if the text isn't a
    stream of events.
    """
    try:
        events: list[dict[str, Any]] = [json.loads(line).get("diagnosticEvent") or {} for line in text.splitlines()]
    except (ValueError, AttributeError):
        return Failures()
    told = [(str(event.get("urn") or ""), str(event.get("message") or "")) for event in events if _is_error(event)]
    not_begun = dict.fromkeys(urn for urn, message in told if _NOT_BEGUN in message)
    failed = dict.fromkeys(urn for urn, message in told if _NOT_BEGUN not in message)
    parts = ([ResourceChange("", urn) for urn in urns] for urns in (failed, not_begun))
    names, others = (tuple(part.short_name for part in found if part.type not in _NO_PART) for found in parts)
    return Failures(names, others)


_NO_PART = frozenset(("", "pulumi:pulumi:Stack"))
"""Types in events of no resource, and of the stack, which fails whenever a resource fails."""


_NOT_BEGUN = "but none were seen"
"""End of the engine's error message for a resource of the saved plan that a failed update didn't reach: `expected
resource operations for URN but none were seen` (Pulumi 3.250, deployment_executor.go).
"""


@dataclass(frozen=True)
class Failures:
    """Short names of resources that failed in an update, and of planned resources that weren't begun
    because of that.
    """

    failed: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()


def _is_error(diagnostic: Mapping[str, Any]) -> bool:
    return diagnostic.get("severity") == "error"


def _step(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the metadata of an engine event into a step with the keys of `pulumi preview --json`."""
    differences: Mapping[str, Any] = metadata.get("detailedDiff") or {}
    return {
        "op": metadata["op"],
        "urn": metadata["urn"],
        "oldState": metadata.get("old"),
        "newState": metadata.get("new"),
        "detailedDiff": {path: {"kind": how["diffKind"]} for path, how in differences.items()},
    }


def of_document(document: Mapping[str, Any]) -> Preview:
    """Parse a JSON document of `pulumi preview --json`."""
    steps: list[dict[str, Any]] = document.get("steps") or []
    return Preview(tuple(_change(step) for step in steps), tuple(_errors(document.get("diagnostics") or [])))


def _change(step: Mapping[str, Any]) -> ResourceChange:
    differences: Mapping[str, Any] = step.get("detailedDiff") or {}
    reasons = [path for path, how in differences.items() if str(how["kind"]).endswith(_REPLACES)]
    return ResourceChange(
        operation=step["op"],
        urn=step["urn"],
        old=_part(step, "oldState", "inputs"),
        new=_part(step, "newState", "inputs"),
        old_outputs=_part(step, "oldState", "outputs"),
        new_outputs=_part(step, "newState", "outputs"),
        changed=tuple(differences or step.get("diffReasons") or ()),
        replaced_by=tuple(reasons or step.get("replaceReasons") or ()),
        protected=_is_protected(step, "oldState"),
        stays_protected=_is_protected(step, "oldState") and _is_protected(step, "newState"),
    )


def _is_protected(step: Mapping[str, Any], state: str) -> bool:
    part: Mapping[str, Any] = step.get(state) or {}
    return bool(part.get("protect"))


def _part(step: Mapping[str, Any], state: str, part: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = step.get(state) or {}
    return values.get(part) or {}


def _errors(diagnostics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for diagnostic in diagnostics:
        if _is_error(diagnostic):
            yield str(diagnostic.get("message", "")).strip()
