"""Results of a simulation: the requests of each run, a row for each seed, and their mean with its
confidence interval.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np
from llmd_base.row import Arrival, Basis, Origin, Quantiles, Row
from llmd_oke.config import Role
from numpy.typing import NDArray

from llmd_tuner.simulation.deployment import (
    Arrivals,
    ClosedLoopArrivals,
    ConstantArrivals,
    PoissonArrivals,
    RecordedTimes,
    SimulatedDeployment,
)
from llmd_tuner.simulation.engine import Gaps, Request

Window = Literal["steady", "whole"]
"""Evaluated part of a simulated run: the middle 60 % of the time in which requests are sent, or all until the last
answer.
"""

TRIMMED_SHARE = 0.2
"""Share of the sending time that a steady window leaves out at each end."""

_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")

_RATES = ("achieved_requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "concurrency")

_WINDOW_NOTES = {
    "steady": "the middle 60 % of the sending time",
    "whole": "the whole run, from the first request to the last answer",
}

Floats = NDArray[np.float64]

_PERCENTS = {"min": 0, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p99p9": 99.9, "max": 100}


@dataclass(frozen=True)
class SimulationRecord:
    """Times of all requests and all intervals between tokens in one simulated run. Times are in seconds after its
    start.
    """

    arrival_s: Floats
    first_s: Floats
    last_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    gap_time_s: Floats
    gap_s: Floats
    gap_count: Floats

    @property
    def sending_s(self) -> float:
        """Time at which the last request arrived, in seconds after the start of the run."""
        return float(self.arrival_s.max())

    @property
    def end_s(self) -> float:
        """Time at which the last request was answered, in seconds after the start of the run."""
        return float(self.last_s.max())

    def between(self, start_s: float, end_s: float) -> "View":
        """Return the part of the run between two times, given in seconds after the start of the run."""
        return View(self, start_s, end_s)


def record(requests: list[Request], gaps: Gaps) -> SimulationRecord:
    """Return the record of a run's requests, all answered and at least one, and of its intervals between tokens."""
    return SimulationRecord(
        arrival_s=np.array([request.arrival_s for request in requests]),
        first_s=np.array([request.first_s for request in requests]),
        last_s=np.array([request.last_s for request in requests]),
        input_tokens=np.array([float(request.input_tokens) for request in requests]),
        output_tokens=np.array([float(request.output_tokens) for request in requests]),
        gap_time_s=np.array(gaps.times_s),
        gap_s=np.array(gaps.gaps_s),
        gap_count=np.array(gaps.counts),
    )


