"""`llmd-oke experiment`: deploys a list of topologies one after the other and benchmarks each."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import console, experiment_view, options
from llmd_oke.cli.gathering import gathered
from llmd_oke.errors import KitError
from llmd_oke.experiments.reporting import comparison
from llmd_oke.experiments.runs import folders, preparing
from llmd_oke.experiments.runs.deployer import Deployer, PulumiDeployer, RehearsedDeployer
from llmd_oke.experiments.runs.folders import RunFolder
from llmd_oke.experiments.runs.preparing import Asked, Experiment
from llmd_oke.experiments.runs.running import Runner, unfinished

app = typer.Typer(
    help="Deploy a list of topologies, benchmark each under a list of loads, tear down, compare. A recipe says which: "
    "one of the kit's (guide, pareto, scale-out), or a YAML file.",
    no_args_is_help=True,
)

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe of the kit, or the path of a YAML file.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs to use at a time; the recipe's own number if left out.")]
Rehearse = Annotated[bool, typer.Option("--rehearse", help="On this machine, with simulated nodes and vLLM.")]
TimeScale = Annotated[
    float | None,
    typer.Option(
        help="With --rehearse: wall seconds for a second of model time; the recipe's own if left out.",
        min=0.01,
        max=100,
    ),
]
Only = Annotated[list[str] | None, typer.Option(help="Only this deployment; may be given several times.")]
New = Annotated[bool, typer.Option("--new", help="Begin anew, even if a run of the same recipe is unfinished.")]


@dataclass(frozen=True)
class How:
    """The options of every command that plans or runs an experiment."""

    gpus: Gpus = None
    rehearse: Rehearse = False
    time_scale: TimeScale = None
    requests: options.Requests = None

    def asked(self, only: Sequence[str] = ()) -> Asked:
        """The same, for these deployments alone where some are named."""
        return Asked(self.gpus, self.rehearse, self.time_scale, self.requests, tuple(only))


@app.command()
@gathered
def plan(
    recipe: RecipeName,
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    how: How,
    only: Only = None,
    as_json: options.Json = False,
) -> None:
    """Show what a run would deploy, how long it takes and what it costs. Nothing is deployed."""
    experiment = preparing.prepare(project, recipe, stack, how.asked(only or ()))
    experiment_view.show_plan(experiment, _names(experiment), {}, as_json=as_json)


@app.command()
@gathered
def run(
    recipe: RecipeName,
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    how: How,
    only: Only = None,
    yes: options.Yes = False,
    new: New = False,
) -> None:
    """Run a recipe, or go on where a run of it was interrupted. Deployments that failed are tried again.

    Ends with exit code 1 if a deployment could not be measured.
    """
    experiment = preparing.prepare(project, recipe, stack, how.asked(only or ()))
    folder = carry_out(experiment, yes=yes, new=new)
    raise typer.Exit(show_failures(folder))


def carry_out(experiment: Experiment, *, yes: bool, new: bool) -> RunFolder:
    """Runs an experiment, or what is left of it, and shows what came out; asks before it rents anything."""
    what = experiment.project, experiment.name, experiment.recipe, experiment.settings
    folder = None if new else folders.unfinished_run(*what)
    names = unfinished(folder.state) if folder else _names(experiment)
    experiment_view.show_plan(experiment, names, folder.state.seconds if folder else {})
    _ask(experiment, yes=yes)
    folder = folder or folders.new_run(*what, names)
    _run(experiment, folder)
    comparison.write(folder)
    experiment_view.show_results(folder)
    return folder


def show_failures(folder: RunFolder) -> int:
    """Shows the deployments of a run that could not be measured, and why; gives the exit code."""
    failed = {name: each for name, each in folder.state.deployments.items() if each.phase == "failed"}
    for name, standing in failed.items():
        console.show_error(KitError(f"{name}: {standing.cause}", "Run the same command again to try it again."))
    return 1 if failed else 0


@app.command()
def status(
    recipe: RecipeName, stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Show how far the newest run of a recipe is."""
    folder = folders.latest(project, stack, recipe)
    if as_json:
        typer.echo(folder.state.model_dump_json(indent=2))
    else:
        experiment_view.show_status(folder)


@app.command()
def report(
    recipe: RecipeName, stack: options.Stack, project: options.Project = options.HERE, as_json: options.Json = False
) -> None:
    """Compare what the newest run of a recipe has found so far: a table here, Markdown and HTML with plots as files."""
    folder = folders.latest(project, stack, recipe)
    rows = comparison.write(folder)
    if as_json:
        typer.echo(json.dumps([row.model_dump(mode="json", exclude_defaults=True) for row in rows], indent=2))
    else:
        experiment_view.show_results(folder)


@app.command(hidden=True)
def measure(assignment: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Measure one deployment, from where it can be reached; `run` runs this."""
    from llmd_oke.experiments.measurements import measuring  # noqa: PLC0415 - slow to import

    raise typer.Exit(measuring.measure_file(assignment, console.progress()))


def _names(experiment: Experiment) -> list[str]:
    return [deployment.object_name for deployment in experiment.deployments]


def _ask(experiment: Experiment, *, yes: bool) -> None:
    """What costs money is asked for."""
    if yes or experiment.settings.rehearsed:
        return
    if not sys.stdin.isatty():
        raise KitError("The run costs what is shown above, and nobody can be asked.", "To run it: add --yes.")
    if not typer.confirm("Run it?"):
        raise typer.Exit(1)


def _run(experiment: Experiment, folder: RunFolder) -> None:
    progress = console.progress()
    progress.step(f"run {folder.path}")
    try:
        Runner(experiment, folder, _deployer(experiment), progress).run()
    except KeyboardInterrupt:
        experiment_view.show_interrupted(experiment)
        raise


def _deployer(experiment: Experiment) -> Deployer:
    settings, environment = experiment.settings, console.inherited_environment()
    if not settings.rehearsed:
        return PulumiDeployer(experiment.project, settings.stack, environment)
    return RehearsedDeployer(experiment.project, settings.stack, experiment.nodes, settings.time_scale, environment)
