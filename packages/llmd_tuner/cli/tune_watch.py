"""Command `llmd-oke tune watch`: whether a deployed model still meets the assumptions that it was chosen under."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.records import collected
from llmd_bench.run_context import RunContext
from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.rehearsals import run_rehearsed
from llmd_oke.cli.tables import FittingTable
from llmd_oke.operations.judgements import AssumptionJudgement, AssumptionVerdict, judge, tolerances
from llmd_oke.operations.observations import CountedObservation
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.smoke import smoke_request
from rich.markup import escape
from rich.table import Table

from llmd_tuner.assumptions import NextStep, StackModel, advice
from llmd_tuner.cli.tune_options import Name, model_index
from llmd_tuner.experiments import watching
from llmd_tuner.experiments.records import applied_file, find_applied
from llmd_tuner.experiments.verification import verifying
from llmd_tuner.experiments.watching import ModelAssumptions, ReadingIntervals, model_assumptions

EVERY_S, FOR_S = 15.0, 600.0
MIN_S, MAX_S = 1.0, 86_400.0

SIMULATED = "rehearsed: these are the simulation's figures, and tell nothing of real servers"

TTFT_IS = "TTFT is the servers' own, prefill and decode together: without router, sidecar and the way to the client"

_SIDES = {"near": "", "at most": "≤ ", "at least": "≥ ", "below": "< "}

_SIGNS = {"near": "±", "at most": "+", "at least": "-", "below": "+"}

WATCHED = ("model", "topology", "assumed", "conditions", "seen", "assumptions", "percentiles_ms", "holds", "advice")
SEEN = ("basis", "about", "duration_s", "requests", "requests_per_s", "notes")
"""Keys, in order, of the JSON object that `tune watch --json` prints (`WATCHED`), and of its member `seen` with what
the counters showed (`SEEN`).
"""

_COLOURS = {AssumptionVerdict.HOLDS: "green", AssumptionVerdict.ABOVE: "red", AssumptionVerdict.BELOW: "red"}


@dataclass(frozen=True)
class WatchOptions:
    """Options for how long a model is watched, and how far it may be off its assumptions."""

    every: Annotated[
        float, options.time_option(about="Time between two readings", least_s=MIN_S, most_s=MAX_S, default_s=EVERY_S)
    ] = EVERY_S
    duration: Annotated[
        float | None,
        options.time_option("--for", about="How long to watch", least_s=MIN_S, most_s=MAX_S, default_s=FOR_S),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Judge two readings, `--every` apart, for pipelines.")] = False
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="How far the load may be off, as a share of what was assumed; "
            f"{tolerances().load_share:g} if left out.",
            min=0,
        ),
    ] = None

    def by_name(self) -> dict[str, object]:
        """Return the values of these options by their names on the command line."""
        return {
            "--every": self.every,
            "--for": self.duration,
            "--once": self.once,
            "--tolerance": self.tolerance,
        }

    def pace(self, time_scale: float) -> ReadingIntervals:
        """Return the seconds between two readings of counters and the seconds in all; with `--once` there are two
        readings, and both are the same.

        Args:
            time_scale: seconds of wall time for each second of a rehearsed server's time; 1 for a deployed stack.

        Raises:
            KitError: `--for` is shorter than `--every`, or was given together with `--once`.
        """
        if self.once and self.duration:
            raise KitError("--once and --for exclude each other.", "Two readings are --every apart.")
        for_s = self.duration or FOR_S
        if for_s < self.every and not self.once:
            whole, part = options.time_text(for_s), options.time_text(self.every)
            raise KitError(f"--for {whole} is shorter than --every {part}.", "Give --once, or more time.")
        return ReadingIntervals(self.every, self.every if self.once else for_s, time_scale)


@with_option_groups
def watch(
    stack: options.Stack,
    how: WatchOptions,
    project: options.Project = options.HERE,
    name: Name = None,
    rehearse: options.Rehearse = False,
    reports: Annotated[
        Path | None,
        typer.Option("--reports", help="Where those of a rehearsal's own project are.", file_okay=False, hidden=True),
    ] = None,
    time_scale: options.TimeScale = 1.0,
    simulated: options.Simulated = None,
    as_json: options.Json = False,
) -> None:
    """Compare the counters of running servers with the assumptions of the applied forecast, and say what to do.

    Sends no requests. Without an applied forecast the stack file's workload and slo are what is assumed. Ends with exit
    code 1 where an assumption does not hold, or where too few requests came to tell. Ctrl-C ends it with what was seen.
    """
    pace = how.pace(time_scale)
    if rehearse:
        own = {**how.by_name(), "--name": name or None, "--json": as_json}
        run_rehearsed(project, stack, "tune watch", own, reports, interruptible=True)
    plan = planning.plan_stack_file(project, stack)
    model = plan.models[model_index([entry.name for entry in plan.models], name)]
    applied = find_applied(applied_file(project, stack, reports), model.name)
    load_share = tolerances().load_share if how.tolerance is None else how.tolerance
    assumed = model_assumptions(plan, model, applied, verifying().tolerance, load_share)
    state = _watch_until_end(plan, model, pace, smoke.run_context(plan, time_scale, tuple(simulated or ()), ()))
    about = f"{len(model.units)} x {model.topology}" if len(model.units) > 1 else str(model.topology)
    place = StackModel(stack, model.name if len(plan.models) > 1 else None, assumed.targets)
    watched = Watched(model.name, about, assumed, state.seen, place, bool(simulated), state.broken_off)
    if as_json:
        console.show_json(watch_json(watched))
    else:
        show_watch(watched)
    if watched.failure:
        console.show_error(watched.failure)
    if state.interrupted:
        raise typer.Exit(console.INTERRUPTED)
    raise typer.Exit(0 if watched.holds else 1)


@dataclass(frozen=True)
class _Watching:
    """Observation so far, and what ended it: the time, Ctrl-C, or that the cluster no longer answered."""

    seen: CountedObservation
    interrupted: bool = False
    broken_off: KitError | None = None


def _watch_until_end(plan: Plan, model: ModelPlan, pace: ReadingIntervals, how: RunContext) -> _Watching:
    """Watch the model until something ends it, and return what was seen.

    Raises:
        KitError: the cluster does not answer, or nothing could be read.
    """
    progress = console.progress()
    progress.step(f"watching {model.name}, a reading every {pace.every_s:g} s, for {pace.for_s:g} s")
    request = smoke_request(plan, model)
    readings = watching.watch(watching.Reader(plan, model), pace, request.evidence, how.basis_of(request.model))
    state = _until_the_end(readings, progress)
    if state.seen.duration_s:
        return state
    raise state.broken_off or KitError("Nothing could be read twice in a row.", "; ".join(state.seen.notes))


def _until_the_end(readings: Iterator[tuple[CountedObservation, CountedObservation]], progress: Progress) -> _Watching:
    states: list[_Watching] = []
    try:
        for seen, latest in readings:
            states = [_Watching(seen)]
            progress.detail(interval_text(latest))
    except (KeyboardInterrupt, KitError) as end:
        if not states:
            raise
        broken_off = end if isinstance(end, KitError) else None
        return replace(states[0], interrupted=broken_off is None, broken_off=broken_off)
    return states[0]


@dataclass(frozen=True)
class Watched:
    """Deployed model with its assumptions, and what the counters of its servers showed. `about` is its topology;
    `broken_off` is the error with which the cluster stopped answering, None if it didn't.
    """

    name: str
    about: str
    assumed: ModelAssumptions
    seen: CountedObservation
    place: StackModel
    simulated: bool
    broken_off: KitError | None = None

    @cached_property
    def judged(self) -> tuple[AssumptionJudgement, ...]:
        """Verdict on each assumption about the deployed model."""
        return judge(self.assumed.assumptions, self.seen)

    @cached_property
    def advice(self) -> tuple[NextStep, ...]:
        """Next steps for the user where assumptions don't hold, each with a command."""
        return tuple(advice(self.judged, self.seen, self.place))

    @property
    def failure(self) -> KitError | None:
        """Error that says why too little was observed for a verdict; None if enough was observed."""
        least = tolerances().latency_requests
        if self.broken_off or self.off or self.seen.answered >= least:
            return self.broken_off
        message = f"{self.seen.answered} requests ended in {self.seen.duration_s:.0f} s, too few to tell."
        return KitError(message, f"It takes {least}: watch longer, with --for or --every.")

    @property
    def off(self) -> bool:
        """True if at least one assumption about the deployed model doesn't hold."""
        return any(judgement.off for judgement in self.judged)

    @property
    def holds(self) -> bool | None:
        """True if all assumptions hold, False if one doesn't, None if too little was observed for a verdict."""
        return None if self.failure and not self.off else not self.off


