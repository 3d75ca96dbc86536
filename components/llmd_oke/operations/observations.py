"""Figures of a deployment over an interval, computed from the counters of its servers and routers: means, percentiles,
errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from llmd_base.row import Basis

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


@dataclass(frozen=True)
class Percentile:
    """A percentile of a histogram: the bounds of its bucket, and the value by linear interpolation
    within the bucket.
    """

    low: float
    high: float
    value: float

    def text(self, units: str) -> str:
        """Return the percentile as text with units: the interpolated value, or, in the first or last bucket, `< bound`
        or `> bound`.
        """
        if self.low <= 0:
            return f"< {self.high:.4g} {units}"
        return f"> {self.low:.4g} {units}" if self.high == inf else f"{self.value:.4g} {units}"


def percentile(counts: Mapping[float, float], share: float) -> Percentile | None:
    """Return the value below which `share` (0 to 1) of a histogram's observations lies, as percentile; None without
    observations.

    `counts` maps each upper bound to the number of observations up to that bound; the last bound is infinity. Within a
    bucket the value is interpolated as by Prometheus's `histogram_quantile`; in the last bucket it is the lower bound.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] <= 0:
        return None
    rank = share * counts[bounds[-1]]
    buckets = ((low, high) for low, high in pairwise((0.0, *bounds)) if counts[high] >= rank and counts[high] > 0)
    low, high = next(buckets)
    below = counts.get(low, 0.0)
    inside = low if high == inf else low + (high - low) * (rank - below) / (counts[high] - below)
    return Percentile(low, high, inside)


def variance(counts: Mapping[float, float]) -> float:
    """Return an estimate of the variance of a histogram's observations, in its squared units; 0 without observations.

    Each observation counts as the middle of its bucket; in the last bucket, as the lower bound.
    """
    buckets = [
        (low if high == inf else (low + high) / 2, max(0.0, counts[high] - counts.get(low, 0.0)))
        for low, high in pairwise((0.0, *sorted(counts)))
    ]
    total = sum(number for _, number in buckets)
    if total <= 0:
        return 0.0
    mean = sum(middle * number for middle, number in buckets) / total
    return sum(number * (middle - mean) ** 2 for middle, number in buckets) / total


def percentiles_ms(counts_s: Mapping[float, float]) -> dict[str, Percentile]:
    """Return the percentiles of `PERCENTILES` in milliseconds, of a histogram in seconds; empty
    without observations.
    """
    counts_ms = {bound * 1000: count for bound, count in counts_s.items()}
    percentiles = {name: percentile(counts_ms, share) for name, share in PERCENTILES.items()}
    return {name: value for name, value in percentiles.items() if value is not None}


@dataclass(frozen=True)
class CountedObservation:
    """Figures of a deployment over `duration_s`, from the counters of its servers and routers; None where a counter is
    missing. All times are those on the real hardware; simulated servers may run slower or faster than that.
    """

    basis: Basis
    duration_s: float
    answered: int
    """Number of requests that ended in the interval."""
    requests_per_s: float | None = None
    input_tokens: float | None = None
    """Mean prompt length in tokens of the requests that ended (ISL)."""
    output_tokens: float | None = None
    """Mean output length in tokens of the requests that ended (OSL)."""
    prefix_cache_hit_share: float | None = None
    """Share (0 to 1) of the prompt tokens of prefill or aggregated servers that were found in the prefix cache."""
    accepted_share: float | None = None
    """Share (0 to 1) of the drafted tokens that were accepted."""
    ttft_ms: float | None = None
    """Mean time from a request's arrival at a server to its first token; with prefill servers, the sum of the means of
    prefill and decode servers."""
    itl_ms: float | None = None
    running: float | None = None
    """Mean number of sequences that a server decodes at a time."""
    most_running: float | None = None
    """Largest number of running requests of one server in any scrape."""
    waiting: float | None = None
    """Mean number of waiting requests per server, of the role (prefill or decode) in which that mean is largest."""
    kv_cache_usage: float | None = None
    """Used share (0 to 1) of the KV cache of the server with the fullest cache at each scrape, as mean over the
    scrapes.
    """
    preemptions: float | None = None
    remote_prefill_share: float | None = None
    percentiles_ms: Mapping[str, Mapping[str, Percentile]] = field(default_factory=dict[str, Mapping[str, Percentile]])
    """Percentiles of latencies, by latency and role (`TTFT of decode servers`), then by percentile (`p90`)."""
    standard_errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Standard errors of means over requests, by name of the figure and in the figure's units."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """Description of one figure of `CountedObservation`: name in data, title in tables, format specification, function
    that reads the value, and whether the value is a mean over requests.
    """

    name: str
    title: str
    form: str
    of: Callable[[CountedObservation], float | None]
    of_requests: bool = True

    def text(self, value: float) -> str:
        """Return a value of the figure as text, by its format specification."""
        return format(value, self.form)


REQUESTS = Figure("requests_per_s", "requests/s", ".4g", lambda seen: seen.requests_per_s, of_requests=False)


INPUT_TOKENS = Figure("input_tokens", "input tokens (ISL)", ".0f", lambda seen: seen.input_tokens)


OUTPUT_TOKENS = Figure("output_tokens", "output tokens (OSL)", ".0f", lambda seen: seen.output_tokens)


HITS = Figure("prefix_cache_hit_share", "prefix cache hits", ".1%", lambda seen: seen.prefix_cache_hit_share)


ACCEPTED = Figure("accepted_share", "drafted tokens accepted", ".1%", lambda seen: seen.accepted_share)


TTFT = Figure("ttft_ms", "TTFT mean, ms", ".4g", lambda seen: seen.ttft_ms)


ITL = Figure("itl_ms", "ITL mean, ms", ".4g", lambda seen: seen.itl_ms)


RUNNING = Figure("running", "decoding per server", ".3g", lambda seen: seen.running)


MAX_RUNNING = Figure("most_running", "most in one server", ".0f", lambda seen: seen.most_running, of_requests=False)


WAITING = Figure("waiting", "waiting per server", ".2g", lambda seen: seen.waiting, of_requests=False)


KV_CACHE_USAGE = Figure("kv_cache_usage", "KV cache in use", ".1%", lambda seen: seen.kv_cache_usage, of_requests=False)


PREEMPTIONS = Figure("preemptions", "preemptions", ".0f", lambda seen: seen.preemptions, of_requests=False)


REMOTE_PREFILL = Figure("remote_prefill_share", "remote prefill", ".1%", lambda seen: seen.remote_prefill_share)
