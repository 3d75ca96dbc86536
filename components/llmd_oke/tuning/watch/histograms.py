"""Percentiles and scatter out of histograms that only count how many observations lie below some bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


@dataclass(frozen=True)
class Percentile:
    """A percentile that lies between two bounds of a histogram. `value` takes observations as evenly spread between."""

    low: float
    high: float
    value: float

    def text(self, units: str) -> str:
        """For people: an interpolated value, or on which side of the outermost bounds it lies."""
        if self.low <= 0:
            return f"< {self.high:.4g} {units}"
        return f"> {self.low:.4g} {units}" if self.high == inf else f"{self.value:.4g} {units}"


def percentile(counts: Mapping[float, float], share: float) -> Percentile | None:
    """Where the value lies below which a share of the observations is, None without any.

    `counts` has, for each bound, the observations up to it; the last bound is infinity. Within a bucket the value is
    interpolated as Prometheus's `histogram_quantile` does; beyond the last finite bound that bound is given.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    rank = share * counts[bounds[-1]]
    found = ((low, high) for low, high in pairwise((0.0, *bounds)) if counts[high] >= rank and counts[high] > 0)
    low, high = next(found)
    below = counts.get(low, 0.0)
    inside = low if high == inf else low + (high - low) * (rank - below) / (counts[high] - below)
    return Percentile(low, high, inside)


def variance(counts: Mapping[float, float]) -> float:
    """An estimate of the variance, in the square of the histogram's units; 0 without observations.

    Each observation is taken to lie in the middle of its bucket; beyond the last finite bound, at that bound.
    """
    found = [
        (low if high == inf else (low + high) / 2, max(0.0, counts[high] - counts.get(low, 0.0)))
        for low, high in pairwise((0.0, *sorted(counts)))
    ]
    total = sum(number for _, number in found)
    if total <= 0:
        return 0.0
    mean = sum(middle * number for middle, number in found) / total
    return sum(number * (middle - mean) ** 2 for middle, number in found) / total


def percentiles_ms(counts_s: Mapping[float, float]) -> dict[str, Percentile]:
    """The usual percentiles of a histogram of seconds, in milliseconds; empty without observations."""
    counts_ms = {bound * 1000: count for bound, count in counts_s.items()}
    found = {name: percentile(counts_ms, share) for name, share in PERCENTILES.items()}
    return {name: each for name, each in found.items() if each is not None}