def watch_json(watched: Watched) -> dict[str, Any]:
    """Return a watched model as the object of `--json`: the assumptions with verdicts, what its counters showed, and
    advice. Latencies are in milliseconds as on real hardware, also where servers are simulated at another speed.
    """
    seen = watched.seen
    counted = {"about": SIMULATED if watched.simulated else None, "requests": seen.answered}
    percentiles = {
        name: {
            percentile: asdict(item) | {"high": item.high if isfinite(item.high) else None}
            for percentile, item in items.items()
        }
        for name, items in seen.percentiles_ms.items()
    }
    named = {
        "model": watched.name,
        "topology": watched.about,
        "assumed": watched.assumed.source,
        "seen": collected("seen", SEEN, [seen], counted),
        "assumptions": [_as_json(item) for item in watched.judged],
        "percentiles_ms": percentiles,
        "advice": [asdict(item) for item in watched.advice],
    }
    failure = console.error_document(watched.failure) if watched.failure else {"error": None, "remedy": None}
    return {**collected("watched", WATCHED, (watched, watched.assumed), named), **failure}


def show_watch(watched: Watched) -> None:
    """Print the verdict on each assumption about a watched model, percentiles of its latencies, and next steps."""
    output, seen = console.output(), watched.seen
    rate = f", {seen.requests_per_s:.3g}/s" if seen.requests_per_s else ""
    summary = f"{seen.answered} requests in {seen.duration_s:.0f} s{rate}"
    output.print(f"[bold]{escape(watched.name)}[/] {escape(watched.about)}: {summary}\n", soft_wrap=True)
    output.print(FittingTable(_table(watched)), "", sep="\n")
    for name, items in seen.percentiles_ms.items():
        texts = (f"[dim]{percentile}[/] {item.text('ms')}" for percentile, item in items.items())
        output.print(f"{name:25} {'  '.join(texts)}", soft_wrap=True)
    buckets = f"percentiles are interpolated within the buckets of vLLM's histograms; {TTFT_IS}"
    lines = [
        *([buckets] if seen.percentiles_ms else []),
        f"assumed: {watched.assumed.source}",
        *(f"not as forecast: {text}" for text in watched.assumed.conditions),
        *([SIMULATED] if watched.simulated else []),
        *(f"note: {note}" for note in seen.notes),
    ]
    for line in lines:
        output.print(f"[dim]{escape(line)}[/]")
    for item in watched.advice:
        output.print(f"\n[bold]{escape(item.why)}[/]")
        output.print(f"  {escape(item.command)}", soft_wrap=True)


