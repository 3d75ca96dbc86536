"""`llmd-oke tune plan`: which single servers to measure, how long that takes and what it costs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from llmd_oke.cli import console, experiment_view, options
from llmd_oke.cli.experiment import How
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import measurements
from llmd_oke.cli.tune.measurements import Wanted
from llmd_oke.experiments.runs.preparing import Experiment, forecast_of
from llmd_oke.experiments.tuner.grid import GridName, grids
from llmd_oke.experiments.tuner.recipe import recipe_text
from llmd_oke.results.files import write_whole

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the measurements as a recipe of `experiment run`.", dir_okay=False),
]


@gathered
def plan(
    wanted: Wanted,
    how: How,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Show which prefill-only and decode-only servers to measure, how long it takes and what it costs.

    Nothing is deployed; `tune run` with the same options measures.
    """
    planned = measurements.experiment(wanted, how.asked())
    if as_json:
        console.output().print_json(data=_document(planned, wanted.grid))
    else:
        names = [each.object_name for each in planned.deployments]
        experiment_view.show_plan(planned, names, {})
        console.output().print()
        measurements.show_points(planned.recipe, wanted.grid)
    if output is not None:
        write_whole(output, recipe_text(planned.recipe))
        console.errors().print(f"recipe  {output}", markup=False, soft_wrap=True)


def _document(planned: Experiment, grid: GridName) -> dict[str, Any]:
    """The plan of the experiment, its recipe, and what fits of such points were off by on published ones."""
    names = [each.object_name for each in planned.deployments]
    known = grids().adaptive
    full = {"decode": known.full_decode_error, "prefill": known.full_prefill_error}
    adaptive = {"decode": known.decode_error, "prefill": known.prefill_error}
    return {
        **experiment_view.plan_document(planned, forecast_of(planned, names, {})),
        "grid": grid,
        "points": measurements.points(planned.recipe),
        "published_errors": full if grid == "full" else adaptive,
        "recipe_document": planned.recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
