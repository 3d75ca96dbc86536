"""Comparison of a deployment's observed figures with assumptions (load, forecasts, limits), within tolerances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt
from typing import Literal

from llmd_base.row import Basis

from llmd_oke.operations.observations import (
    ACCEPTED,
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
from llmd_oke.values import Entry, entry_reader

Side = Literal["near", "at most", "at least", "below"]


class AssumptionKind(StrEnum):
    """Kind of an assumption: load, forecast or limit."""

    LOAD = "load"
    """Load that the deployment gets, such as requests per second."""
    FORECAST = "forecast"
    """Figure that was computed for the assumed load, and that holds for that load only."""
    LIMIT = "limit"
    """Limit that applies at any load, such as a latency target."""


class Tolerances(Entry):
    """Allowed deviations of observed figures from assumed ones (`values/tuning/watching.yaml`).

    Attributes:
        load_share: deviation of requests per second and of mean lengths, as a share of the assumed value.
        prefix_cache_share: deviation of the share of prompt tokens that the prefix cache has from the assumed share.
        accepted_share: how much lower the accepted share of drafted tokens may be than the assumed share.
        sigmas: number of standard errors that are added to the allowed deviation of a mean.
        latency_requests: number of answers below which latencies aren't judged.
        silence_s: time in seconds without a reading after which watching ends.
        kv_cache_usage: largest used share of a server's KV cache.
        waiting: largest mean number of waiting requests of a server.
        preemptions: largest number of preemptions.
    """

    load_share: float
    prefix_cache_share: float
    accepted_share: float
    sigmas: float
    latency_requests: int
    silence_s: float
    kv_cache_usage: float
    waiting: float
    preemptions: float


tolerances = entry_reader("tuning", "watching", Tolerances)
"""Return the allowed deviations of observed figures from assumed ones."""


@dataclass(frozen=True)
class Assumption:
    """Assumed value of one figure of a deployment. `tolerance` is the allowed deviation in the figure's units, `side`
    the allowed direction.

    `basis` is the origin of the value: `given`, `calibrated`, `bound`, `target` or `limit`.
    """

    figure: Figure
    kind: AssumptionKind
    value: float
    basis: str
    side: Side = "near"
    tolerance: float = 0.0


def latency_limits(ttft_ms: float | None, itl_ms: float | None) -> Iterator[Assumption]:
    """Yield the latency targets as upper limits of the mean latencies; None for no target."""
    for figure, limit_ms in ((TTFT, ttft_ms), (ITL, itl_ms)):
        if limit_ms is not None:
            yield Assumption(figure, AssumptionKind.LIMIT, limit_ms, "target", "at most")


def limits(max_num_seqs: int, min_remote_prefill_share: float | None) -> Iterator[Assumption]:
    """Yield the limits beyond which forecasts don't hold: running and waiting requests, KV cache, preemptions, and the
    least share of remote prefill, unless `min_remote_prefill_share` is None.
    """
    most = tolerances()
    yield Assumption(MAX_RUNNING, AssumptionKind.LIMIT, max_num_seqs, "limit", "below")
    yield Assumption(WAITING, AssumptionKind.LIMIT, most.waiting, "limit", "at most")
    yield Assumption(KV_CACHE_USAGE, AssumptionKind.LIMIT, most.kv_cache_usage, "limit", "at most")
    yield Assumption(PREEMPTIONS, AssumptionKind.LIMIT, most.preemptions, "limit", "at most")
    if min_remote_prefill_share is not None:
        yield Assumption(REMOTE_PREFILL, AssumptionKind.LIMIT, min_remote_prefill_share, "limit", "at least")


class AssumptionVerdict(StrEnum):
    """Verdict on an assumption: within, above or below the allowed range, or the reason for no comparison."""

    HOLDS = "holds"
    ABOVE = "above"
    BELOW = "below"
    OTHER_LOAD = "other load"
    """The figure differs from the forecast, but so does the load from the load that the forecast is for."""
    BOUND = "a bound"
    """The forecast is only an upper or lower bound, with which observed figures aren't compared."""
    FEW = "too few"
    """Too few requests ended for a meaningful mean."""
    UNKNOWN = "not shown"
    """No server or router exposes the counters from which the figure is computed."""


@dataclass(frozen=True)
class AssumptionJudgement:
    """Assumption with the observed value of its figure and the verdict; `allowed` is the allowed deviation, random
    error included.
    """

    assumption: Assumption
    value: float | None
    allowed: float
    verdict: AssumptionVerdict

    @property
    def off(self) -> bool:
        """True if the observed value is above or below the allowed range."""
        return self.verdict in {AssumptionVerdict.ABOVE, AssumptionVerdict.BELOW}

    @property
    def off_share(self) -> float | None:
        """Deviation of the observed from the assumed value, relative to the latter (0.1 is 10 %); None for limits and
        for unknown values.
        """
        if self.value is None or not self.assumption.value or self.assumption.side != "near":
            return None
        return self.value / self.assumption.value - 1


def judge(assumptions: Sequence[Assumption], seen: CountedObservation) -> tuple[AssumptionJudgement, ...]:
    """Compare assumptions with the observed figures. If the load differs from the assumed load, forecasts that don't
    hold get the verdict `other load`.
    """
    judgements = tuple(_judged(assumption, seen) for assumption in assumptions)
    same_load = all(  # in both directions, whatever the load's `side`
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
    side, assumed = assumption.side, assumption.value
    if assumption.figure.of_requests and seen.answered < tolerances().latency_requests:
        verdict = AssumptionVerdict.FEW
    elif value is None:
        verdict = AssumptionVerdict.UNKNOWN
    elif assumption.kind is AssumptionKind.FORECAST and assumption.basis == Basis.BOUND:
        verdict = AssumptionVerdict.BOUND
    elif side != "at least" and (value > assumed + allowed or (side == "below" and value == assumed)):
        verdict = AssumptionVerdict.ABOVE
    elif side in {"near", "at least"} and value < assumed - allowed:
        verdict = AssumptionVerdict.BELOW
    else:
        verdict = AssumptionVerdict.HOLDS
    return AssumptionJudgement(assumption, value, allowed, verdict)


def _chance(assumption: Assumption, seen: CountedObservation) -> float:
    """Return the allowed random error of a figure: the tolerated number of standard errors (`sigmas`).

    For means over requests, the standard error is the observed one. For a rate it is that of Poisson arrivals during
    the observation. For the share of remote prefill it comes from the requests that were between prefill and decode
    server at the start and the end of the observation: by Little's law, the arrivals during one TTFT.
    """
    sigmas = tolerances().sigmas
    if assumption.figure is REQUESTS and seen.duration_s > 0:
        return sigmas * sqrt(assumption.value / seen.duration_s)
    if assumption.figure is REMOTE_PREFILL and seen.answered and seen.requests_per_s and seen.ttft_ms:
        return sigmas * sqrt(2 * seen.requests_per_s * seen.ttft_ms / 1000) / seen.answered
    return sigmas * seen.standard_errors.get(assumption.figure.name, 0.0)


def model_limits(plan: Plan, model: ModelPlan) -> Iterator[Assumption]:
    """Yield the limits of a model beyond which forecasts don't hold."""
    remote = model.topology.disaggregated and model.routed
    yield from limits(model.max_num_seqs, plan.smoke.thresholds.min_remote_prefill_share if remote else None)
    if (asked := model.engine.speculation) is not None and (share := asked.accepted_share) is not None:
        tolerance = tolerances().accepted_share
        yield Assumption(ACCEPTED, AssumptionKind.LIMIT, share, "given", "at least", tolerance)
