"""An experiment's plan, its state and its results, for people and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console
from llmd_oke.cli.tables import Fitting
from llmd_oke.experiments.reporting import comparison
from llmd_oke.experiments.runs import stack_file
from llmd_oke.experiments.runs.folders import RunFolder
from llmd_oke.experiments.runs.forecast import Duration, Forecast, Round
from llmd_oke.experiments.runs.preparing import Experiment, forecast_of

FILE_WIDTH = 140
"""Columns where the output is no terminal."""


def show_plan(
    experiment: Experiment, names: Sequence[str], measured: Mapping[str, float], *, as_json: bool = False
) -> None:
    """What is to be deployed and measured, for how long and at what price; `measured` are times that are known."""
    forecast = forecast_of(experiment, names, measured)
    if as_json:
        console.output().print_json(data=plan_document(experiment, forecast))
        return
    settings = experiment.settings
    console.output().print(f"[bold]{escape(experiment.name)}[/] {escape(experiment.recipe.description)}\n")
    console.output().print(Fitting(_rounds(forecast.rounds)))
    table = Table.grid(padding=(0, 2))
    for name, text in _facts(experiment, forecast):
        table.add_row(f"  [dim]{name}[/]", text)
    console.output().print("", table, sep="\n")
    if settings.rehearsed:
        console.output().print(f"  [dim]rehearsed: model time is wall time / {settings.time_scale:g}[/]")


def plan_document(experiment: Experiment, forecast: Forecast) -> dict[str, Any]:
    """The plan as plain data: seconds of wall time, US dollars at list price."""
    return {
        "recipe": experiment.name,
        "settings": experiment.settings.model_dump(mode="json"),
        "rounds": [asdict(each) for each in forecast.rounds],
        "seconds": forecast.seconds,
        "gpu_hours": forecast.gpu_hours,
        "price_usd": forecast.price_usd,
    }


def _rounds(rounds: Sequence[Round]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  round")
    table.add_column("deployments")
    for name in ("GPUs", "levels", "deploy", "bench", "tear down"):
        table.add_column(name, justify="right")
    for number, each in enumerate(rounds, 1):
        times = (_duration(each.deploy), _duration(each.bench), _duration(each.teardown))
        table.add_row(f"  {number}", "\n".join(each.names), str(each.gpus), str(each.stages), *times)
    return table


def _facts(experiment: Experiment, forecast: Forecast) -> list[tuple[str, str]]:
    settings = experiment.settings
    limit = [("limited to", f"{settings.most_requests} requests at each level")] if settings.most_requests else []
    if settings.rehearsed:
        return [*limit, ("in all", f"{_time(forecast.seconds)} on this machine, no GPU")]
    price = f"{forecast.gpus} GPUs for {_time(forecast.seconds)}: {forecast.gpu_hours:.1f} GPU-hours"
    return [*limit, ("in all", price), ("cost", f"{forecast.price_usd:,.2f} $ at list price")]


def _duration(duration: Duration) -> str:
    return f"{_time(duration.seconds)}\n[dim]{duration.basis}[/]"


def _time(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if seconds >= 600 else f"{seconds:.0f} s"


def show_status(folder: RunFolder) -> None:
    """How far a run is."""
    state = folder.state
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("deployment", "state", "levels"):
        table.add_column(name)
    table.add_column("cause", overflow="fold")
    for name, stages in folder.deployments().items():
        standing = state.deployments[name]
        done = len(stages) - len(folder.left(name))
        table.add_row(name, standing.phase, f"{done} of {len(stages)}", escape(standing.cause or ""))
    console.output().print(table)
    ended = f"ended {state.ended}" if state.ended else "not ended: `llmd-oke experiment run` goes on with it"
    console.output().print(f"[dim]begun {state.started}, {ended}[/]", soft_wrap=True)
    console.output().print(str(folder.path), soft_wrap=True, markup=False)


def show_results(folder: RunFolder) -> None:
    """The comparison, and where the rest lies."""
    output = console.output() if console.output().is_terminal else Console(width=FILE_WIDTH, highlight=False)
    for heading, table in comparison.tables(folder, folder.gather(), brief=True):
        shown = Table(title=escape(heading), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
        for i, name in enumerate(table.columns):
            shown.add_column(name, justify="left" if i < 2 else "right", no_wrap=i < 2)
        for row in table.cells:
            shown.add_row(*(_tone(cell.text, cell.tone) for cell in row))
        output.print(Fitting(shown), "")
    for name in ("rows.jsonl", comparison.MARKDOWN, comparison.HTML):
        output.print(f"[dim]{name:12}[/] {folder.path / name}", soft_wrap=True)


def _tone(text: str, tone: str) -> str:
    colour = {"good": "green", "bad": "red", "quiet": "dim"}.get(tone)
    return f"[{colour}]{escape(text)}[/]" if colour else escape(text)


def show_interrupted(experiment: Experiment) -> None:
    """What is left up, and what to do about it."""
    settings = experiment.settings
    own = stack_file.name_of(settings.stack)
    down = f"llmd-oke rehearse down --stack {own}" if settings.rehearsed else f"llmd-oke destroy --stack {own}"
    console.errors().print(f"interrupted; run the same command again to go on, or end it: {down}", markup=False)
