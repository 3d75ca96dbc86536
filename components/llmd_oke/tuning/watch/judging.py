"""Whether what was seen is what was assumed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt

from llmd_oke.results.row import Basis
from llmd_oke.tuning.watch.assumptions import Assumption, Kind, tolerances
from llmd_oke.tuning.watch.seen import REMOTE_PREFILL, REQUESTS, Seen


class Verdict(StrEnum):
    """How an assumption fares."""

    HOLDS = "holds"
    ABOVE = "above"
    BELOW = "below"
    OTHER_LOAD = "other load"
    """Off, but under another load than it was made for, so that nothing follows."""
    BOUND = "a bound"
    """No forecast, and not judged."""
    FEW = "too few"
    """Requests, for a mean."""
    UNKNOWN = "not shown"
    """By the programs that would have to count it."""


@dataclass(frozen=True)
class Judged:
    """An assumption with what was seen; `allowed` is how far that may be off, chance included."""

    assumption: Assumption
    value: float | None
    allowed: float
    verdict: Verdict

    @property
    def off(self) -> bool:
        """Whether something has to be done."""
        return self.verdict in {Verdict.ABOVE, Verdict.BELOW}

    @property
    def off_share(self) -> float | None:
        """How far it is off, as a share of what was assumed; None for limits and where either is not there."""
        if self.value is None or not self.assumption.value or self.assumption.side != "near":
            return None
        return self.value / self.assumption.value - 1


def judge(assumptions: Sequence[Assumption], seen: Seen) -> tuple[Judged, ...]:
    """All of them. A forecast that is off counts only where the load is the one that it was made for."""
    found = [_judged(each, seen) for each in assumptions]
    same_load = all(_same(each) for each in found if each.assumption.kind is Kind.LOAD)
    return tuple(each if same_load else _under_another_load(each) for each in found)


def _judged(assumption: Assumption, seen: Seen) -> Judged:
    value = assumption.figure.of(seen)
    allowed = assumption.tolerance + _chance(assumption, seen)
    if assumption.figure.of_requests and seen.answered < tolerances().latency_requests:
        return Judged(assumption, value, allowed, Verdict.FEW)
    if value is None:
        return Judged(assumption, value, allowed, Verdict.UNKNOWN)
    if assumption.kind is Kind.FORECAST and assumption.basis == Basis.BOUND:
        return Judged(assumption, value, allowed, Verdict.BOUND)
    return Judged(assumption, value, allowed, _verdict(assumption, value, allowed))


def _verdict(assumption: Assumption, value: float, allowed: float) -> Verdict:
    side, assumed = assumption.side, assumption.value
    if side != "at least" and (value > assumed + allowed or (side == "below" and value == assumed)):
        return Verdict.ABOVE
    if side in {"near", "at least"} and value < assumed - allowed:
        return Verdict.BELOW
    return Verdict.HOLDS


def _chance(assumption: Assumption, seen: Seen) -> float:
    """How far a figure is off by chance: so many standard errors as are allowed, those of means as they were seen.

    For a rate those of random arrivals in the time that was watched; for remote prefill of the requests that had left
    one server and not yet reached the other when watching began and when it ended, by Little's law as many as come
    within a TTFT.
    """
    sigmas = tolerances().sigmas
    if assumption.figure is REQUESTS and seen.duration_s > 0:
        return sigmas * sqrt(assumption.value / seen.duration_s)
    if assumption.figure is REMOTE_PREFILL and seen.answered and seen.requests_per_s and seen.ttft_ms:
        return sigmas * sqrt(2 * seen.requests_per_s * seen.ttft_ms / 1000) / seen.answered
    return sigmas * seen.standard_errors.get(assumption.figure.name, 0.0)


def _same(judged: Judged) -> bool:
    """Whether a part of the load is as it was assumed, also where less would be no surprise."""
    return judged.value is None or abs(judged.value - judged.assumption.value) <= judged.allowed


def _under_another_load(judged: Judged) -> Judged:
    is_forecast = judged.assumption.kind is Kind.FORECAST
    return replace(judged, verdict=Verdict.OTHER_LOAD) if is_forecast and judged.off else judged
