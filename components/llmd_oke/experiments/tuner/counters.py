"""The counters of vLLM and of the endpoint picker that tell a load and what came of it, added up over scrapes.

Names are those of vllm/v1/metrics/loggers.py, those of earlier versions after them; the picker's are in
`values/endpoint-pickers`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from llmd_oke.bench.deployment.metrics import Change, Counter, EndpointRole, Reading, Snapshot, change
from llmd_oke.bench.smoke.evidence import VLLM_COUNTERS
from llmd_oke.catalogue.endpoint_pickers import request_counters

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
_COUNTERS: Mapping[str, Counter] = {
    ANSWERED: VLLM_COUNTERS.requests,
    PREFILLED: VLLM_COUNTERS.prompt_tokens,
    PREEMPTIONS: Counter(("vllm:num_preemptions_total", "vllm:num_preemptions")),
    CACHED: VLLM_COUNTERS.cached_tokens,
    QUERIED: Counter(("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")),
}

ASKED = "asked"
_ASKED = Counter(request_counters())

_RUNNING = Counter(("vllm:num_requests_running",))
_WAITING = Counter(("vllm:num_requests_waiting",))
_KV_CACHE_USAGE = Counter(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))

Key = tuple[EndpointRole, str]


@dataclass(frozen=True)
class Window:
    """What counters grew by in `seconds` of model time, by role and name; None where a program could not be read.

    `buckets` has observations up to each bound, in the units of the histogram; `server_seconds` adds up the seconds of
    all servers that generate.
    """

    seconds: float = 0.0
    server_seconds: float = 0.0
    grown: Mapping[Key, float | None] = field(default_factory=dict[Key, float | None])
    buckets: Mapping[Key, Mapping[float, float]] = field(default_factory=dict[Key, Mapping[float, float]])

    def __add__(self, other: "Window") -> "Window":
        """Both together. What one of them lacks had not begun to be counted."""
        grown = {
            key: _sum(self.grown.get(key, 0.0), other.grown.get(key, 0.0)) for key in {**self.grown, **other.grown}
        }
        buckets = {
            key: _added(self.buckets.get(key, {}), other.buckets.get(key, {}))
            for key in {**self.buckets, **other.buckets}
        }
        server_seconds = self.server_seconds + other.server_seconds
        return Window(self.seconds + other.seconds, server_seconds, grown, buckets)

    def of(self, role: EndpointRole, name: str) -> float | None:
        """What a counter grew by; None where it is not shown."""
        return self.grown.get((role, name))

    def mean(self, role: EndpointRole, name: str) -> float | None:
        """Of a histogram's observations."""
        total, count = self.of(role, f"{name} sum"), self.of(role, f"{name} count")
        return total / count if total is not None and count else None


@dataclass(frozen=True)
class Moment:
    """What gauges showed at one scrape."""

    most_running: float
    waiting: float
    """Mean over the servers of the role where it is most."""
    kv_cache_usage: float
    """Of the fullest server."""


def window(before: Snapshot, after: Snapshot, seconds: float) -> Window:
    """What grew between two snapshots."""
    changes = dict(_changes(before, after))
    buckets: dict[Key, Mapping[float, float]] = {
        (role, name): found
        for role in SERVER_ROLES
        for name in _HISTOGRAMS
        if (found := _buckets(before, after, role, name))
    }
    servers = sum(each.endpoint.role in _GENERATING for each in after.readings)
    grown = {key: _value(each) for key, each in changes.items() if _shown(each)}
    return Window(seconds, seconds * servers, grown, buckets)


def unread(*snapshots: Snapshot) -> dict[str, str]:
    """The servers that could not be read in any of the snapshots, each with the reason."""
    found = (
        reading for snapshot in snapshots for reading in snapshot.readings if reading.endpoint.role in SERVER_ROLES
    )
    return {reading.endpoint.pod: reading.error for reading in found if reading.error}


def moment(snapshot: Snapshot) -> Moment | None:
    """The gauges of one scrape; None where no server shows them."""
    roles = [[each for each in snapshot.readings if each.endpoint.role == role] for role in SERVER_ROLES]
    servers = [reading for readings in roles for reading in readings]
    if not any(reading.total(_RUNNING) is not None for reading in servers):
        return None
    return Moment(
        most_running=max(_gauge(reading, _RUNNING) for reading in servers),
        waiting=max(_mean(readings, _WAITING) for readings in roles if readings),
        kv_cache_usage=max(_gauge(reading, _KV_CACHE_USAGE) for reading in servers),
    )


def restarted(before: Snapshot, after: Snapshot) -> set[str]:
    """Servers that lost count in between."""
    return {pod for role in SERVER_ROLES for pod in change(before, after, role, _COUNTERS[ANSWERED]).restarted}


def _changes(before: Snapshot, after: Snapshot) -> Iterator[tuple[Key, Change]]:
    for role in SERVER_ROLES:
        for name, counter in _COUNTERS.items():
            yield (role, name), change(before, after, role, counter)
        for name, names in _HISTOGRAMS.items():
            for part in ("sum", "count"):
                counter = Counter(tuple(f"{each}_{part}" for each in names))
                yield (role, f"{name} {part}"), change(before, after, role, counter)
    yield ("router", ASKED), change(before, after, "router", _ASKED)


def _buckets(before: Snapshot, after: Snapshot, role: EndpointRole, name: str) -> dict[float, float]:
    names = tuple(f"{each}_bucket" for each in _HISTOGRAMS[name])
    found = {
        bound: change(before, after, role, Counter(names, {"le": (bound,)})) for bound in _bounds(after, role, names)
    }
    return {float(bound): each.value for bound, each in found.items() if each.value is not None}


def _bounds(snapshot: Snapshot, role: EndpointRole, names: tuple[str, ...]) -> set[str]:
    readings = [reading for reading in snapshot.readings if reading.endpoint.role == role]
    shown = (series for reading in readings for name in names for series in reading.series.get(name, ()))
    return {series.labels["le"] for series in shown if "le" in series.labels}


def _shown(each: Change) -> bool:
    return each.value is not None or bool(each.unread)


def _value(each: Change) -> float | None:
    return None if each.unread else each.value


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _added(first: Mapping[float, float], second: Mapping[float, float]) -> dict[float, float]:
    return {bound: first.get(bound, 0.0) + second.get(bound, 0.0) for bound in {**first, **second}}


def _gauge(reading: Reading, gauge: Counter) -> float:
    return reading.total(gauge) or 0.0


def _mean(readings: list[Reading], gauge: Counter) -> float:
    return sum(_gauge(reading, gauge) for reading in readings) / len(readings)