class View:
    """Part of a simulated run between two times: latencies of the requests that arrived in it, and rates of the events
    in it.
    """

    def __init__(self, source: SimulationRecord, start_s: float, end_s: float) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self._source = source
        self._chosen = (source.arrival_s >= start_s) & (source.arrival_s <= end_s)

    @property
    def duration_s(self) -> float:
        """Length of this part of the run in seconds."""
        return self.end_s - self.start_s

    @property
    def requests(self) -> int:
        """Number of requests that arrived in this part of the run."""
        return int(self._chosen.sum())

    @property
    def ttft_s(self) -> Floats:
        """Seconds from arrival to first token, for each request that arrived in this part of the run."""
        return (self._source.first_s - self._source.arrival_s)[self._chosen]

    @property
    def e2e_s(self) -> Floats:
        """Seconds from arrival to last token, for each request that arrived in this part of the run."""
        return (self._source.last_s - self._source.arrival_s)[self._chosen]

    @property
    def tpot_s(self) -> Floats:
        """Mean seconds per token after the first, for each request of more than one token that arrived in this part of
        the run.
        """
        source, chosen = self._source, self._chosen & (self._source.output_tokens > 1)
        return ((source.last_s - source.first_s)[chosen]) / (source.output_tokens[chosen] - 1)

    @property
    def input_tokens(self) -> float:
        """Mean prompt length in tokens of the requests that arrived in this part of the run."""
        return float(self._source.input_tokens[self._chosen].mean())

    @property
    def output_tokens(self) -> float:
        """Mean output length in tokens of the requests that arrived in this part of the run."""
        return float(self._source.output_tokens[self._chosen].mean())

    @property
    def in_flight(self) -> float:
        """Number of unanswered requests, averaged over this part of the run."""
        source = self._source
        overlap = np.minimum(source.last_s, self.end_s) - np.maximum(source.arrival_s, self.start_s)
        return float(np.clip(overlap, 0, None).sum() / self.duration_s)

    @property
    def requests_per_s(self) -> float:
        """Number of requests whose answers ended in this part of the run, per second, over all servers."""
        return self._within(self._source.last_s).sum() / self.duration_s

    @property
    def input_tokens_per_s(self) -> float:
        """Prompt tokens of the requests whose first token was generated in this part of the run, per second, over all
        servers.
        """
        return float(self._source.input_tokens[self._within(self._source.first_s)].sum()) / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens that all servers of the deployment generated in this part of the run, per second."""
        later = self._source.gap_count[self._within(self._source.gap_time_s)].sum()
        return float(later + self._within(self._source.first_s).sum()) / self.duration_s

    def goodput_share(self, ttft_s: float, tpot_s: float) -> float:
        """Return the share of the requests that arrived in this part of the run and met both targets, in seconds: for
        the time to first token, and for the mean time per later token.
        """
        source, chosen = self._source, self._chosen
        later_s = (source.last_s - source.first_s)[chosen]
        good = (self.ttft_s <= ttft_s) & (later_s <= tpot_s * (source.output_tokens[chosen] - 1) + 1e-9)
        return float(good.mean())

    def gap_quantiles_ms(self) -> Quantiles:
        """Return the quantiles, in milliseconds, of the intervals between two tokens that ended in this part of the
        run.
        """
        chosen = self._within(self._source.gap_time_s)
        gaps, counts = self._source.gap_s[chosen], self._source.gap_count[chosen]
        total = counts.sum()
        if not total:
            return Quantiles()
        order = np.argsort(gaps)
        sought: Floats = total * np.array([*_PERCENTS.values()]) / 100
        places = np.interp(sought, np.cumsum(counts[order]), np.arange(len(gaps)))
        return _quantiles(float((gaps * counts).sum() / total), gaps[order][np.ceil(places).astype(np.int64)])

    def _within(self, times_s: Floats) -> NDArray[np.bool_]:
        return (times_s >= self.start_s) & (times_s <= self.end_s)


def quantiles_ms(times_s: Floats) -> Quantiles:
    """Return the mean and quantiles, in milliseconds, of times in seconds, interpolated as numpy does by default; empty
    without any time.
    """
    if not len(times_s):
        return Quantiles()
    return _quantiles(float(times_s.mean()), np.percentile(times_s, [*_PERCENTS.values()]))


def _quantiles(mean_s: float, values_s: Floats) -> Quantiles:
    named = zip(_PERCENTS, values_s, strict=True)
    return Quantiles(mean=1000 * mean_s, **{name: 1000 * float(value) for name, value in named})


@dataclass(frozen=True)
class Use:
    """Utilization of the servers of a role: the share of time in which a step ran, and the time-averaged batch."""

    busy_share: float
    batch: float


@dataclass(frozen=True)
class SimulationRun:
    """Result of one run of a simulation with one seed."""

    seed: int
    record: SimulationRecord
    use: dict[Role, Use]


# Student's t for 95 % (two-sided) by degrees of freedom; the normal distribution's 1.96 is within 4 % above the last.
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Mean over `runs` independent runs, with the half width of its 95 % confidence interval, which is None for a
    single run.
    """

    mean: float
    half_width: float | None
    runs: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent runs with Student's t interval (batch means, where each run is one batch)."""
    count = len(values)
    if count == 1:
        return Estimate(values[0], None, 1)
    student_t = _STUDENT_T[count - 2] if count - 2 < len(_STUDENT_T) else statistics.NormalDist().inv_cdf(0.975)
    return Estimate(statistics.fmean(values), student_t * statistics.stdev(values) / math.sqrt(count), count)


