"""What `tune plan` and `tune run` have in common: which single servers are to be measured, as an experiment."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from llmd_oke import catalogue, config
from llmd_oke.cli import console, options
from llmd_oke.cli.tune import inputs
from llmd_oke.errors import KitError
from llmd_oke.experiments.recipes.recipe import Recipe
from llmd_oke.experiments.runs import preparing
from llmd_oke.experiments.runs.preparing import Asked, Experiment
from llmd_oke.experiments.tuner.grid import GridName, grids
from llmd_oke.experiments.tuner.recipe import NAME, Servers, handing_over, tuning_recipe
from llmd_oke.planning.releases import used_release
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers import workload as workloads

Grid = Annotated[
    GridName, typer.Option(help="`full` measures the published method's points, `adaptive` the few that a fit needs.")
]
Size = Annotated[
    list[int] | None,
    typer.Option("--size", help="Only this tensor parallel size; several times. The grid's choice if left out."),
]
Model = Annotated[str | None, typer.Option("--model", help="Another model of the catalogue than the stack's.")]
MaxNumSeqs = Annotated[
    int | None, typer.Option(help="vLLM's --max-num-seqs of the servers, the largest batch; 256 if left out.", min=1)
]

DEFAULT_MAX_NUM_SEQS = 256


@dataclass(frozen=True)
class Wanted:
    """The options that say what to measure."""

    stack: options.Stack
    project: options.Project = options.HERE
    name: inputs.Name = None
    model: Model = None
    workload: inputs.WorkloadText = None
    grid: Grid = "adaptive"
    size: Size = None
    max_num_seqs: MaxNumSeqs = None


def experiment(wanted: Wanted, asked: Asked) -> Experiment:
    """The measurements as an experiment that can be run.

    Raises:
        KitError: model, workload or sizes are not known, or no server fits.
        Refused: the stack can't be used; carries every problem.
    """
    base = config.load(wanted.project, wanted.stack)
    shape = asking.known_shape(base.gpu_pools[0].shape)
    servers = _servers(wanted, base, shape, rehearsed=asked.rehearsed)
    recipe = tuning_recipe(servers, wanted.grid, tuple(wanted.size or ()), _gpus(asked, base, shape))
    simulated_node = shape.gpus if asked.rehearsed else None
    asked = replace(asked, gpus=asked.gpus or simulated_node)
    return preparing.prepare_recipe(wanted.project, NAME, recipe, wanted.stack, asked)


def _servers(wanted: Wanted, base: config.StackConfig, shape: catalogue.Shape, *, rehearsed: bool) -> Servers:
    most = wanted.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    given = workloads.parse(wanted.workload) if wanted.workload else None
    if wanted.model:
        if given is None:
            raise KitError("The stack doesn't say how that model is used.", "Add --workload ISL/OSL.")
        engine = _handing_over(config.Engine(max_num_seqs=most), base)
        return Servers(asking.known_model(wanted.model), shape, given, engine, rehearsed)
    own = base.models[inputs.model_index(base.models, wanted.name)]
    load = given or workloads.of_lengths(own.workload.input_tokens, own.workload.output_tokens)
    engine = _handing_over(own.engine.model_copy(update={"max_num_seqs": most}), base)
    return Servers(asking.known_model(own.model), shape, load, engine, rehearsed)


def _handing_over(engine: config.Engine, base: config.StackConfig) -> config.Engine:
    release = used_release(base)
    return engine if release is None else handing_over(engine, release)


def _gpus(asked: Asked, base: config.StackConfig, shape: catalogue.Shape) -> int:
    """The GPUs of one server at most: a node's, as far as they are free."""
    if asked.gpus:
        return min(asked.gpus, shape.gpus)
    free = shape.gpus if asked.rehearsed else preparing.free_gpus(base, shape)
    return min(free, shape.gpus) if free > 0 else shape.gpus  # none free: `prepare_recipe` says what to do


def points(recipe: Recipe) -> int:
    """How many points of servers a recipe measures."""
    return sum(len(load.levels) for each in recipe.deployments for load in recipe.loads_of(each))


def show_points(recipe: Recipe, grid: GridName) -> None:
    """What is measured of which servers, and what a fit of it is worth."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  servers")
    for name in ("ISL", "OSL", "requests in flight"):
        table.add_column(name, justify="left" if name == "requests in flight" else "right")
    for each in recipe.deployments:
        for load in recipe.loads_of(each):
            levels = ", ".join(map(str, load.concurrencies))
            table.add_row(f"  {each.object_name}", str(load.input_tokens), str(load.output_tokens), levels)
    console.output().print(table, "", sep="\n")
    console.output().print(f"  {escape(worth(recipe, grid))}\n", soft_wrap=True)


def worth(recipe: Recipe, grid: GridName) -> str:
    """What fits of such points were off by, where that is known."""
    told = f"{points(recipe)} points, each with prompts of its own. "
    known = grids().adaptive
    if grid == "full":
        return (
            f"{told}On the published points of gpt-oss-120b a fit of all of them is off by "
            f"{known.full_decode_error:.1%} for decode and {known.full_prefill_error:.1%} for prefill (calibrated)."
        )
    return (
        f"{told}On the published points of gpt-oss-120b TP1 and TP8 at such levels predict the others with errors of "
        f"{known.decode_error:.1%} (decode) and {known.prefill_error:.1%} (prefill) on average; a fit of all points is "
        f"off by {known.full_decode_error:.1%} and {known.full_prefill_error:.1%} (calibrated)."
    )
