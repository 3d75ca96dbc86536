"""`llmd-oke tune watch`: does what is deployed still meet what it was chosen for?"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.cli import console, options, smoke
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
from llmd_oke.stack.smoke import smoke_request
from llmd_oke.tuning.watch.advice import Place
from llmd_oke.tuning.watch.assumptions import tolerances
from llmd_oke.tuning.watch.seen import Seen

LEAST_S, MOST_S = 1.0, 86_400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

Every = Annotated[str, typer.Option(help="Time between two readings: 15s, 1m.", metavar="TIME")]
For = Annotated[str, typer.Option("--for", help="How long to watch: 10m, 1h.", metavar="TIME")]
Once = Annotated[bool, typer.Option("--once", help="Judge two readings, `--every` apart, for pipelines.")]
Tolerance = Annotated[
    float | None,
    typer.Option(help="How far the load may be off, as a share of what was assumed; 0.1 if left out.", min=0),
]


@dataclass(frozen=True)
class How:
    """The options that say how long is watched, and what is allowed."""

    every: Every = "15s"
    duration: For = "10m"
    once: Once = False
    tolerance: Tolerance = None

    def words(self) -> list[str]:
        """These options, on the command line of another process."""
        once = ["--once"] if self.once else []
        allowed = ["--tolerance", str(self.tolerance)] if self.tolerance is not None else []
        return ["--every", self.every, "--for", self.duration, *once, *allowed]

    def pace(self, time_scale: float) -> Pace:
        """The readings that they ask for.

        Raises:
            KitError: a time is none, or the whole is shorter than its parts.
        """
        every_s, for_s = seconds(self.every), seconds(self.duration)
        if for_s < every_s and not self.once:
            raise KitError(f"--for {self.duration} is shorter than --every {self.every}.", "Give --once, or more time.")
        return Pace(every_s, every_s if self.once else for_s, time_scale)


def seconds(text: str) -> float:
    """A time as it is written on a command line: `15s`, `10m`, `1h`, or a number of seconds.

    Raises:
        KitError: it is none, or no time that can be watched.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    value = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not LEAST_S <= value <= MOST_S:
        raise KitError(f"{text!r} is no time to watch.", "Accepted: 1s to 24h, such as 15s, 10m or 1h.")
    return value


@gathered
def watch(
    stack: options.Stack,
    how: How,
    project: options.Project = options.HERE,
    name: inputs.Name = None,
    rehearse: options.Rehearse = False,
    reports: options.Reports = None,
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
        raise typer.Exit(_inside(project, stack, name, how, reports, as_json=as_json))
    plan = planning.plan_stack_file(project, stack)
    model = plan.models[inputs.model_index(plan.config.models, name)]
    rests_on = _assumed(plan, model, applied_file(project, stack, reports), how.tolerance)
    several = len(plan.models) > 1
    place = Place(stack, model.name if several else None, rests_on.targets)
    about = f"{len(model.units)} x {model.topology}" if len(model.units) > 1 else str(model.topology)
    seen, interrupted = _watched(plan, model, pace, smoke.circumstances(time_scale, tuple(simulated or ()), ()))
    watched = Watched(model.name, about, rests_on, seen, place, simulated=bool(simulated))
    if as_json:
        typer.echo(json.dumps(watch_view.as_json(watched), indent=2))
    else:
        watch_view.show(watched)
    _end(watched, interrupted=interrupted)


def _assumed(plan: Plan, model: ModelPlan, applied: Path, tolerance: float | None) -> Assumed:
    """What the model rests on."""
    load_share = tolerances().load_share if tolerance is None else tolerance
    return assumed(plan, model, find_applied(applied, model.name), verifying().tolerance, load_share)


def _watched(plan: Plan, model: ModelPlan, pace: Pace, how: Circumstances) -> tuple[Seen, bool]:
    """What was seen until the end or until Ctrl-C, and which of them it was.

    Raises:
        KitError: the cluster does not answer, or nothing could be read.
    """
    progress = console.progress()
    progress.step(f"watching {model.name}, a reading every {pace.every_s:g} s, for {pace.for_s:g} s")
    request = smoke_request(plan, model)
    readings = watching.watch(watching.Reader(plan, model), pace, request.evidence, how.basis)
    found: list[Seen] = []
    interrupted = True
    with suppress(KeyboardInterrupt):
        for seen, latest in readings:
            found = [seen]
            progress.detail(watch_view.line(latest))
        interrupted = False
    if not found:
        raise KeyboardInterrupt
    if not found[0].duration_s:
        raise KitError("Nothing could be read twice in a row.", "; ".join(found[0].notes))
    return found[0], interrupted


def _inside(project: Path, stack: str, name: str | None, how: How, reports: Path | None, *, as_json: bool) -> int:
    """Watches from inside a rehearsal; gives the exit code."""
    from llmd_oke.cli.inside import run_inside  # noqa: PLC0415 - not needed without a rehearsal
    from llmd_oke.rehearsal import rehearsal  # noqa: PLC0415 - the same

    time_scale = rehearsal.running_settings(project, stack).time_scale
    words = ["tune", "watch", *how.words(), "--time-scale", str(time_scale)]
    words += [*(["--name", name] if name else []), *(["--json"] if as_json else [])]
    return run_inside(project, stack, words, reports, interruptible=True)


def _end(watched: Watched, *, interrupted: bool) -> None:
    """Ends with the exit code that belongs to what was seen."""
    if interrupted:
        raise typer.Exit(console.INTERRUPTED)
    if any(each.off for each in watched.judged):
        raise typer.Exit(1)
    least = tolerances().latency_requests
    if watched.seen.answered < least:
        found = f"{watched.seen.answered} requests ended in {watched.seen.duration_s:.0f} s, too few to tell."
        raise KitError(found, f"It takes {least}: watch longer, with --for or --every.")
