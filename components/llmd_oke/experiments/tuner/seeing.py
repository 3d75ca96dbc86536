"""From counters that grew to what a deployment was seen to do."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean

from llmd_oke.bench.deployment.metrics import EndpointRole
from llmd_oke.experiments.tuner import counters
from llmd_oke.experiments.tuner.counters import Moment, Window
from llmd_oke.results.row import Basis
from llmd_oke.tuning.watch import seen as figures
from llmd_oke.tuning.watch.histograms import Percentile, percentiles_ms, variance
from llmd_oke.tuning.watch.seen import Figure, Seen


def seen_in(found: Window, moments: Sequence[Moment], basis: Basis) -> Seen:
    """What counters that grew, and gauges at moments, tell."""
    generating: EndpointRole = "decode" if found.of("decode", counters.ANSWERED) is not None else "aggregated"
    prefilling: EndpointRole = "prefill" if generating == "decode" else "aggregated"
    answered = found.of(generating, counters.ANSWERED)
    decoding_s = found.of(generating, f"{counters.ITL} sum")  # Little's law: the time between tokens, of all requests
    queried = found.of(prefilling, counters.QUERIED)
    return Seen(
        basis=basis,
        duration_s=found.seconds,
        answered=round(answered or 0),
        requests_per_s=_rate(found.of("router", counters.ASKED) or answered, found.seconds),
        input_tokens=found.mean(generating, counters.PROMPTS),
        output_tokens=found.mean(generating, counters.OUTPUTS),
        prefix_cache_hit_share=(found.of(prefilling, counters.CACHED) or 0.0) / queried if queried else None,
        ttft_ms=_ttft_ms(found, prefilling, generating),
        itl_ms=_ms(found.mean(generating, counters.ITL)),
        running=_rate(decoding_s, found.server_seconds),
        most_running=max((each.most_running for each in moments), default=None),
        waiting=fmean(each.waiting for each in moments) if moments else None,
        kv_cache_usage=fmean(each.kv_cache_usage for each in moments) if moments else None,
        preemptions=_preemptions(found),
        percentiles_ms=dict(_percentiles(found)),
        standard_errors=dict(_standard_errors(found, prefilling, generating)),
    )


def _ttft_ms(found: Window, prefilling: EndpointRole, generating: EndpointRole) -> float | None:
    """A prompt goes through a server that prefills and then through one that decodes: their means add up."""
    means = [found.mean(role, counters.TTFT) for role in dict.fromkeys((prefilling, generating))]
    return None if None in means else _ms(sum(mean for mean in means if mean is not None))


def _standard_errors(found: Window, prefilling: EndpointRole, generating: EndpointRole) -> Iterator[tuple[str, float]]:
    """By the scatter within the buckets. A mean is one over independent requests, also of the time between tokens:
    those of one request are alike."""
    answered = found.of(generating, counters.ANSWERED)
    both = tuple(dict.fromkeys((prefilling, generating)))
    means: tuple[tuple[Figure, tuple[EndpointRole, ...], str, float], ...] = (
        (figures.INPUT_TOKENS, (generating,), counters.PROMPTS, 1.0),
        (figures.OUTPUT_TOKENS, (generating,), counters.OUTPUTS, 1.0),
        (figures.TTFT, both, counters.TTFT, 1000.0),
        (figures.ITL, (generating,), counters.ITL, 1000.0),
    )
    for figure, roles, name, scale in means:
        scatter = sum(variance(found.buckets.get((role, name), {})) for role in roles)
        if answered:
            yield figure.name, scale * sqrt(scatter / answered)


def _preemptions(found: Window) -> float | None:
    counts = [found.of(role, counters.PREEMPTIONS) for role in counters.SERVER_ROLES]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _percentiles(found: Window) -> Iterator[tuple[str, dict[str, Percentile]]]:
    """Of latencies; none of the time between tokens on prefill servers, which make one token."""
    for (role, name), counts in sorted(found.buckets.items(), reverse=True):
        is_latency = name == counters.TTFT or (name == counters.ITL and role != "prefill")
        if is_latency and (percentiles := percentiles_ms(counts)):
            yield f"{name.upper()} of {role} servers", percentiles


def _rate(count: float | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