_ARRIVALS: dict[type[Arrivals], Arrival] = {
    ClosedLoopArrivals: "closed",
    ConstantArrivals: "constant",
    PoissonArrivals: "poisson",
    RecordedTimes: "trace",
}


@dataclass(frozen=True)
class SimulationResult:
    """Rows of independent runs of one deployment under one load, with the utilization of its servers."""

    rows: tuple[Row, ...]
    views: tuple[View, ...]
    """Evaluated part of each run, with the times of every request that the rows summarise."""
    use: dict[Role, Use]

    @cached_property
    def row(self) -> Row:
        """Mean of all runs as a row; its quantiles are means of the runs' quantiles."""
        first = self.rows[0]
        if len(self.rows) == 1:
            return first
        merged: dict[str, Quantiles] = {}
        for latency in _LATENCIES:
            parts = [getattr(row, latency) for row in self.rows]
            quantiles = {name: _mean([getattr(part, name) for part in parts]) for name in Quantiles.model_fields}
            merged[latency] = Quantiles(**quantiles)
        means = {name: _mean([getattr(row, name) for row in self.rows]) for name in (*_RATES, "duration_s")}
        update = {
            **merged,
            **means,
            "input_tokens": fmean(row.input_tokens for row in self.rows),
            "output_tokens": fmean(row.output_tokens for row in self.rows),
            "requests": sum(row.requests or 0 for row in self.rows),
            "seed": None,
            "notes": (*first.notes, f"mean of {len(self.rows)} runs"),
        }
        return first.model_copy(update=update)

    def estimate(self, metric: str) -> Estimate:
        """Return a figure with its 95 % confidence interval. `metric` names it as in a row: `tpsg`, `ttft_ms.p99`,
        `output_tokens_per_s`.

        Raises:
            KeyError: rows have no such figure, or it isn't known for this load.
        """
        values: list[float] = []
        for row in self.rows:
            value: object = row
            for name in metric.split("."):
                value = getattr(value, name, None)
            if not isinstance(value, int | float):
                raise KeyError(metric)
            values.append(float(value))
        return estimate(values)

    def goodput_share(self, ttft_ms: float, tpot_ms: float) -> Estimate:
        """Return the share of requests whose time to first token and mean time for each later one are within the
        targets, in milliseconds.
        """
        return estimate([view.goodput_share(ttft_ms / 1000, tpot_ms / 1000) for view in self.views])


def row_of(
    view: View, run: SimulationRun, deployment: SimulatedDeployment, arrivals: Arrivals, window: Window, basis: Basis
) -> Row:
    """Return the result of one simulated run as a row of the table of results."""
    rate = arrivals.requests_per_s if isinstance(arrivals, ConstantArrivals | PoissonArrivals) else None
    price = deployment.price_usd_per_gpu_hour
    return Row(
        subject="end-to-end",
        basis=basis,
        model=deployment.model,
        gpu=deployment.gpu,
        origin=Origin(tool="llmd-oke event simulation"),
        topology=str(deployment.topology),
        copies=deployment.copies,
        gpus_counted=deployment.gpus,
        input_tokens=view.input_tokens,
        output_tokens=view.output_tokens,
        arrival=_ARRIVALS[type(arrivals)],
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoopArrivals) else view.in_flight,
        offered_requests_per_s=rate,
        achieved_requests_per_s=view.requests_per_s,
        input_tokens_per_s=view.input_tokens_per_s,
        output_tokens_per_s=view.output_tokens_per_s,
        ttft_ms=quantiles_ms(view.ttft_s),
        tpot_ms=quantiles_ms(view.tpot_s),
        itl_ms=view.gap_quantiles_ms(),
        e2e_ms=quantiles_ms(view.e2e_s),
        requests=view.requests,
        duration_s=view.duration_s,
        seed=run.seed,
        max_num_seqs=min(limits.max_num_seqs for limits in deployment.limits.values()),
        price_usd_per_hour=None if price is None else price * deployment.gpus,
        notes=(f"router policy {deployment.policy}", _WINDOW_NOTES[window]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
