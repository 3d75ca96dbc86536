"""Increase of the counters of a model's servers and routers between two scrapes.

Metric names are those of vllm/v1/metrics/loggers.py, followed by those of earlier versions; the endpoint picker's names
are in `values/endpoint-pickers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean

from llmd_base.row import Basis
from llmd_bench.deployment import STARTED, Counter, CounterIncrease, EndpointRole, Reading, Snapshot, change
from llmd_bench.evidence import (
    ACCEPTED_TOKENS,
    DRAFTED_TOKENS,
    VLLM_COUNTERS,
    EvidenceSettings,
    Sent,
    prove_remote_prefill,
)

from llmd_oke.catalogue.endpoint_pickers import request_counters
from llmd_oke.operations import observations as figures
from llmd_oke.operations.observations import CountedObservation, Figure, Percentile, percentiles_ms, variance

SERVER_ROLES: tuple[EndpointRole, ...] = ("prefill", "decode", "aggregated")
_GENERATING: tuple[EndpointRole, ...] = ("decode", "aggregated")

TTFT, ITL, PROMPTS, OUTPUTS = "ttft", "itl", "prompts", "outputs"
_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    TTFT: ("vllm:time_to_first_token_seconds",),
    ITL: ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    PROMPTS: ("vllm:request_prompt_tokens",),
    OUTPUTS: ("vllm:request_generation_tokens",),
}

ANSWERED, PREFILLED, PREEMPTIONS, CACHED, QUERIED = "answered", "prefilled", "preemptions", "cached", "queried"
DRAFTED, ACCEPTED = "drafted", "accepted"
_COUNTERS: Mapping[str, Counter] = {
    ANSWERED: VLLM_COUNTERS.requests,
    PREFILLED: VLLM_COUNTERS.prompt_tokens,
    PREEMPTIONS: Counter(("vllm:num_preemptions_total", "vllm:num_preemptions")),
    CACHED: VLLM_COUNTERS.cached_tokens,
    QUERIED: Counter(("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")),
    DRAFTED: DRAFTED_TOKENS,
    ACCEPTED: ACCEPTED_TOKENS,
}

ASKED = "asked"

RUNNING = Counter(("vllm:num_requests_running",))
WAITING = Counter(("vllm:num_requests_waiting",))
KV_CACHE_USAGE = Counter(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), share=True)

Key = tuple[EndpointRole, str]


def counter_names() -> tuple[str, ...]:
    """Return the names of all metrics that are read of servers and routers, as in the Prometheus text format."""
    own = VLLM_COUNTERS
    evidence = (own.finished, own.received_tokens, own.transfers, own.failed_transfers)
    counters = (*_COUNTERS.values(), *evidence, RUNNING, WAITING, KV_CACHE_USAGE)
    names = [name for counter in counters for name in counter.names]
    histograms = [name for histogram in _HISTOGRAMS.values() for name in histogram]
    names += [f"{name}_{part}" for name in histograms for part in ("sum", "count", "bucket")]
    return tuple(dict.fromkeys((STARTED, *names, *request_counters())))


@dataclass(frozen=True)
class CounterWindow:
    """Increase of counters over an interval of `seconds` on the real hardware; simulated servers may need more or less
    wall time.

    `grown` has the increase by role and counter, None if a program could not be scraped; `buckets` has, by role and
    histogram, the number of observations up to each upper bound, in the histogram's units; `server_seconds` is
    `seconds` times the number of servers that generate tokens.
    """

    seconds: float = 0.0
    server_seconds: float = 0.0
    grown: Mapping[Key, float | None] = field(default_factory=dict[Key, float | None])
    buckets: Mapping[Key, Mapping[float, float]] = field(default_factory=dict[Key, Mapping[float, float]])

    def __add__(self, other: "CounterWindow") -> "CounterWindow":
        """Return the sum of two consecutive windows. A counter that is missing in one of them counts as 0 there."""
        pairs = {key: (self.grown.get(key, 0.0), other.grown.get(key, 0.0)) for key in {**self.grown, **other.grown}}
        grown = {key: None if a is None or b is None else a + b for key, (a, b) in pairs.items()}
        buckets: dict[Key, Mapping[float, float]] = {}
        for key in {**self.buckets, **other.buckets}:
            first, second = self.buckets.get(key, {}), other.buckets.get(key, {})
            buckets[key] = {bound: first.get(bound, 0.0) + second.get(bound, 0.0) for bound in {**first, **second}}
        server_seconds = self.server_seconds + other.server_seconds
        return CounterWindow(self.seconds + other.seconds, server_seconds, grown, buckets)

    def of(self, role: EndpointRole, name: str) -> float | None:
        """Return the increase of a counter, summed over all servers or routers of a role; None if the counter is
        missing.
        """
        return self.grown.get((role, name))

    def mean(self, role: EndpointRole, name: str) -> float | None:
        """Return the mean of a histogram's observations over all servers or routers of a role; None without
        observations.
        """
        total, count = self.of(role, f"{name} sum"), self.of(role, f"{name} count")
        return total / count if total is not None and count else None


@dataclass(frozen=True)
class Moment:
    """Gauges at one scrape of all of a model's servers. `most_running` is the largest number of running requests of one
    server.
    """

    most_running: float
    waiting: float
    """Mean number of waiting requests per server, of the role (prefill or decode) in which that mean is largest."""
    kv_cache_usage: float
    """Used share (0 to 1) of the KV cache of the server with the fullest cache."""


def window(before: Snapshot, after: Snapshot, seconds: float) -> CounterWindow:
    """Return the increase of counters between two snapshots that are `seconds` apart, in time of the real hardware."""
    changes = dict(_changes(before, after))
    buckets: dict[Key, Mapping[float, float]] = {
        (role, name): counts
        for role in SERVER_ROLES
        for name in _HISTOGRAMS
        if (counts := _buckets(before, after, role, name))
    }
    servers = sum(item.endpoint.role in _GENERATING for item in after.readings)
    grown = {
        key: None if item.unread else item.value
        for key, item in changes.items()
        if item.unread or item.value is not None
    }
    return CounterWindow(seconds, seconds * servers, grown, buckets)


def unread(*snapshots: Snapshot) -> dict[str, str]:
    """Return the error of each server that could not be scraped in at least one of the snapshots, by pod."""
    readings = (
        reading for snapshot in snapshots for reading in snapshot.readings if reading.endpoint.role in SERVER_ROLES
    )
    return {reading.endpoint.pod: reading.error for reading in readings if reading.error}


def moment(snapshot: Snapshot) -> Moment | None:
    """Return the gauges of all servers at one scrape; None if no server exposes them."""
    roles = [[server for server in snapshot.readings if server.endpoint.role == role] for role in SERVER_ROLES]
    servers = [reading for readings in roles for reading in readings]
    if not any(reading.total(RUNNING) is not None for reading in servers):
        return None
    return Moment(
        most_running=max(_gauge(reading, RUNNING) for reading in servers),
        waiting=max(fmean(_gauge(reading, WAITING) for reading in readings) for readings in roles if readings),
        kv_cache_usage=max(_gauge(reading, KV_CACHE_USAGE) for reading in servers),
    )


def restarted(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the pods of servers that restarted between two snapshots, so that their counters began at 0 again."""
    return {pod for role in SERVER_ROLES for pod in change(before, after, role, _COUNTERS[ANSWERED]).restarted}


