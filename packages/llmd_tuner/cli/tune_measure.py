"""Commands `llmd-oke tune plan` and `run`: measurements of single servers, their duration and price, and their
execution.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_bench.files import write_whole
from llmd_oke import catalogue, config
from llmd_oke.cli import console, options
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.tables import open_table
from llmd_oke.config.engine import DEFAULT_ENGINE
from llmd_oke.planning.releases import used_release
from rich.markup import escape

from llmd_tuner import search_inputs
from llmd_tuner import workload as workloads
from llmd_tuner.cli import experiment
from llmd_tuner.cli.experiment import ExperimentOptions
from llmd_tuner.cli.tune_options import Name, WorkloadText, model_index, show_findings
from llmd_tuner.experiments import preparation
from llmd_tuner.experiments.grid import NAME, GridName, MeasuredServers, grids, handing_over, recipe_text, tuning_recipe
from llmd_tuner.experiments.preparation import Experiment, RunOptions, forecast_of
from llmd_tuner.experiments.recipes import Recipe
from llmd_tuner.experiments.records import add_rows, rows_file
from llmd_tuner.row_filters import inspect_by_model


@dataclass(frozen=True)
class ServerOptions:
    """Command-line options that select the single servers to measure."""

    stack: options.Stack
    project: options.Project = options.HERE
    name: Name = None
    model: Annotated[str | None, typer.Option("--model", help="Another model of the catalogue than the stack's.")] = (
        None
    )
    workload: WorkloadText = None
    grid: Annotated[
        GridName,
        typer.Option(help="`full` measures the published method's points, `adaptive` the few that a fit needs."),
    ] = "adaptive"
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            help="Only servers of this tensor parallel size, or of this kind: 8, tp1dp8ep, or tp1dp16ep over nodes; "
            "several times. The grid's choice if left out.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help=f"vLLM's --max-num-seqs of the servers, the largest batch; {DEFAULT_ENGINE.max_num_seqs} if left out.",
            min=1,
        ),
    ] = None


def server_experiment(selection: ServerOptions, run: RunOptions) -> Experiment:
    """Return the experiment that measures the chosen servers.

    Raises:
        KitError: a model, workload or size is not known, or no server has room for the workload.
        InvalidStack: the stack can't be used; carries every problem.
    """
    base = config.load(selection.project, selection.stack)
    shape = search_inputs.known_shape(base.gpu_pools[0].shape)
    servers = _servers(selection, base, shape, rehearsed=run.rehearsed)
    kinds = [servers.kind(text) for text in selection.size or ()]
    whole = max([shape.gpus, *(kind.gpus for kind in kinds)])  # a node, or those that the largest server spans
    most = run.gpus or (whole if run.rehearsed else preparation.free_gpus(base, shape))
    gpus = min(most, whole) if most > 0 else whole  # none free: `prepare_recipe` says what to do
    recipe = tuning_recipe(servers, selection.grid, kinds, gpus)
    run = replace(run, gpus=run.gpus or (whole if run.rehearsed else None))
    return preparation.prepare_recipe(selection.project, NAME, recipe, selection.stack, run)


def _servers(
    selection: ServerOptions, base: config.StackConfig, shape: catalogue.Shape, *, rehearsed: bool
) -> MeasuredServers:
    most = selection.max_num_seqs or DEFAULT_ENGINE.max_num_seqs
    given = workloads.parse(selection.workload) if selection.workload else None
    if selection.model:
        if given is None:
            raise KitError("The stack doesn't say how that model is used.", "Add --workload ISL/OSL.")
        model = search_inputs.known_model(selection.model)
        engine = _handing_over(config.Engine(max_num_seqs=most), base, model)
        return MeasuredServers(model, shape, given, engine, rehearsed)
    own = base.models[model_index([model.object_name for model in base.models], selection.name)]
    load = given or workloads.of_lengths(own.workload.input_tokens, own.workload.output_tokens)
    model = search_inputs.known_model(own.model)
    engine = _handing_over(own.engine.model_copy(update={"max_num_seqs": most}), base, model)
    return MeasuredServers(model, shape, load, engine, rehearsed)


def _handing_over(engine: config.Engine, base: config.StackConfig, model: catalogue.CatalogueModel) -> config.Engine:
    release = used_release(base)
    return engine if release is None else handing_over(engine, release, model)


def points(recipe: Recipe) -> int:
    """Return the number of measurements of single servers in a recipe: servers times levels of load."""
    return sum(len(load.levels) for deployment in recipe.deployments for load in recipe.loads_of(deployment))


def show_points(recipe: Recipe, grid: GridName) -> None:
    """Show which servers are measured under which loads, and how accurate a fit to such measurements is."""
    table = open_table("  servers", "ISL", "OSL", "requests in flight", right={"ISL", "OSL"})
    for deployment in recipe.deployments:
        for load in recipe.loads_of(deployment):
            levels = ", ".join(map(str, load.concurrencies))
            table.add_row(f"  {deployment.object_name}", str(load.input_tokens), str(load.output_tokens), levels)
    console.output().print(table, "", sep="\n")
    console.output().print(f"  {escape(worth(recipe, grid))}\n", soft_wrap=True)


def worth(recipe: Recipe, grid: GridName) -> str:
    """Return sentences for users on how many measurements a recipe has, and how accurate latency models fitted to such
    a grid of loads were on published measurements.
    """
    count = f"{points(recipe)} points, each with prompts of its own. "
    known = grids().adaptive
    if grid == "full":
        return (
            f"{count}On the published points of gpt-oss-120b a fit of all of them is off by "
            f"{known.full_decode_error:.1%} for decode and {known.full_prefill_error:.1%} for prefill (calibrated)."
        )
    return (
        f"{count}On the published points of gpt-oss-120b TP1 and TP8 at such levels predict the others with errors of "
        f"{known.decode_error:.1%} (decode) and {known.prefill_error:.1%} (prefill) on average; a fit of all points is "
        f"off by {known.full_decode_error:.1%} and {known.full_prefill_error:.1%} (calibrated)."
    )


@with_option_groups
def plan(
    selection: ServerOptions,
    how: ExperimentOptions,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the measurements as a recipe of `experiment run`.", dir_okay=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show which prefill-only and decode-only servers to measure, how long it takes and what it costs.

    Nothing is deployed; `tune run` with the same options measures.
    """
    planned = server_experiment(selection, how.asked())
    if as_json:
        console.output().print_json(data=_document(planned, selection.grid))
    else:
        names = [deployment.object_name for deployment in planned.deployments]
        experiment.show_plan(planned, names, {})
        console.output().print()
        show_points(planned.recipe, selection.grid)
    if output is not None:
        write_whole(output, recipe_text(planned.recipe))
        console.tell(f"recipe  {output}")


