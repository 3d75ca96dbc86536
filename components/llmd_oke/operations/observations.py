"""Observations of a deployment over some time, as its own programs count it: figures, percentiles and their scatter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from llmd_base.row import Basis

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


@dataclass(frozen=True)
class Percentile:
    """A percentile that lies between two bounds of a histogram. `value` takes observations as evenly spread between."""

    low: float
    high: float
    value: float

    def text(self, units: str) -> str:
        """Write the percentile for people: an interpolated value, or the side of the outermost bounds on which
        it lies.
        """
        if self.low <= 0:
            return f"< {self.high:.4g} {units}"
        return f"> {self.low:.4g} {units}" if self.high == inf else f"{self.value:.4g} {units}"


def percentile(counts: Mapping[float, float], share: float) -> Percentile | None:
    """Return the value below which a share of the observations lies, None without any.

    `counts` has, for each bound, the observations up to it; the last bound is infinity. Within a bucket the value is
    interpolated as Prometheus's `histogram_quantile` does; beyond the last finite bound that bound is given.
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
    """An estimate of the variance, in the square of the histogram's units; 0 without observations.

    Each observation is taken to lie in the middle of its bucket; beyond the last finite bound, at that bound.
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
    """The usual percentiles of a histogram of seconds, in milliseconds; empty without observations."""
    counts_ms = {bound * 1000: count for bound, count in counts_s.items()}
    percentiles = {name: percentile(counts_ms, share) for name, share in PERCENTILES.items()}
    return {name: value for name, value in percentiles.items() if value is not None}


@dataclass(frozen=True)
class CountedObservation:
    """Observation of a deployment over some time, as its own programs count it; None where they don't tell.
    Model time.
    """

    basis: Basis
    duration_s: float
    answered: int
    """Requests that ended."""
    requests_per_s: float | None = None
    input_tokens: float | None = None
    """Mean prompt length of the requests that ended (ISL)."""
    output_tokens: float | None = None
    """Mean output length (OSL)."""
    prefix_cache_hit_share: float | None = None
    """Of the prompt tokens of servers that prefill."""
    ttft_ms: float | None = None
    """Mean from a server's first sight of a request to its first token; with prefill servers the sum of both means."""
    itl_ms: float | None = None
    running: float | None = None
    """Mean of the sequences that a server decodes at a time."""
    most_running: float | None = None
    """The most requests of one server at any reading."""
    waiting: float | None = None
    """Mean of the requests that wait at a server, of the role where they are most."""
    kv_cache_usage: float | None = None
    """Mean of the fullest server's share."""
    preemptions: float | None = None
    remote_prefill_share: float | None = None
    percentiles_ms: Mapping[str, Mapping[str, Percentile]] = field(default_factory=dict[str, Mapping[str, Percentile]])
    """By the latency and the servers that they are of, then by name (`p90`)."""
    standard_errors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Estimates of how far means over requests are off by chance, by the figures' names and in their units."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """One figure: its name in data, what to call it, how to write it, and whether it is a mean over requests."""

    name: str
    title: str
    form: str
    of: Callable[[CountedObservation], float | None]
    of_requests: bool = True

    def text(self, value: float) -> str:
        """The figure for people."""
        return format(value, self.form)


REQUESTS = Figure("requests_per_s", "requests/s", ".4g", lambda seen: seen.requests_per_s, of_requests=False)


INPUT_TOKENS = Figure("input_tokens", "input tokens (ISL)", ".0f", lambda seen: seen.input_tokens)


OUTPUT_TOKENS = Figure("output_tokens", "output tokens (OSL)", ".0f", lambda seen: seen.output_tokens)


HITS = Figure("prefix_cache_hit_share", "prefix cache hits", ".1%", lambda seen: seen.prefix_cache_hit_share)


TTFT = Figure("ttft_ms", "TTFT mean, ms", ".4g", lambda seen: seen.ttft_ms)


ITL = Figure("itl_ms", "ITL mean, ms", ".4g", lambda seen: seen.itl_ms)


RUNNING = Figure("running", "decoding per server", ".3g", lambda seen: seen.running)


MAX_RUNNING = Figure("most_running", "most in one server", ".0f", lambda seen: seen.most_running, of_requests=False)


WAITING = Figure("waiting", "waiting per server", ".2g", lambda seen: seen.waiting, of_requests=False)


KV_CACHE_USAGE = Figure("kv_cache_usage", "KV cache in use", ".1%", lambda seen: seen.kv_cache_usage, of_requests=False)


PREEMPTIONS = Figure("preemptions", "preemptions", ".0f", lambda seen: seen.preemptions, of_requests=False)


REMOTE_PREFILL = Figure("remote_prefill_share", "remote prefill", ".1%", lambda seen: seen.remote_prefill_share)
