"""`llmd-oke experiment`: a list of topologies, deployed one after the other and benchmarked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import collected
from llmd_oke.cli import console, options
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.tables import FittingTable, open_table
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmd_tuner.experiments import comparison, deployer, preparation, runs
from llmd_tuner.experiments.deployer import PulumiDeployer, rehearsal
from llmd_tuner.experiments.preparation import (
    Experiment,
    ExperimentRound,
    Forecast,
    RunOptions,
    WallDuration,
    forecast_of,
)
from llmd_tuner.experiments.runner import Runner, unfinished
from llmd_tuner.experiments.runs import RunFolder

app = typer.Typer(
    help="Deploy a list of topologies, benchmark each under a list of loads, tear down, compare. A recipe says which: "
    "one of the kit's (guide, pareto, scale-out), or a YAML file.",
    no_args_is_help=True,
)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of the kit, or the path of a YAML file.")]


Only = Annotated[list[str] | None, typer.Option(help="Only this deployment; may be given several times.")]

New = Annotated[bool, typer.Option("--new", help="Begin anew, even if a run of the same recipe is unfinished.")]


@dataclass(frozen=True)
class ExperimentOptions:
    """Options of every command that plans or runs an experiment."""

    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs to use at a time; the recipe's own number if left out.")
    ] = None
    rehearse: Annotated[bool, typer.Option("--rehearse", help="On this machine, with simulated nodes and vLLM.")] = (
        False
    )
    time_scale: Annotated[
        float | None,
        typer.Option(
            help="With --rehearse: wall seconds for a second of model time; the recipe's own if left out.",
            min=0.01,
            max=100,
        ),
    ] = None
    requests: options.Requests = None

    def asked(self, only: Sequence[str] = ()) -> RunOptions:
        """Return these command-line options as the options of an experiment's run. `only` names the deployments to
        measure; all of the recipe's if empty.
        """
        return RunOptions(self.gpus, self.rehearse, self.time_scale, self.requests, tuple(only))


@app.command()
@with_option_groups
def plan(
    recipe: RecipeName,
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    how: ExperimentOptions,
    only: Only = None,
    as_json: options.Json = False,
) -> None:
    """Show what a run would deploy, how long it takes and what it costs. Nothing is deployed."""
    experiment = preparation.prepare(project, recipe, stack, how.asked(only or ()))
    show_plan(experiment, _names(experiment), {}, as_json=as_json)


@app.command()
@with_option_groups
def run(
    recipe: RecipeName,
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    how: ExperimentOptions,
    only: Only = None,
    yes: options.Yes = False,
    new: New = False,
) -> None:
    """Run a recipe, or go on where a run of it was interrupted. Deployments that failed are tried again.

    Ends with exit code 1 if a deployment could not be measured.
    """
    experiment = preparation.prepare(project, recipe, stack, how.asked(only or ()))
    folder = carry_out(experiment, yes=yes, new=new)
    raise typer.Exit(show_failures(folder))


def carry_out(experiment: Experiment, *, yes: bool, new: bool) -> RunFolder:
    """Run an experiment, or the rest of an interrupted run, and show its results. Asks for confirmation before anything
    costs money, unless `yes`.
    """
    what = experiment.project, experiment.name, experiment.recipe, experiment.settings
    folder = None if new else runs.unfinished_run(*what)
    names = unfinished(folder.state) if folder else _names(experiment)
    show_plan(experiment, names, folder.state.seconds if folder else {})
    console.confirm("Run it, which costs what is shown above?", yes=yes or experiment.settings.rehearsed)
    folder = folder or runs.new_run(*what, names)
    _run(experiment, folder)
    comparison.write(folder)
    show_results(folder)
    return folder


def show_failures(folder: RunFolder) -> int:
    """Show the deployments of a run that could not be measured, with reasons, and return the exit code: 1 if there are
    any.
    """
    failed = {name: state for name, state in folder.state.deployments.items() if state.phase == "failed"}
    for name, state in failed.items():
        console.show_error(KitError(f"{name}: {state.cause}", "Run the same command again to try it again."))
    return 1 if failed else 0


@app.command()
def status(
    recipe: RecipeName, stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Show the progress of a recipe's newest run: the state of each deployment."""
    folder = runs.latest(project, stack, recipe)
    if as_json:
        typer.echo(folder.state.model_dump_json(indent=2))
    else:
        show_status(folder)