def _changes(before: Snapshot, after: Snapshot) -> Iterator[tuple[Key, CounterIncrease]]:
    for role in SERVER_ROLES:
        for name, counter in _COUNTERS.items():
            yield (role, name), change(before, after, role, counter)
        for name, names in _HISTOGRAMS.items():
            for part in ("sum", "count"):
                counter = Counter(tuple(f"{counter_name}_{part}" for counter_name in names))
                yield (role, f"{name} {part}"), change(before, after, role, counter)
    yield ("router", ASKED), change(before, after, "router", Counter(request_counters()))


def _buckets(before: Snapshot, after: Snapshot, role: EndpointRole, name: str) -> dict[float, float]:
    names = tuple(f"{item}_bucket" for item in _HISTOGRAMS[name])
    readings = [reading for reading in after.readings if reading.endpoint.role == role]
    shown = (series for reading in readings for name in names for series in reading.series.get(name, ()))
    bounds = {series.labels["le"] for series in shown if "le" in series.labels}
    changes = {bound: change(before, after, role, Counter(names, {"le": (bound,)})) for bound in bounds}
    return {float(bound): item.value for bound, item in changes.items() if item.value is not None}


def _gauge(reading: Reading, gauge: Counter) -> float:
    return reading.total(gauge) or 0.0


