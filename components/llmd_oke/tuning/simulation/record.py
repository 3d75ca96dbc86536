"""What one run of a simulation saw."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmd_oke.results.row import Quantiles
from llmd_oke.tuning.simulation.gaps import Gaps
from llmd_oke.tuning.simulation.request import Request

Floats = NDArray[np.float64]

_PERCENTS = {"min": 0, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p99p9": 99.9, "max": 100}


@dataclass(frozen=True)
class Record:
    """Every request and every gap between tokens of one run. Times are seconds after its start.

    `sending_s` is when the last request arrived, `end_s` when the last one was answered.
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
        """When the last request arrived."""
        return float(self.arrival_s.max())

    @property
    def end_s(self) -> float:
        """When the last request was answered."""
        return float(self.last_s.max())

    def between(self, start_s: float, end_s: float) -> "View":
        """What happened in a stretch of the run."""
        return View(self, start_s, end_s)


def record(requests: list[Request], gaps: Gaps) -> Record:
    """The record of requests that are answered, of which there is at least one."""
    return Record(
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
    """A stretch of a run: latencies of the requests that arrived in it, and rates of what happened in it."""

    def __init__(self, source: Record, start_s: float, end_s: float) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self._source = source
        self._chosen = (source.arrival_s >= start_s) & (source.arrival_s <= end_s)

    @property
    def duration_s(self) -> float:
        """Length of the stretch."""
        return self.end_s - self.start_s

    @property
    def requests(self) -> int:
        """Requests that arrived in the stretch."""
        return int(self._chosen.sum())

    @property
    def ttft_s(self) -> Floats:
        """From arrival to first token."""
        return (self._source.first_s - self._source.arrival_s)[self._chosen]

    @property
    def e2e_s(self) -> Floats:
        """From arrival to last token."""
        return (self._source.last_s - self._source.arrival_s)[self._chosen]

    @property
    def tpot_s(self) -> Floats:
        """Mean time for each token after the first, of requests that have one."""
        source, chosen = self._source, self._chosen & (self._source.output_tokens > 1)
        return ((source.last_s - source.first_s)[chosen]) / (source.output_tokens[chosen] - 1)

    @property
    def input_tokens(self) -> float:
        """Mean prompt length."""
        return float(self._source.input_tokens[self._chosen].mean())

    @property
    def output_tokens(self) -> float:
        """Mean output length."""
        return float(self._source.output_tokens[self._chosen].mean())

    @property
    def in_flight(self) -> float:
        """Requests in the system, averaged over time."""
        source = self._source
        overlap = np.minimum(source.last_s, self.end_s) - np.maximum(source.arrival_s, self.start_s)
        return float(np.clip(overlap, 0, None).sum() / self.duration_s)

    @property
    def requests_per_s(self) -> float:
        """Answers that ended in the stretch, per second."""
        return self._within(self._source.last_s).sum() / self.duration_s

    @property
    def input_tokens_per_s(self) -> float:
        """Prompt tokens whose first token came in the stretch, per second."""
        return float(self._source.input_tokens[self._within(self._source.first_s)].sum()) / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that came in the stretch, per second."""
        later = self._source.gap_count[self._within(self._source.gap_time_s)].sum()
        return float(later + self._within(self._source.first_s).sum()) / self.duration_s

    def goodput_share(self, ttft_s: float, tpot_s: float) -> float:
        """The share of requests whose first token and mean time for each later one came within those times."""
        source, chosen = self._source, self._chosen
        later_s = (source.last_s - source.first_s)[chosen]
        kept = (self.ttft_s <= ttft_s) & (later_s <= tpot_s * (source.output_tokens[chosen] - 1) + 1e-9)
        return float(kept.mean())

    def gap_quantiles_ms(self) -> Quantiles:
        """Times between two tokens, each counted once."""
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
    """The distribution of times, interpolated as numpy does by default; empty where there are none."""
    if not len(times_s):
        return Quantiles()
    return _quantiles(float(times_s.mean()), np.percentile(times_s, [*_PERCENTS.values()]))


def _quantiles(mean_s: float, values_s: Floats) -> Quantiles:
    named = zip(_PERCENTS, values_s, strict=True)
    return Quantiles(mean=1000 * mean_s, **{name: 1000 * float(value) for name, value in named})