def _document(planned: Experiment, grid: GridName) -> dict[str, Any]:
    """Return the plan of the experiment, its recipe, and what fits of such points were off by on published ones."""
    names = [deployment.object_name for deployment in planned.deployments]
    known = grids().adaptive
    full = {"decode": known.full_decode_error, "prefill": known.full_prefill_error}
    adaptive = {"decode": known.decode_error, "prefill": known.prefill_error}
    return {
        **experiment.plan_document(planned, forecast_of(planned, names, {})),
        "grid": grid,
        "points": points(planned.recipe),
        "published_errors": full if grid == "full" else adaptive,
        "recipe_document": planned.recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }


@with_option_groups
def run(
    selection: ServerOptions,
    how: ExperimentOptions,
    yes: options.Yes = False,
    new: experiment.New = False,
) -> None:
    """Measure the servers that `tune plan` shows, or go on where that was interrupted, and keep the rows of the stack.

    `tune fit`, `rank`, `plot` and `apply` go by them from then on. Rows that can't be right are left out, each with its
    reason. Ends with exit code 1 if a server could not be measured.
    """
    folder = experiment.carry_out(server_experiment(selection, how.asked()), yes=yes, new=new)
    inspection = inspect_by_model(folder.gather())
    show_findings(inspection)
    file = rows_file(selection.project, selection.stack)
    stored = add_rows(inspection.accepted, file)
    summary = f"{len(inspection.accepted)} of {len(folder.gather())} rows kept, {len(stored)} in all"
    console.show_line(f"{summary}: {file}")
    if how.rehearse:
        console.output().print(
            "[dim]rehearsed: the rows are the simulation's (calibrated), and tell nothing of real servers[/]",
            soft_wrap=True,
        )
    raise typer.Exit(experiment.show_failures(folder))
