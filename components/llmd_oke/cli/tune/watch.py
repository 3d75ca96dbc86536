"""`llmd-oke tune watch`: does what is deployed still meet what it was chosen for?"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.cli import console, options, smoke, times
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.tune import inputs, watch_view
from llmd_oke.cli.tune.watch_view import Watched
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner import watching
from llmd_oke.experiments.tuner.applied import applied_file, find_applied
from llmd_oke.experiments.tuner.assumed import Assumed, assumed
from llmd_oke.experiments.tuner.verification import verifying
from llmd_oke.experiments.tuner.watching import Pace
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.progress import Progress
from llmd_oke.stack.smoke import smoke_request
from llmd_oke.tuning.watch.advice import Place
from llmd_oke.tuning.watch.assumptions import tolerances
from llmd_oke.tuning.watch.seen import Seen

EVERY_S, FOR_S = 15.0, 600.0
LEAST_S, MOST_S = 1.0, 86_400.0

Every = Annotated[
    float, times.option(about="Time between two readings", least_s=LEAST_S, most_s=MOST_S, default_s=EVERY_S)
]
For = Annotated[
    float | None,
    times.option("--for", about="How long to watch", least_s=LEAST_S, most_s=MOST_S, default_s=FOR_S),
]
Once = Annotated[bool, typer.Option("--once", help="Judge two readings, `--every` apart, for pipelines.")]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help=f"How far the load may be off, as a share of what was assumed; {tolerances().load_share:g} if left out.",
        min=0,
    ),
]
Reports = Annotated[
    Path | None,
    typer.Option("--reports", help="Where those of a rehearsal's own project are.", file_okay=False, hidden=True),
]


@dataclass(frozen=True)
class How:
    """The options that say how long is watched, and what is allowed."""

    every: Every = EVERY_S
    duration: For = None
    once: Once = False
    tolerance: Tolerance = None

    def words(self) -> list[str]:
        """These options, on the command line of another process."""
        once = ["--once"] if self.once else []
        allowed = ["--tolerance", str(self.tolerance)] if self.tolerance is not None else []
        duration = ["--for", str(self.duration)] if self.duration else []
        return ["--every", str(self.every), *duration, *once, *allowed]

    def pace(self, time_scale: float) -> Pace:
        """The readings that they ask for.

        Raises:
            KitError: the whole is shorter than its parts, or given for two readings.
        """
        if self.once and self.duration:
            raise KitError("--once and --for exclude each other.", "Two readings are --every apart.")
        for_s = self.duration or FOR_S
        if for_s < self.every and not self.once:
            whole, part = times.written(for_s), times.written(self.every)
            raise KitError(f"--for {whole} is shorter than --every {part}.", "Give --once, or more time.")
        return Pace(self.every, self.every if self.once else for_s, time_scale)


@gathered
def watch(
    stack: options.Stack,
    how: How,
    project: options.Project = options.HERE,
    name: inputs.Name = None,
    rehearse: options.Rehearse = False,
    reports: Reports = None,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
    as_json: options.Json = False,
) -> None:
    """Hold the counters of running servers against what the applied forecast assumed, and say what to do.

    Sends no requests. Without an applied forecast the stack file's workload and slo are what is assumed. Ends with exit
    code 1 where an assumption does not hold, or where too few requests came to tell. Ctrl-C ends it with what was seen.
    """
    pace = how.pace(time_scale)
    if rehearse:
        raise console.Told(_inside(project, stack, name, how, reports, as_json=as_json))
    plan = planning.plan_stack_file(project, stack)
    model = plan.models[inputs.model_index(plan.config.models, name)]
    rests_on = _assumed(plan, model, applied_file(project, stack, reports), how.tolerance)
    look = _look(plan, model, pace, smoke.circumstances(time_scale, tuple(simulated or ()), ()))
    watched = _watched(plan, model, stack, rests_on, look, simulated=bool(simulated))
    if as_json:
        typer.echo(json.dumps(watch_view.as_json(watched), indent=2))
    else:
        watch_view.show(watched)
    _end(watched, interrupted=look.interrupted)


def _assumed(plan: Plan, model: ModelPlan, applied: Path, tolerance: float | None) -> Assumed:
    """What the model rests on."""
    load_share = tolerances().load_share if tolerance is None else tolerance
    return assumed(plan, model, find_applied(applied, model.name), verifying().tolerance, load_share)


@dataclass(frozen=True)
class _Look:
    """What was seen, and what ended it: the time, Ctrl-C, or that the cluster no longer answered."""

    seen: Seen
    interrupted: bool = False
    broken_off: KitError | None = None


def _look(plan: Plan, model: ModelPlan, pace: Pace, how: Circumstances) -> _Look:
    """What was seen until something ended it.

    Raises:
        KitError: the cluster does not answer, or nothing could be read.
    """
    progress = console.progress()
    progress.step(f"watching {model.name}, a reading every {pace.every_s:g} s, for {pace.for_s:g} s")
    request = smoke_request(plan, model)
    readings = watching.watch(watching.Reader(plan, model), pace, request.evidence, how.basis)
    look = _until_the_end(readings, progress)
    if look.seen.duration_s:
        return look
    raise look.broken_off or KitError("Nothing could be read twice in a row.", "; ".join(look.seen.notes))


def _until_the_end(readings: Iterator[tuple[Seen, Seen]], progress: Progress) -> _Look:
    looks: list[_Look] = []
    try:
        for seen, latest in readings:
            looks = [_Look(seen)]
            progress.detail(watch_view.line(latest))
    except (KeyboardInterrupt, KitError) as end:
        if not looks:
            raise
        broken_off = end if isinstance(end, KitError) else None
        return replace(looks[0], interrupted=broken_off is None, broken_off=broken_off)
    return looks[0]


def _watched(plan: Plan, model: ModelPlan, stack: str, rests_on: Assumed, look: _Look, *, simulated: bool) -> Watched:
    """What was seen, with all that it is judged by."""
    place = Place(stack, model.name if len(plan.models) > 1 else None, rests_on.targets)
    about = f"{len(model.units)} x {model.topology}" if len(model.units) > 1 else str(model.topology)
    return Watched(model.name, about, rests_on, look.seen, place, simulated=simulated, broken_off=look.broken_off)


def _inside(project: Path, stack: str, name: str | None, how: How, reports: Path | None, *, as_json: bool) -> int:
    """Watches from inside a rehearsal; gives the exit code."""
    from llmd_oke.cli.inside import run_inside  # noqa: PLC0415 - not needed without a rehearsal
    from llmd_oke.rehearsal import rehearsal  # noqa: PLC0415 - the same

    time_scale = rehearsal.running_settings(project, stack).time_scale or 1.0
    words = ["tune", "watch", *how.words(), "--time-scale", str(time_scale)]
    words += [*(["--name", name] if name else []), *(["--json"] if as_json else [])]
    return run_inside(project, stack, words, reports, interruptible=True)


def _end(watched: Watched, *, interrupted: bool) -> None:
    """Ends with the exit code that belongs to what was seen."""
    if watched.failure:
        console.show_error(watched.failure)
    if interrupted:
        raise typer.Exit(console.INTERRUPTED)
    raise typer.Exit(0 if watched.holds else 1)
