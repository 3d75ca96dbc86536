"""`llmd-oke tune apply`: writes the best deployment into the stack file."""

from typing import Annotated

import typer

from llmd_oke import config, planning
from llmd_oke.cli import console, options
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import inputs
from llmd_oke.cli.tune.inputs import Search, Where
from llmd_oke.config import round_trip
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.applied import applied_file, keep_applied
from llmd_oke.results.files import write_whole
from llmd_oke.tuning.answers import applying, ranking
from llmd_oke.tuning.answers.applying import Choice
from llmd_oke.tuning.answers.forecasts import forecast_row
from llmd_oke.tuning.answers.thresholds import thresholds

Scaling = Annotated[
    bool, typer.Option("--scaling", help="Add `scaling` with thresholds where the stack file has none.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the difference and write nothing.")]


@gathered
def apply(
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    search: Search,
    scaling: Scaling = False,
    dry_run: DryRun = False,
) -> None:
    """Rank as `tune rank` does, and write topology, copies and maxNumSeqs of the best into the stack file.

    Where the model has `scaling`, its thresholds follow: what a server carries within the targets, less a reserve.
    Comments and order of the file stay. What comes out is planned before it is written, and refused with all problems
    where it can't be deployed. The forecast is kept, to be verified.
    """
    known = inputs.inputs(Where(project, stack), search)
    _check_measured(known)
    inputs.announce(known)
    best = ranking.rank(known.question, sensitivity=False).best
    if best is None:
        raise KitError("Nothing meets the targets.", "`llmd-oke tune rank` shows what would have to change.")
    models = config.load(project, stack).models
    index = inputs.model_index(models, search.name)
    path = config.stack_file(project, stack)
    before = path.read_text(encoding="utf-8")
    found = thresholds(known.question, best, known.confidence.tag)
    choice = Choice(best.topology, best.copies, best.max_num_seqs, found, add_scaling=scaling)
    after = applying.applied(before, index, choice)
    planning.plan(config.parse(round_trip.plain(after)))
    console.output().print(f"{ranking.named(best)}: {known.confidence.sentence}", markup=False, soft_wrap=True)
    difference = round_trip.difference(before, after, str(path))
    console.output().print(difference or "nothing changes", markup=False, soft_wrap=True)
    if dry_run:
        return
    about = known.model.name, known.node.gpu.product, known.question, known.confidence, known.started
    forecast = forecast_row(*about, best)
    kept = applied_file(project, stack)
    keep_applied(kept, models[index].object_name, forecast, str(known.question.targets))
    if difference:
        write_whole(path, after)
    console.errors().print(f"forecast  {kept}, for `tune verify` once it is deployed", markup=False, soft_wrap=True)


def _check_measured(known: inputs.Inputs) -> None:
    """Bounds tell what hardware can't exceed, and nothing of what servers do."""
    if not known.confidence.measured:
        message = f"Nothing is measured of {known.model.name} on {known.node.gpu.product}: there are only bounds."
        raise KitError(message, "Measure (`llmd-oke tune run`), or give --figures of `llmd-oke tune fit`.")
