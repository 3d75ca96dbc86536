"""Signatures of known faults in logs, events, object states and metrics (`values/signatures`), each with cause, remedy
and public source.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from llmd_oke.values import Entry, names, required_entry

Severity = Literal["outage", "degraded", "risk"]
"""Effect of a fault, in the words of `llmd-oke status`."""

LEAST_TEXT_BYTES = 8
"""Minimum length in bytes of a text by which `llmd-oke doctor` searches logs, because a shorter text that is in every
line would make the search slow.
"""

_FOLDER = "signatures"

Source = Annotated[str, StringConstraints(pattern=r"^https://\S+$")]


class Signature(Entry):
    """Common part of all signatures.

    Attributes:
        title: what is wrong, in one sentence.
        severity: effect on requests.
        cause: why it happens.
        remedy: what ends it.
        command: command that shows more or helps. `{stack}`, `{namespace}`, `{pod}`, `{container}` and `{node}` are
            replaced by those of the evidence.
        versions: versions that have the fault, as text; None if it doesn't depend on them.
        sources: public addresses that describe the fault, the first one with the recorded line.
    """

    title: str
    severity: Severity
    cause: str
    remedy: str
    command: str
    versions: str | None = None
    sources: tuple[Source, ...] = Field(min_length=1)


class TextSignature(Signature):
    """Signature of a fault in a line of a log, in an event, or in the state of an object.

    Attributes:
        evidence: what has the line: logs of containers (`log`), events (`event`, as `Reason: message`), or states of
            pods, containers, nodes and Jobs (`state`, as `Reason: message`). Events and states often say the same, so
            each of the two is searched for the signatures of both. A container's state may have the end of its log, so
            it is searched for those of logs too.
        containers: containers whose logs are searched; all logs if empty.
        texts: texts of which the line has one, exactly as written.
        pattern: regular expression that the line must match too.
        least: number of lines in one log from which on they are a fault.
        recorded: line of the first source that shows the fault.
    """

    evidence: Literal["log", "event", "state"]
    containers: tuple[str, ...] = ()
    texts: tuple[Annotated[str, StringConstraints(min_length=LEAST_TEXT_BYTES)], ...] = Field(min_length=1)
    pattern: str | None = None
    least: int = Field(default=1, ge=1)
    recorded: str

    @model_validator(mode="after")
    def _recorded_line_matches(self) -> Self:
        if not self.matches(self.recorded):
            raise ValueError(f"the recorded line doesn't match: {self.recorded}")
        return self

    def matches(self, line: str) -> bool:
        """Return whether a line has one of the signature's texts and matches its pattern."""
        return any(text in line for text in self.texts) and self.accepts(line)

    def accepts(self, line: str) -> bool:
        """Return whether a line that is known to have one of the signature's texts matches its pattern too."""
        return self.pattern is None or re.search(self.pattern, line) is not None


class MetricSignature(Signature):
    """Signature of a fault in a metric of a server or endpoint picker.

    Attributes:
        metrics: names of the metric in different versions, as in the Prometheus text format. The sum of the series of
            the first one that a program exposes counts.
        labels: accepted values by label; series with others don't count.
        per: names of the metric by which it is divided; empty for the value itself.
        least: least value of `per`, or without it of the metric, for which it is judged.
        above: limit above which it is a fault; None if `below` is given.
        below: limit below which it is a fault.
    """

    evidence: Literal["metric"]
    metrics: tuple[str, ...] = Field(min_length=1)
    labels: Mapping[str, tuple[str, ...]] = {}
    per: tuple[str, ...] = ()
    least: float = 0.0
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("either above or below")
        return self


class ComponentSignatures(Entry):
    """Signatures of one component, by identifier: one file of `values/signatures`."""

    component: str
    signatures: Mapping[str, Annotated[TextSignature | MetricSignature, Field(discriminator="evidence")]]


@cache
def components() -> tuple[ComponentSignatures, ...]:
    """Return the signatures of all components, sorted by file name."""
    return tuple(required_entry(_FOLDER, name, ComponentSignatures) for name in names(_FOLDER))


def text_signatures() -> dict[str, TextSignature]:
    """Return the signatures of logs, events and states, by identifier."""
    return {name: signature for name, signature in _all() if isinstance(signature, TextSignature)}


def metric_signatures() -> dict[str, MetricSignature]:
    """Return the signatures of metrics, by identifier."""
    return {name: signature for name, signature in _all() if isinstance(signature, MetricSignature)}


def signature_metrics() -> tuple[str, ...]:
    """Return the names of all metrics that signatures of faults read."""
    names = [name for signature in metric_signatures().values() for name in (*signature.metrics, *signature.per)]
    return tuple(dict.fromkeys(names))


def _all() -> Iterator[tuple[str, TextSignature | MetricSignature]]:
    for item in components():
        yield from item.signatures.items()
