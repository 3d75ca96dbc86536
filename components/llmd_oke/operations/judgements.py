"""Assumptions about a deployment, judged by what its servers count: limits, tolerances and verdicts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import sqrt
from typing import Literal

from llmd_base.row import Basis

from llmd_oke.operations.observations import (
    ITL,
    KV_CACHE_USAGE,
    MAX_RUNNING,
    PREEMPTIONS,
    REMOTE_PREFILL,
    REQUESTS,
    TTFT,
    WAITING,
    CountedObservation,
    Figure,
)
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.values import Entry, required_entry

Side = Literal["near", "at most", "at least", "below"]


class AssumptionKind(StrEnum):
    """Kind of an assumption."""

    LOAD = "load"
    """What is asked of the deployment."""
    FORECAST = "forecast"
    """What it was expected to do under that load, and under no other."""
    LIMIT = "limit"
    """What holds at any load."""


class Tolerances(Entry):
    """`values/tuning/watching.yaml`."""

    load_share: float
    prefix_cache_share: float
    sigmas: float
    latency_requests: int
    silence_s: float
    kv_cache_usage: float
    waiting: float
    preemptions: float


@cache
def tolerances() -> Tolerances:
    """The kit's own."""
    return required_entry("tuning", "watching", Tolerances)


@dataclass(frozen=True)
class Assumption:
    """One figure as it was assumed. `tolerance` is how far it may be off, in the figure's units.

    `basis` says where the value is from: `given`, `calibrated`, `bound`, `target` or `limit`.
    """

    figure: Figure
    kind: AssumptionKind
    value: float
    basis: str
    side: Side = "near"
    tolerance: float = 0.0


def latency_limits(ttft_ms: float | None, itl_ms: float | None) -> Iterator[Assumption]:
    """Latencies that were promised, as limits of their means; None where nothing is promised."""
    for figure, limit_ms in ((TTFT, ttft_ms), (ITL, itl_ms)):
        if limit_ms is not None:
            yield Assumption(figure, AssumptionKind.LIMIT, limit_ms, "target", "at most")


def limits(max_num_seqs: int, min_remote_prefill_share: float | None) -> Iterator[Assumption]:
    """Yield the limits that keep servers out of the regime that nothing was forecast for; no share where prefill is not
    remote.
    """
    most = tolerances()
    yield Assumption(MAX_RUNNING, AssumptionKind.LIMIT, max_num_seqs, "limit", "below")
    yield Assumption(WAITING, AssumptionKind.LIMIT, most.waiting, "limit", "at most")
    yield Assumption(KV_CACHE_USAGE, AssumptionKind.LIMIT, most.kv_cache_usage, "limit", "at most")
    yield Assumption(PREEMPTIONS, AssumptionKind.LIMIT, most.preemptions, "limit", "at most")
    if min_remote_prefill_share is not None:
        yield Assumption(REMOTE_PREFILL, AssumptionKind.LIMIT, min_remote_prefill_share, "limit", "at least")


class AssumptionVerdict(StrEnum):
    """Verdict on an assumption."""

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
class AssumptionJudgement:
    """An assumption with what was seen; `allowed` is how far that may be off, chance included."""

    assumption: Assumption
    value: float | None
    allowed: float
    verdict: AssumptionVerdict

    @property
    def off(self) -> bool:
        """True if something has to be done."""
        return self.verdict in {AssumptionVerdict.ABOVE, AssumptionVerdict.BELOW}

    @property
    def off_share(self) -> float | None:
        """Deviation as a share of what was assumed; None for limits and where either is not there."""
        if self.value is None or not self.assumption.value or self.assumption.side != "near":
            return None
        return self.value / self.assumption.value - 1


def judge(assumptions: Sequence[Assumption], seen: CountedObservation) -> tuple[AssumptionJudgement, ...]:
    """Judge assumptions. A forecast that is off counts only where the load is the one that it was made for."""
    judgements = tuple(_judged(assumption, seen) for assumption in assumptions)
    same_load = all(  # also where less would be no surprise
        item.value is None or abs(item.value - item.assumption.value) <= item.allowed
        for item in judgements
        if item.assumption.kind is AssumptionKind.LOAD
    )
    if same_load:
        return judgements
    return tuple(
        replace(item, verdict=AssumptionVerdict.OTHER_LOAD)
        if item.off and item.assumption.kind is AssumptionKind.FORECAST
        else item
        for item in judgements
    )


def _judged(assumption: Assumption, seen: CountedObservation) -> AssumptionJudgement:
    value = assumption.figure.of(seen)
    allowed = assumption.tolerance + _chance(assumption, seen)
    if assumption.figure.of_requests and seen.answered < tolerances().latency_requests:
        return AssumptionJudgement(assumption, value, allowed, AssumptionVerdict.FEW)
    if value is None:
        return AssumptionJudgement(assumption, value, allowed, AssumptionVerdict.UNKNOWN)
    if assumption.kind is AssumptionKind.FORECAST and assumption.basis == Basis.BOUND:
        return AssumptionJudgement(assumption, value, allowed, AssumptionVerdict.BOUND)
    return AssumptionJudgement(assumption, value, allowed, _verdict(assumption, value, allowed))


def _verdict(assumption: Assumption, value: float, allowed: float) -> AssumptionVerdict:
    side, assumed = assumption.side, assumption.value
    if side != "at least" and (value > assumed + allowed or (side == "below" and value == assumed)):
        return AssumptionVerdict.ABOVE
    if side in {"near", "at least"} and value < assumed - allowed:
        return AssumptionVerdict.BELOW
    return AssumptionVerdict.HOLDS


def _chance(assumption: Assumption, seen: CountedObservation) -> float:
    """Return how far a figure may be off by chance: so many standard errors as are allowed, those of means as they were
    seen.

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


def model_limits(plan: Plan, model: ModelPlan) -> Iterator[Assumption]:
    """Limits of a model at any load, which keep its servers out of the regime that nothing was forecast for."""
    remote = model.topology.disaggregated and model.routed
    yield from limits(model.max_num_seqs, plan.smoke.thresholds.min_remote_prefill_share if remote else None)
