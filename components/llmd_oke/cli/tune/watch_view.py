"""What was seen of a deployment beside what was assumed, for people and as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console, json_output
from llmd_oke.cli.tables import Fitting
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.assumed import Assumed
from llmd_oke.tuning.watch.advice import Advice, Place, advice
from llmd_oke.tuning.watch.assumptions import tolerances
from llmd_oke.tuning.watch.histograms import Percentile
from llmd_oke.tuning.watch.judging import Judged, Verdict, judge
from llmd_oke.tuning.watch.seen import Seen

SIMULATED = "rehearsed: these are the simulation's figures, and tell nothing of real servers"
TTFT_IS = "TTFT is the servers' own, prefill and decode together: without router, sidecar and the way to the client"

_SIDES = {"near": "", "at most": "≤ ", "at least": "≥ ", "below": "< "}
_SIGNS = {"near": "±", "at most": "+", "at least": "-", "below": "+"}
_COLOURS = {Verdict.HOLDS: "green", Verdict.ABOVE: "red", Verdict.BELOW: "red"}


@dataclass(frozen=True)
class Watched:
    """A deployed model, what it rests on, and what was seen of it, until the cluster no longer answered where
    `broken_off` says so. `about` is its topology.
    """

    name: str
    about: str
    assumed: Assumed
    seen: Seen
    place: Place
    simulated: bool
    broken_off: KitError | None = None

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """All assumptions."""
        return judge(self.assumed.assumptions, self.seen)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to do about those that are off."""
        return tuple(advice(self.judged, self.seen, self.place))

    @property
    def failure(self) -> KitError | None:
        """Why watching tells too little."""
        least = tolerances().latency_requests
        if self.broken_off or self.off or self.seen.answered >= least:
            return self.broken_off
        found = f"{self.seen.answered} requests ended in {self.seen.duration_s:.0f} s, too few to tell."
        return KitError(found, f"It takes {least}: watch longer, with --for or --every.")

    @property
    def off(self) -> bool:
        """Whether an assumption does not hold."""
        return any(each.off for each in self.judged)

    @property
    def holds(self) -> bool | None:
        """Whether all assumptions hold; None where watching tells too little."""
        return None if self.failure and not self.off else not self.off


def as_json(watched: Watched) -> dict[str, Any]:
    """All of it as plain data; tokens, milliseconds, shares and requests, of model time."""
    seen = watched.seen
    return {
        "model": watched.name,
        "topology": watched.about,
        "assumed": watched.assumed.source,
        "conditions": list(watched.assumed.conditions),
        "seen": {
            "basis": seen.basis.value,
            "about": SIMULATED if watched.simulated else None,
            "duration_s": seen.duration_s,
            "requests": seen.answered,
            "requests_per_s": seen.requests_per_s,
            "notes": list(seen.notes),
        },
        "assumptions": [_as_json(each) for each in watched.judged],
        "percentiles_ms": {name: _percentiles_json(each) for name, each in seen.percentiles_ms.items()},
        "holds": watched.holds,
        "advice": [{"why": each.why, "command": each.command} for each in watched.advice],
        **(json_output.described(watched.failure) if watched.failure else {"error": None, "remedy": None}),
    }


def show(watched: Watched) -> None:
    """Prints it."""
    output, seen = console.output(), watched.seen
    rate = f", {seen.requests_per_s:.3g}/s" if seen.requests_per_s else ""
    asked = f"{seen.answered} requests in {seen.duration_s:.0f} s{rate}"
    output.print(f"[bold]{escape(watched.name)}[/] {escape(watched.about)}: {asked}\n", soft_wrap=True)
    output.print(Fitting(_table(watched)), "", sep="\n")
    for name, each in seen.percentiles_ms.items():
        output.print(f"{name:25} {_percentiles(each)}", soft_wrap=True)
    for line in _lines(watched):
        output.print(f"[dim]{escape(line)}[/]")
    for each in watched.advice:
        output.print(f"\n[bold]{escape(each.why)}[/]")
        output.print(f"  {escape(each.command)}", soft_wrap=True)


def line(seen: Seen) -> str:
    """What one interval showed, in a line."""
    if not seen.duration_s:
        return f"left out: {seen.notes[0] if seen.notes else 'a server came, went or could not be read'}"
    figures = (("requests/s", seen.requests_per_s), ("ms TTFT", seen.ttft_ms), ("ms ITL", seen.itl_ms))
    told = [f"{value:.4g} {name}" for name, value in figures if value is not None]
    waiting = [f"{seen.waiting:.2g} waiting"] if seen.waiting else []
    return ", ".join([*told, *waiting]) or "no requests"


def _as_json(judged: Judged) -> dict[str, Any]:
    assumption = judged.assumption
    return {
        "name": assumption.figure.name,
        "kind": assumption.kind.value,
        "assumed": assumption.value,
        "basis": assumption.basis,
        "side": assumption.side,
        "allowed": judged.allowed,
        "seen": judged.value,
        "off_share": judged.off_share,
        "verdict": judged.verdict.value,
    }


def _table(watched: Watched) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("assumed", justify="right")
    table.add_column("by")
    table.add_column(f"seen\n({watched.seen.basis.value})", justify="right")
    table.add_column("off", justify="right")
    table.add_column("")
    for each in watched.judged:
        table.add_row(*_cells(each))
    return table


def _cells(judged: Judged) -> Iterator[str]:
    assumption, verdict = judged.assumption, judged.verdict
    yield assumption.figure.title
    yield f"{_SIDES[assumption.side]}{assumption.figure.text(assumption.value)}"
    yield assumption.basis
    yield "" if judged.value is None else assumption.figure.text(judged.value)
    yield "" if judged.off_share is None else f"{judged.off_share:+.0%}"
    colour = _COLOURS.get(verdict, "dim")
    yield f"[{colour}]{verdict.value}[/]{_allowed(judged)}"


def _allowed(judged: Judged) -> str:
    """How far off it may be, where it may."""
    assumption = judged.assumption
    if not judged.allowed or judged.verdict not in _COLOURS:
        return ""
    share = judged.allowed / assumption.value if assumption.value else judged.allowed
    return f" [dim]({_SIGNS[assumption.side]}{share:.0%})[/]"


def _percentiles(each: Mapping[str, Percentile]) -> str:
    return "  ".join(f"[dim]{name}[/] {found.text('ms')}" for name, found in each.items())


def _percentiles_json(each: Mapping[str, Percentile]) -> dict[str, dict[str, float | None]]:
    """With the bounds between which each lies; no upper one beyond the last."""
    return {
        name: {"value": found.value, "low": found.low, "high": found.high if isfinite(found.high) else None}
        for name, found in each.items()
    }


def _lines(watched: Watched) -> Iterator[str]:
    if watched.seen.percentiles_ms:
        yield f"percentiles are interpolated within the buckets of vLLM's histograms; {TTFT_IS}"
    yield f"assumed: {watched.assumed.source}"
    yield from (f"not as forecast: {text}" for text in watched.assumed.conditions)
    if watched.simulated:
        yield SIMULATED
    yield from (f"note: {note}" for note in watched.seen.notes)
