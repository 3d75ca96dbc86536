"""What a deployment was seen to do, and the figures of it that can be assumed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmd_oke.results.row import Basis
from llmd_oke.tuning.watch.histograms import Percentile


@dataclass(frozen=True)
class Seen:
    """What a deployment did over some time, as its own programs count it; None where they don't tell. Model time."""

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
    of: Callable[[Seen], float | None]
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
MOST_RUNNING = Figure("most_running", "most in one server", ".0f", lambda seen: seen.most_running, of_requests=False)
WAITING = Figure("waiting", "waiting per server", ".2g", lambda seen: seen.waiting, of_requests=False)
KV_CACHE_USAGE = Figure("kv_cache_usage", "KV cache in use", ".1%", lambda seen: seen.kv_cache_usage, of_requests=False)
PREEMPTIONS = Figure("preemptions", "preemptions", ".0f", lambda seen: seen.preemptions, of_requests=False)
REMOTE_PREFILL = Figure("remote_prefill_share", "remote prefill", ".1%", lambda seen: seen.remote_prefill_share)