@app.command()
def report(
    recipe: RecipeName, stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Compare what the newest run of a recipe has found so far: a table here, Markdown and HTML with plots as files."""
    folder = runs.latest(project, stack, recipe)
    rows = comparison.write(folder)
    if as_json:
        console.show_json([row.model_dump(mode="json", exclude_defaults=True) for row in rows])
    else:
        show_results(folder)


@app.command(hidden=True)
def measure(assignment: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Measure one deployment of a run, from a place that can reach it; `experiment run` starts this command."""
    from llmd_tuner.experiments import measurement  # noqa: PLC0415 - slow to import

    raise typer.Exit(measurement.measure_file(assignment, console.progress()))


def _names(experiment: Experiment) -> list[str]:
    return [deployment.object_name for deployment in experiment.deployments]


def _run(experiment: Experiment, folder: RunFolder) -> None:
    project, settings, environment = experiment.project, experiment.settings, console.inherited_environment()
    progress = console.progress()
    progress.step(f"run {folder.path}")
    if settings.rehearsed:
        time_scale = settings.time_scale
        chosen = rehearsal().deployer(project, settings.stack, experiment.nodes, time_scale, environment)
    else:
        chosen = PulumiDeployer(project, settings.stack, environment)
    try:
        Runner(experiment, folder, chosen, progress).run()
    except KeyboardInterrupt:
        command = "llmd-oke rehearse down" if settings.rehearsed else "llmd-oke destroy"
        down = f"{command} --stack {deployer.name_of(settings.stack)}"
        console.errors().print(f"interrupted; run the same command again to go on, or end it: {down}", markup=False)
        raise


FILE_WIDTH = 140
"""Width in columns of tables that are written to a file or a pipe instead of a terminal."""

_TONES = {"good": "green", "bad": "red", "quiet": "dim"}


def show_plan(
    experiment: Experiment, names: Sequence[str], measured: Mapping[str, float], *, as_json: bool = False
) -> None:
    """Show which deployments are to be measured, how long that takes, and its price. `measured` has the seconds of
    `deploy` and `teardown` that the run has measured so far.
    """
    forecast = forecast_of(experiment, names, measured)
    if as_json:
        console.output().print_json(data=plan_document(experiment, forecast))
        return
    settings = experiment.settings
    console.output().print(f"[bold]{escape(experiment.name)}[/] {escape(experiment.recipe.description)}\n")
    console.output().print(FittingTable(_rounds(forecast.rounds)))
    table = Table.grid(padding=(0, 2))
    if settings.most_requests:
        table.add_row("  [dim]limited to[/]", f"{settings.most_requests} requests at each level")
    if settings.rehearsed:
        table.add_row("  [dim]in all[/]", f"{_time(forecast.seconds)} on this machine, no GPU")
    else:
        price = f"{forecast.gpus} GPUs for {_time(forecast.seconds)}: {forecast.gpu_hours:.1f} GPU-hours"
        table.add_row("  [dim]in all[/]", price)
        table.add_row("  [dim]cost[/]", f"{forecast.price_usd:,.2f} $ at list price")
    console.output().print("", table, sep="\n")
    if settings.rehearsed:
        console.output().print(f"  [dim]rehearsed: model time is wall time / {settings.time_scale:g}[/]")


def plan_document(experiment: Experiment, forecast: Forecast) -> dict[str, Any]:
    """Return the plan of an experiment's run as the object of `--json`: durations in seconds of wall time, prices in US
    dollars at list price.
    """
    return {
        "recipe": experiment.name,
        "settings": experiment.settings.model_dump(mode="json"),
        "rounds": [asdict(part) for part in forecast.rounds],
        **collected("plan", ("seconds", "gpu_hours", "price_usd"), [forecast], {}),
    }


def _rounds(rounds: Sequence[ExperimentRound]) -> Table:
    figures = ("GPUs", "levels", "deploy", "bench", "tear down")
    table = open_table("  round", "deployments", *figures, right=figures)
    for number, part in enumerate(rounds, 1):
        times = (_duration(part.deploy), _duration(part.bench), _duration(part.teardown))
        table.add_row(f"  {number}", "\n".join(part.names), str(part.gpus), str(part.stages), *times)
    return table


def _duration(duration: WallDuration) -> str:
    return f"{_time(duration.seconds)}\n[dim]{duration.basis}[/]"


def _time(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if seconds >= 600 else f"{seconds:.0f} s"


def show_status(folder: RunFolder) -> None:
    """Print the progress of an experiment's run: the state of each deployment."""
    state = folder.state
    table = open_table("deployment", "state", "levels", "cause", overflow="fold")
    for name, stages in folder.deployments().items():
        standing = state.deployments[name]
        done = len(stages) - len(folder.left(name))
        table.add_row(name, standing.phase, f"{done} of {len(stages)}", escape(standing.cause or ""))
    console.output().print(table)
    ended = f"ended {state.ended}" if state.ended else "not ended: `llmd-oke experiment run` goes on with it"
    console.output().print(f"[dim]begun {state.started}, {ended}[/]", soft_wrap=True)
    console.show_line(str(folder.path))


def show_results(folder: RunFolder) -> None:
    """Print the comparison of a run's deployments, and the paths of the files with it."""
    output = console.output() if console.output().is_terminal else Console(width=FILE_WIDTH, highlight=False)
    for heading, table in comparison.tables(folder, folder.gather(), brief=True):
        shown = Table(title=escape(heading), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
        for i, name in enumerate(table.columns):
            shown.add_column(name, justify="left" if i < 2 else "right", no_wrap=i < 2)
        for row in table.cells:
            texts = ((escape(cell.text), _TONES.get(cell.tone)) for cell in row)
            shown.add_row(*(f"[{colour}]{text}[/]" if colour else text for text, colour in texts))
        output.print(FittingTable(shown), "")
    for name in ("rows.jsonl", comparison.MARKDOWN, comparison.HTML):
        output.print(f"[dim]{name:12}[/] {folder.path / name}", soft_wrap=True)
