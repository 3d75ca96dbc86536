"""`llmd-oke tune verify`: was the forecast right that `tune apply` acted on?"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.row import Basis, Row
from llmd_bench.comparison import ForecastError
from llmd_bench.files import write_whole
from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable
from rich.markup import escape
from rich.table import Table

from llmd_tuner.cli.tune_options import Name, model_index
from llmd_tuner.experiments import verification
from llmd_tuner.experiments.records import applied_file, applied_forecast, changed_conditions
from llmd_tuner.experiments.verification import AppliedModel, beyond

SAME_FAMILY = (
    "rehearsed: these are the simulation's figures, and its latencies come from a model of the same family as the "
    "forecast's. The errors tell how far fit and closed form are from the simulation, nothing of real servers."
)

Tolerance = Annotated[
    float | None,
    typer.Option(
        help="How far a forecast may be off, as a share of what is seen; "
        f"{verification.verifying().tolerance:g} if left out.",
        min=0,
    ),
]
Fail = Annotated[bool, typer.Option("--fail", help="End with exit code 1 where a forecast is further off.")]


def verify(
    stack: options.Stack,
    project: options.Project = options.HERE,
    name: Name = None,
    rehearse: options.Rehearse = False,
    requests: options.Requests = None,
    tolerance: Tolerance = None,
    fail: Fail = False,
    as_json: options.Json = False,
) -> None:
    """Load what is deployed as the applied forecast assumed, and show forecast, measurement and error side by side."""
    models = config.load(project, stack).models
    model = models[model_index([model.object_name for model in models], name)]
    applied = applied_forecast(applied_file(project, stack), stack, model.object_name)
    subject = verification.subject(project, stack, model, applied)
    progress = console.progress()
    if rehearse:
        environment = console.inherited_environment()
        seen, folder = verification.measure_rehearsed(subject, requests, environment, progress)
    else:
        seen, folder = verification.measure_deployed(subject, requests, progress)
    allowed = verification.verifying().tolerance if tolerance is None else tolerance
    verified = Verified(subject, seen, tuple(verification.compare(applied.forecast, seen)), allowed, folder.path)
    document = json.dumps(verification_json(verified), indent=2)
    write_whole(folder.path / "verification.json", document + "\n")
    if as_json:
        typer.echo(document)
    else:
        show_verification(verified)
    raise typer.Exit(1 if fail and verified.missed else 0)


@dataclass(frozen=True)
class Verified:
    """Forecast, and a measurement under its load. `tolerance` is a share of the measured figures."""

    subject: AppliedModel
    seen: Row
    compared: tuple[ForecastError, ...]
    tolerance: float
    folder: Path

    @property
    def forecast(self) -> Row:
        """Row that was expected."""
        return self.subject.applied.forecast

    @cached_property
    def missed(self) -> list[ForecastError]:
        """Figures that are further off than allowed."""
        return beyond(self.compared, self.forecast, self.tolerance)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Differences of the measured conditions from those that the forecast was made for."""
        return tuple(changed_conditions(self.subject.applied, self.seen.conditions))

    @property
    def about(self) -> str | None:
        """Meaning of the errors where nothing was measured; None where something was."""
        return SAME_FAMILY if self.seen.basis is Basis.CALIBRATED else None


def verification_json(verified: Verified) -> dict[str, Any]:
    """Return the comparison as plain data; errors are forecast over seen, less one."""
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
            figure.metric.name: {"forecast": figure.predicted, "seen": figure.seen, "error": figure.error}
            for figure in verified.compared
        },
        "tolerance": verified.tolerance,
        "beyond_tolerance": [figure.metric.name for figure in verified.missed],
        "folder": str(verified.folder),
    }


def show_verification(verified: Verified) -> None:
    """Print the comparison."""
    output = console.output()
    output.print(f"{_headline(verified)}\n", soft_wrap=True)
    output.print(FittingTable(_table(verified)), "", sep="\n")
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
    for figure in verified.compared:
        colour = "red" if figure in verified.missed else "green"
        name = f"{figure.metric.title} [dim]{figure.metric.units}[/]"
        table.add_row(name, f"{figure.predicted:.4g}", f"{figure.seen:.4g}", f"[{colour}]{figure.error:+.1%}[/]")
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
