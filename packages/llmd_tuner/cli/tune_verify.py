"""Command `llmd-oke tune verify`: comparison of a deployed model with the forecast that `tune apply` acted on."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.records import collected
from llmd_base.row import Basis, Row
from llmd_bench.comparison import ForecastError
from llmd_bench.files import write_whole
from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable, open_table
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


def verify(
    stack: options.Stack,
    project: options.Project = options.HERE,
    name: Name = None,
    rehearse: options.Rehearse = False,
    requests: options.Requests = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="How far a forecast may be off, as a share of what is seen; "
            f"{verification.verifying().tolerance:g} if left out.",
            min=0,
        ),
    ] = None,
    fail: Annotated[bool, typer.Option("--fail", help="End with exit code 1 where a forecast is further off.")] = False,
    as_json: options.Json = False,
) -> None:
    """Benchmark a deployed model under the load of its applied forecast, and show forecast, measurement and error."""
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
    """Forecast of a deployed model, and its measurement under the same load. `tolerance` is the allowed error as a
    share of the measured figures.
    """

    subject: AppliedModel
    seen: Row
    compared: tuple[ForecastError, ...]
    tolerance: float
    folder: Path

    @property
    def forecast(self) -> Row:
        """Forecast of the deployed model's latencies and rates, as a row of results."""
        return self.subject.applied.forecast

    @cached_property
    def missed(self) -> list[ForecastError]:
        """Latencies and rates whose forecast error exceeds the tolerance."""
        return beyond(self.compared, self.forecast, self.tolerance)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Differences between the conditions of the measurement and those that the forecast was made for, as texts."""
        return tuple(changed_conditions(self.subject.applied, self.seen.conditions))

    @property
    def about(self) -> str | None:
        """Remark on what the forecast's errors mean if the measured servers were simulated; None if they were real."""
        return SAME_FAMILY if self.seen.basis is Basis.CALIBRATED else None


def verification_json(verified: Verified) -> dict[str, Any]:
    """Return a forecast's comparison with its measurement as the object of `--json`. Errors are forecast over measured
    figure, less one (0.1 is 10 %).
    """
    forecast, seen = verified.forecast, verified.seen
    keys = (
        *("model", "topology", "copies", "offered_requests_per_s", "applied", "conditions", "forecast", "seen"),
        *("figures", "tolerance", "beyond_tolerance", "folder"),
    )
    figures = {
        figure.metric.name: {"forecast": figure.predicted} | collected("figure", ("seen", "error"), [figure], {})
        for figure in verified.compared
    }
    seen_keys = ("basis", "about", "requests", "failures", "notes")
    named = {
        "model": verified.subject.name,
        "forecast": collected("forecast", ("basis", "notes"), [forecast], {}),
        "seen": collected("seen", seen_keys, (seen, verified), {}),
        "figures": figures,
        "beyond_tolerance": [figure.metric.name for figure in verified.missed],
        "folder": str(verified.folder),
    }
    return collected("verification", keys, (verified, forecast, verified.subject.applied), named)


def show_verification(verified: Verified) -> None:
    """Print the forecast, the measurement and the error of each latency and rate."""
    output, forecast, seen = console.output(), verified.forecast, verified.seen
    unit = forecast.topology if forecast.copies == 1 else f"{forecast.copies} x {forecast.topology}"
    lengths = f"{forecast.input_tokens:.0f}/{forecast.output_tokens:.0f}"
    load = f"{forecast.offered_requests_per_s:.4g} requests/s of {lengths} at random"
    requests = f"{seen.requests} requests, {seen.failures} failed"
    output.print(f"[bold]{escape(verified.subject.name)}[/] {unit}, {load}: {requests}\n", soft_wrap=True)
    output.print(FittingTable(_table(verified)), "", sep="\n")
    if forecast.basis is Basis.BOUND:
        output.print("bounds are no forecasts, and not held against the tolerance", soft_wrap=True)
    else:
        count = len(verified.compared)
        within = f"{count - len(verified.missed)} of {count} figures within {verified.tolerance:.0%}"
        output.print(within, soft_wrap=True)
    lines = [f"forecast: {note}" for note in forecast.notes]
    lines += [f"not as forecast: {text}" for text in verified.conditions]
    lines += [verified.about] if verified.about else []
    for line in (*lines, *(f"note: {note}" for note in seen.notes)):
        output.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    output.print(f"[dim]run[/]  {escape(str(verified.folder))}", soft_wrap=True)


def _table(verified: Verified) -> Table:
    forecast = verified.forecast
    predicted = "no forecast\n(bound)" if forecast.basis is Basis.BOUND else f"forecast\n({forecast.basis.value})"
    figures = (predicted, f"seen\n({verified.seen.basis.value})", "error")
    table = open_table("", *figures, right=figures)
    for figure in verified.compared:
        colour = "red" if figure in verified.missed else "green"
        name = f"{figure.metric.title} [dim]{figure.metric.units}[/]"
        table.add_row(name, f"{figure.predicted:.4g}", f"{figure.seen:.4g}", f"[{colour}]{figure.error:+.1%}[/]")
    return table
