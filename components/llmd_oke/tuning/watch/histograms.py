"""Percentiles out of histograms that only count how many observations lie below some bounds."""

from collections.abc import Mapping
from itertools import pairwise
from math import inf

from llmd_oke.results.row import Quantiles


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """The value below which a share of the observations lies, None without any.

    `counts` has, for each bound, the observations up to it. Within a bucket they are taken as evenly spread, as
    Prometheus's `histogram_quantile` does; beyond the last finite bound that bound is given.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    rank = share * counts[bounds[-1]]
    for lower, upper in pairwise((0.0, *bounds)):
        below = counts.get(lower, 0.0)
        if counts[upper] >= rank and counts[upper] > below:
            return lower if upper == inf else lower + (upper - lower) * max(0.0, rank - below) / (counts[upper] - below)
    return bounds[-1]


def quantiles_ms(counts_s: Mapping[float, float], mean_s: float | None) -> Quantiles:
    """Mean and percentiles, in milliseconds, of a histogram of seconds."""
    found = {name: quantile(counts_s, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    told = {"mean": mean_s, **found}
    return Quantiles(**{name: None if value is None else value * 1000 for name, value in told.items()})
