"""Regression gates: conditions on a comparison that end a pipeline.

ttft_ms.p95>+10%            fails where B's p95 is more than 10 % above A's
output_tokens_per_s<-5%     fails where B gives less than 95 % of A's tokens
ttft_ms.p95>+50             fails where B's p95 is more than 50 ms above A's
failures_share>0.01         fails where more than 1 % of B's requests failed, whatever A's did
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from llmd_oke.errors import KitError
from llmd_oke.results.comparison import Comparison, LoadComparison
from llmd_oke.results.metrics import Metric, metric

_GATE = re.compile(r"\s*([a-z0-9_.]+)\s*([<>])\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")

Kind = Literal["relative", "difference", "value"]


@dataclass(frozen=True)
class Gate:
    """Fails where the change of a metric, or its value in B, is on the wrong side of `limit`."""

    text: str
    metric: Metric
    above: bool
    limit: float
    kind: Kind


@dataclass(frozen=True)
class Breach:
    """A gate that failed under one load, and why."""

    gate: Gate
    load: str
    why: str

    def __str__(self) -> str:
        return f"{self.gate.text}: {self.why} ({self.load})"


def parse_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """The gates of texts such as `ttft_ms.p95>+10%`.

    Raises:
        KitError: some are none; all of them are named.
    """
    gates: list[Gate] = []
    wrong: list[str] = []
    for text in texts:
        try:
            gates.append(_parse(text))
        except KitError as error:
            wrong.append(f"{text!r} is no gate. {error.message} {error.remedy or ''}".rstrip())
    if wrong:
        raise KitError(
            "\n".join(wrong), "A gate reads like ttft_ms.p95>+10%, output_tokens_per_s<-5% or failures_share>0.01."
        )
    return tuple(gates)


def _parse(text: str) -> Gate:
    found = _GATE.fullmatch(text)
    if not found:
        raise KitError("It needs a metric, < or >, and a number, with a sign for a change and % for a share of A.")
    name, sign, direction, number, percent = found.groups()
    value = float(number) * (-1 if direction == "-" else 1)
    if percent:
        return Gate(text, metric(name), sign == ">", value / 100, "relative")
    return Gate(text, metric(name), sign == ">", value, "difference" if direction else "value")


def breaches(gates: Sequence[Gate], comparison: Comparison) -> list[Breach]:
    """The gates that fail, load by load. What can't be judged fails: a gate that lets everything through is none."""
    return [
        *(breach for load in comparison.loads for gate in gates for breach in _judge(gate, load)),
        *(Breach(gate, str(load), "B has no result under it") for load in comparison.only_a for gate in gates),
    ]


def _judge(gate: Gate, load: LoadComparison) -> Iterator[Breach]:
    found, why = _found(gate, load)
    if found is None or (found > gate.limit if gate.above else found < gate.limit):
        yield Breach(gate, str(load.load), why)


def _found(gate: Gate, load: LoadComparison) -> tuple[float | None, str]:
    units = gate.metric.units
    if gate.kind == "value":
        values = [value for row in load.b if (value := gate.metric.of(row)) is not None]
        mean = sum(values) / len(values) if values else None
        return mean, "B does not have it" if mean is None else f"B has {mean:,.4g} {units}"
    change = load.change(gate.metric)
    if change is None:
        return None, "one side does not have it"
    if gate.kind == "difference":
        return change.difference, f"it changed by {change.difference:+,.4g} {units}"
    if change.relative is None:
        return (None, "A is zero, so that there is no share of it") if change.difference else (0.0, "")
    return (
        change.relative,
        f"it changed by {change.relative:+.1%}, from {change.mean_a:,.4g} to {change.mean_b:,.4g} {units}",
    )
