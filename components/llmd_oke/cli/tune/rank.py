"""`llmd-oke tune rank`: which deployment serves a workload best?"""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.cli import console, options
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import inputs, rank_view
from llmd_oke.cli.tune.inputs import Search, Where
from llmd_oke.results.files import write_rows
from llmd_oke.results.row import Row
from llmd_oke.tuning.answers import ranking, second_look
from llmd_oke.tuning.answers.forecasts import forecast_row
from llmd_oke.tuning.answers.second_look import SecondLook
from llmd_oke.tuning.search.frontiers import frontier_of

Simulate = Annotated[
    int, typer.Option("--simulate", help="Check so many of the first by event simulation, 120 s each.", min=0, max=50)
]

Rows = Annotated[
    Path | None, typer.Option(help="Write the first as rows, to stand beside measurements.", dir_okay=False)
]


@gathered
def rank(
    where: Where,
    search: Search,
    simulate: Simulate = 0,
    as_json: options.Json = False,
    rows: Rows = None,
) -> None:
    """Rank all deployments of some GPUs: the best, what comes next, why the others lost, and how sure that is.

    Ends with exit code 1 where nothing meets the targets; the nearest misses are shown then, and what would have to
    change.
    """
    known = inputs.inputs(where, search)
    inputs.announce(known)
    found = ranking.rank(known.question)
    looks = _looks(known, found, simulate)
    frontier = frontier_of(known.question)
    if rows is not None:
        write_rows(_rows(known, found), rows)
    if as_json:
        typer.echo(json.dumps(rank_view.as_json(known, found, frontier, looks), indent=2))
    else:
        rank_view.show(known, found, frontier, looks)
    if found.best is None:
        raise typer.Exit(1)


def _rows(known: inputs.Inputs, found: ranking.Ranking) -> list[Row]:
    """Forecasts of those that have a steady state."""
    about = known.model.name, known.node.gpu.product, known.question, known.confidence, known.started
    return [forecast_row(*about, each) for each in found.first if math.isfinite(each.e2e_s)]


def _looks(known: inputs.Inputs, found: ranking.Ranking, most: int) -> list[SecondLook]:
    if not most:
        return []
    progress = console.progress()
    progress.step(f"simulating {most} deployments")
    looks: list[SecondLook] = []
    first = [each for each in found.search.deployments(most) if each.requests_per_s > 1e-3]
    for look in second_look.look_again(known.question, known.model, known.node, first):
        looks.append(look)
        progress.detail(ranking.named(look.deployment))
    return looks
