"""What a deployment was chosen for: a load, what it would then do, and limits that must hold whatever comes."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.results.row import Row
from llmd_oke.tuning.search.question import Targets
from llmd_oke.tuning.watch import seen
from llmd_oke.tuning.watch.seen import Figure

Side = Literal["near", "at most", "at least", "below"]


class Kind(StrEnum):
    """What an assumption is about."""

    LOAD = "load"
    """What is asked of the deployment."""
    FORECAST = "forecast"
    """What it was expected to do under that load, and under no other."""
    LIMIT = "limit"
    """What holds at any load."""


class Tolerances(Entry):
    """`values/tuning/watching.yaml`."""

    load_share: float
    prefix_cache_share: float
    sigmas: float
    latency_requests: int
    silence_s: float
    kv_cache_usage: float
    waiting: float
    preemptions: float


@cache
def tolerances() -> Tolerances:
    """The kit's own."""
    return required_entry("tuning", "watching", Tolerances)


@dataclass(frozen=True)
class Assumption:
    """One figure as it was assumed. `tolerance` is how far it may be off, in the figure's units.

    `basis` says where the value is from: `given`, `calibrated`, `bound`, `target` or `limit`.
    """

    figure: Figure
    kind: Kind
    value: float
    basis: str
    side: Side = "near"
    tolerance: float = 0.0


def of_forecast(
    forecast: Row, targets: Targets, servers: int, forecast_share: float, load_share: float
) -> tuple[Assumption, ...]:
    """What a forecast assumed and said. `servers` is how many generate; the shares are how far all may be off.

    Where no load was asked for the forecast is of the most that the deployment carries: less is no surprise then.
    """
    return (
        *_load(forecast, targets, load_share),
        *of_lengths(
            forecast.input_tokens, forecast.output_tokens, load_share, hit_share=forecast.prefix_cache_hit_share or 0.0
        ),
        *_forecast(forecast, servers, forecast_share),
        *of_targets(targets),
    )


def of_lengths(
    input_tokens: float, output_tokens: float, share: float, *, hit_share: float = 0.0
) -> Iterator[Assumption]:
    """Lengths of the requests, and how much of them a prefix cache answers."""
    for figure, tokens in ((seen.INPUT_TOKENS, input_tokens), (seen.OUTPUT_TOKENS, output_tokens)):
        yield Assumption(figure, Kind.LOAD, tokens, "given", tolerance=share * tokens)
    yield Assumption(seen.HITS, Kind.LOAD, hit_share, "given", tolerance=tolerances().prefix_cache_share)


def of_targets(targets: Targets) -> Iterator[Assumption]:
    """Latencies that were promised, as limits of their means."""
    for figure, limit_s in ((seen.TTFT, targets.ttft_s), (seen.ITL, targets.itl_s)):
        if limit_s is not None:
            yield Assumption(figure, Kind.LIMIT, limit_s * 1000, "target", "at most")


def limits(max_num_seqs: int, min_remote_prefill_share: float | None) -> Iterator[Assumption]:
    """What keeps servers out of the regime that nothing was forecast for; no share where prefill is not remote."""
    most = tolerances()
    yield Assumption(seen.MOST_RUNNING, Kind.LIMIT, max_num_seqs, "limit", "below")
    yield Assumption(seen.WAITING, Kind.LIMIT, most.waiting, "limit", "at most")
    yield Assumption(seen.KV_CACHE_USAGE, Kind.LIMIT, most.kv_cache_usage, "limit", "at most")
    yield Assumption(seen.PREEMPTIONS, Kind.LIMIT, most.preemptions, "limit", "at most")
    if min_remote_prefill_share is not None:
        yield Assumption(seen.REMOTE_PREFILL, Kind.LIMIT, min_remote_prefill_share, "limit", "at least")


def _load(forecast: Row, targets: Targets, share: float) -> Iterator[Assumption]:
    rate = forecast.offered_requests_per_s
    if rate:
        asked = targets.requests_per_s is not None
        basis, side = ("given", "near") if asked else (forecast.basis.value, "at most")
        yield Assumption(seen.REQUESTS, Kind.LOAD, rate, basis, side, share * rate)


def _forecast(forecast: Row, servers: int, share: float) -> Iterator[Assumption]:
    rate, itl_ms = forecast.offered_requests_per_s, forecast.itl_ms.mean
    gaps = forecast.output_tokens - 1  # between so many tokens
    decoding = rate * gaps * itl_ms / 1000 / servers if rate and itl_ms else None
    for figure, value in ((seen.TTFT, forecast.ttft_ms.mean), (seen.ITL, itl_ms), (seen.RUNNING, decoding)):
        if value:
            yield Assumption(figure, Kind.FORECAST, value, forecast.basis.value, tolerance=share * value)