def observation(counted: CounterWindow, moments: Sequence[Moment], basis: Basis) -> CountedObservation:
    """Compute the figures of a deployment from the increase of counters and the gauges of several scrapes."""
    generating: EndpointRole = "decode" if counted.of("decode", ANSWERED) is not None else "aggregated"
    prefilling: EndpointRole = "prefill" if generating == "decode" else "aggregated"
    answered = counted.of(generating, ANSWERED)
    decoding_s = counted.of(generating, f"{ITL} sum")  # for Little's law: the times of all requests
    queried = counted.of(prefilling, QUERIED)
    drafted = counted.of(generating, DRAFTED)
    # Each prompt passes one server of each role, so that the means of prefill and decode servers add up.
    means = [counted.mean(role, TTFT) for role in dict.fromkeys((prefilling, generating))]
    counts = [counted.of(role, PREEMPTIONS) for role in SERVER_ROLES]
    known = [count for count in counts if count is not None]
    return CountedObservation(
        basis=basis,
        duration_s=counted.seconds,
        answered=round(answered or 0),
        requests_per_s=_rate(counted.of("router", ASKED) or answered, counted.seconds),
        input_tokens=counted.mean(generating, PROMPTS),
        output_tokens=counted.mean(generating, OUTPUTS),
        prefix_cache_hit_share=(counted.of(prefilling, CACHED) or 0.0) / queried if queried else None,
        accepted_share=(counted.of(generating, ACCEPTED) or 0.0) / drafted if drafted else None,
        ttft_ms=None if None in means else _ms(sum(mean for mean in means if mean is not None)),
        itl_ms=_ms(counted.mean(generating, ITL)),
        running=_rate(decoding_s, counted.server_seconds),
        most_running=max((item.most_running for item in moments), default=None),
        waiting=fmean(item.waiting for item in moments) if moments else None,
        kv_cache_usage=fmean(item.kv_cache_usage for item in moments) if moments else None,
        preemptions=sum(known) if known else None,
        percentiles_ms=dict(_percentiles(counted)),
        standard_errors=dict(_standard_errors(counted, prefilling, generating)),
    )


def _standard_errors(
    counted: CounterWindow, prefilling: EndpointRole, generating: EndpointRole
) -> Iterator[tuple[str, float]]:
    """Yield the standard error of each mean by the figure's name, from the variances of histograms. Also for the time
    between tokens, the number of independent observations is that of requests, as times of one request are correlated.
    """
    answered = counted.of(generating, ANSWERED)
    both = tuple(dict.fromkeys((prefilling, generating)))
    means: tuple[tuple[Figure, tuple[EndpointRole, ...], str, float], ...] = (
        (figures.INPUT_TOKENS, (generating,), PROMPTS, 1.0),
        (figures.OUTPUT_TOKENS, (generating,), OUTPUTS, 1.0),
        (figures.TTFT, both, TTFT, 1000.0),
        (figures.ITL, (generating,), ITL, 1000.0),
    )
    for figure, roles, name, scale in means:
        scatter = sum(variance(counted.buckets.get((role, name), {})) for role in roles)
        if answered:
            yield figure.name, scale * sqrt(scatter / answered)


def _percentiles(counted: CounterWindow) -> Iterator[tuple[str, dict[str, Percentile]]]:
    """Yield the percentiles of TTFT and ITL by latency and role; no ITL of prefill servers, which
    generate one token.
    """
    for (role, name), counts in sorted(counted.buckets.items(), reverse=True):
        is_latency = name == TTFT or (name == ITL and role != "prefill")
        if is_latency and (percentiles := percentiles_ms(counts)):
            yield f"{name.upper()} of {role} servers", percentiles


def _rate(count: float | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def remote_prefill(before: Snapshot, after: Snapshot, evidence: EvidenceSettings) -> float | None:
    """Return the share (0 to 1) of uncached prompts that prefill servers computed between two snapshots; None if
    unknown.

    Only requests that got their first token in between are counted, because requests that ended in between may have
    been prefilled before.
    """
    whole = window(before, after, 0.0)
    requests, tokens = whole.of("decode", f"{TTFT} count"), whole.of("decode", PREFILLED)
    if not requests or not tokens:
        return None
    sent = Sent(round(requests), round(tokens), round(requests))
    return prove_remote_prefill(before, after, sent, evidence).share