def interval_text(seen: CountedObservation) -> str:
    """Return a line of text about one interval between two readings of counters: requests per second, mean TTFT and
    ITL, and waiting requests.
    """
    if not seen.duration_s:
        return f"left out: {seen.notes[0] if seen.notes else 'a server came, went or could not be read'}"
    figures = (("requests/s", seen.requests_per_s), ("ms TTFT", seen.ttft_ms), ("ms ITL", seen.itl_ms))
    texts = [f"{value:.4g} {name}" for name, value in figures if value is not None]
    waiting = [f"{seen.waiting:.2g} waiting"] if seen.waiting else []
    return ", ".join([*texts, *waiting]) or "no requests"


def _as_json(judged: AssumptionJudgement) -> dict[str, Any]:
    assumption = judged.assumption
    keys = ("name", "kind", "assumed", "basis", "side", "allowed", "seen", "off_share", "verdict")
    named = {"name": assumption.figure.name, "assumed": assumption.value, "seen": judged.value}
    return collected("assumption", keys, (judged, assumption), named)


def _table(watched: Watched) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("assumed", justify="right")
    table.add_column("by")
    table.add_column(f"seen\n({watched.seen.basis.value})", justify="right")
    table.add_column("off", justify="right")
    table.add_column("")
    for judgement in watched.judged:
        table.add_row(*_cells(judgement))
    return table


def _cells(judged: AssumptionJudgement) -> Iterator[str]:
    assumption, verdict = judged.assumption, judged.verdict
    yield assumption.figure.title
    yield f"{_SIDES[assumption.side]}{assumption.figure.text(assumption.value)}"
    yield assumption.basis
    yield "" if judged.value is None else assumption.figure.text(judged.value)
    yield "" if judged.off_share is None else f"{judged.off_share:+.0%}"
    allowed = ""
    if judged.allowed and verdict in _COLOURS:
        share = judged.allowed / assumption.value if assumption.value else judged.allowed
        allowed = f" [dim]({_SIGNS[assumption.side]}{share:.0%})[/]"
    yield f"[{_COLOURS.get(verdict, 'dim')}]{verdict.value}[/]{allowed}"
