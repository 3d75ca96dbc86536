"""A verified forecast, for people and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console
from llmd_oke.cli.tables import Fitting
from llmd_oke.experiments.tuner.applied import changed_conditions
from llmd_oke.experiments.tuner.forecast_errors import beyond
from llmd_oke.experiments.tuner.verification import Subject
from llmd_oke.results.errors import Compared
from llmd_oke.results.row import Basis, Row

SAME_FAMILY = (
    "rehearsed: these are the simulation's figures, and its latencies come from a model of the same family as the "
    "forecast's. The errors tell how far fit and closed form are from the simulation, nothing of real servers."
)


@dataclass(frozen=True)
class Verified:
    """A forecast, and what was seen under its load. `tolerance` is a share of what was seen."""

    subject: Subject
    seen: Row
    compared: tuple[Compared, ...]
    tolerance: float
    folder: Path

    @property
    def forecast(self) -> Row:
        """What was expected."""
        return self.subject.applied.forecast

    @cached_property
    def missed(self) -> list[Compared]:
        """The figures that are further off than allowed."""
        return beyond(self.compared, self.forecast, self.tolerance)

    @property
    def conditions(self) -> tuple[str, ...]:
        """How what was measured differs from what the forecast was made for."""
        return tuple(changed_conditions(self.subject.applied, self.seen.conditions))

    @property
    def about(self) -> str | None:
        """What the errors mean where nothing was measured."""
        return SAME_FAMILY if self.seen.basis is Basis.CALIBRATED else None


def as_json(verified: Verified) -> dict[str, Any]:
    """All of it as plain data; errors are forecast over seen, less one."""
    forecast, seen = verified.forecast, verified.seen
    return {
        "model": verified.subject.name,
        "topology": forecast.topology,
        "copies": forecast.copies,
        "offered_requests_per_s": forecast.offered_requests_per_s,
        "applied": verified.subject.applied.applied,
        "conditions": list(verified.conditions),
        "forecast": {"basis": forecast.basis.value, "notes": list(forecast.notes)},
        "seen": {
            "basis": seen.basis.value,
            "about": verified.about,
            "requests": seen.requests,
            "failures": seen.failures,
            "notes": list(seen.notes),
        },
        "figures": {
            each.metric.name: {"forecast": each.predicted, "seen": each.seen, "error": each.error}
            for each in verified.compared
        },
        "tolerance": verified.tolerance,
        "beyond_tolerance": [each.metric.name for each in verified.missed],
        "folder": str(verified.folder),
    }


def show(verified: Verified) -> None:
    """Prints it."""
    output = console.output()
    output.print(f"{_headline(verified)}\n", soft_wrap=True)
    output.print(Fitting(_table(verified)), "", sep="\n")
    output.print(_verdict(verified), soft_wrap=True)
    for line in _lines(verified):
        output.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    output.print(f"[dim]run[/]  {escape(str(verified.folder))}", soft_wrap=True)


def _headline(verified: Verified) -> str:
    forecast, seen = verified.forecast, verified.seen
    unit = forecast.topology if forecast.copies == 1 else f"{forecast.copies} x {forecast.topology}"
    lengths = f"{forecast.input_tokens:.0f}/{forecast.output_tokens:.0f}"
    load = f"{forecast.offered_requests_per_s:.4g} requests/s of {lengths} at random"
    return f"[bold]{escape(verified.subject.name)}[/] {unit}, {load}: {seen.requests} requests, {seen.failures} failed"


def _table(verified: Verified) -> Table:
    forecast = verified.forecast
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    bound = forecast.basis is Basis.BOUND
    table.add_column("no forecast\n(bound)" if bound else f"forecast\n({forecast.basis.value})", justify="right")
    table.add_column(f"seen\n({verified.seen.basis.value})", justify="right")
    table.add_column("error", justify="right")
    for each in verified.compared:
        colour = "red" if each in verified.missed else "green"
        name = f"{each.metric.title} [dim]{each.metric.units}[/]"
        table.add_row(name, f"{each.predicted:.4g}", f"{each.seen:.4g}", f"[{colour}]{each.error:+.1%}[/]")
    return table


def _verdict(verified: Verified) -> str:
    if verified.forecast.basis is Basis.BOUND:
        return "bounds are no forecasts, and not held against the tolerance"
    count = len(verified.compared)
    return f"{count - len(verified.missed)} of {count} figures within {verified.tolerance:.0%}"


def _lines(verified: Verified) -> Iterator[str]:
    yield from (f"forecast: {note}" for note in verified.forecast.notes)
    yield from (f"not as forecast: {text}" for text in verified.conditions)
    if verified.about:
        yield verified.about
    yield from (f"note: {note}" for note in verified.seen.notes)
