"""What a deployment was chosen for, held against what its servers count: assumptions, verdicts, advice.

A deployment is chosen for a load; under it a forecast says what it would do; limits must hold whatever comes.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from math import inf, sqrt
from typing import Literal

from llmd_oke.values import Entry, required_entry
from llmd_pods.row import Basis, Row

from llmd_tuner.search_inputs import Targets

Side = Literal["near", "at most", "at least", "below"]

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
class Observation:
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
    of: Callable[[Observation], float | None]
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
    for figure, tokens in ((INPUT_TOKENS, input_tokens), (OUTPUT_TOKENS, output_tokens)):
        yield Assumption(figure, Kind.LOAD, tokens, "given", tolerance=share * tokens)
    yield Assumption(HITS, Kind.LOAD, hit_share, "given", tolerance=tolerances().prefix_cache_share)


def of_targets(targets: Targets) -> Iterator[Assumption]:
    """Latencies that were promised, as limits of their means."""
    for figure, limit_s in ((TTFT, targets.ttft_s), (ITL, targets.itl_s)):
        if limit_s is not None:
            yield Assumption(figure, Kind.LIMIT, limit_s * 1000, "target", "at most")


def limits(max_num_seqs: int, min_remote_prefill_share: float | None) -> Iterator[Assumption]:
    """What keeps servers out of the regime that nothing was forecast for; no share where prefill is not remote."""
    most = tolerances()
    yield Assumption(MOST_RUNNING, Kind.LIMIT, max_num_seqs, "limit", "below")
    yield Assumption(WAITING, Kind.LIMIT, most.waiting, "limit", "at most")
    yield Assumption(KV_CACHE_USAGE, Kind.LIMIT, most.kv_cache_usage, "limit", "at most")
    yield Assumption(PREEMPTIONS, Kind.LIMIT, most.preemptions, "limit", "at most")
    if min_remote_prefill_share is not None:
        yield Assumption(REMOTE_PREFILL, Kind.LIMIT, min_remote_prefill_share, "limit", "at least")


def _load(forecast: Row, targets: Targets, share: float) -> Iterator[Assumption]:
    rate = forecast.offered_requests_per_s
    if rate:
        given = targets.requests_per_s is not None
        basis, side = ("given", "near") if given else (forecast.basis.value, "at most")
        yield Assumption(REQUESTS, Kind.LOAD, rate, basis, side, share * rate)


def _forecast(forecast: Row, servers: int, share: float) -> Iterator[Assumption]:
    rate, itl_ms = forecast.offered_requests_per_s, forecast.itl_ms.mean
    gaps = forecast.output_tokens - 1  # between so many tokens
    decoding = rate * gaps * itl_ms / 1000 / servers if rate and itl_ms else None
    for figure, value in (
        (TTFT, forecast.ttft_ms.mean),
        (ITL, itl_ms),
        (RUNNING, decoding),
    ):
        if value:
            yield Assumption(figure, Kind.FORECAST, value, forecast.basis.value, tolerance=share * value)


class Verdict(StrEnum):
    """How an assumption fares."""

    HOLDS = "holds"
    ABOVE = "above"
    BELOW = "below"
    OTHER_LOAD = "other load"
    """Off, but under another load than it was made for, so that nothing follows."""
    BOUND = "a bound"
    """No forecast, and not judged."""
    FEW = "too few"
    """Requests, for a mean."""
    UNKNOWN = "not shown"
    """By the programs that would have to count it."""


@dataclass(frozen=True)
class Judgement:
    """An assumption with what was seen; `allowed` is how far that may be off, chance included."""

    assumption: Assumption
    value: float | None
    allowed: float
    verdict: Verdict

    @property
    def off(self) -> bool:
        """Whether something has to be done."""
        return self.verdict in {Verdict.ABOVE, Verdict.BELOW}

    @property
    def off_share(self) -> float | None:
        """How far it is off, as a share of what was assumed; None for limits and where either is not there."""
        if self.value is None or not self.assumption.value or self.assumption.side != "near":
            return None
        return self.value / self.assumption.value - 1


def judge(assumptions: Sequence[Assumption], seen: Observation) -> tuple[Judgement, ...]:
    """All of them. A forecast that is off counts only where the load is the one that it was made for."""
    judgements = tuple(_judged(assumption, seen) for assumption in assumptions)
    same_load = all(  # also where less would be no surprise
        item.value is None or abs(item.value - item.assumption.value) <= item.allowed
        for item in judgements
        if item.assumption.kind is Kind.LOAD
    )
    if same_load:
        return judgements
    return tuple(
        replace(item, verdict=Verdict.OTHER_LOAD) if item.off and item.assumption.kind is Kind.FORECAST else item
        for item in judgements
    )


def _judged(assumption: Assumption, seen: Observation) -> Judgement:
    value = assumption.figure.of(seen)
    allowed = assumption.tolerance + _chance(assumption, seen)
    if assumption.figure.of_requests and seen.answered < tolerances().latency_requests:
        return Judgement(assumption, value, allowed, Verdict.FEW)
    if value is None:
        return Judgement(assumption, value, allowed, Verdict.UNKNOWN)
    if assumption.kind is Kind.FORECAST and assumption.basis == Basis.BOUND:
        return Judgement(assumption, value, allowed, Verdict.BOUND)
    return Judgement(assumption, value, allowed, _verdict(assumption, value, allowed))


def _verdict(assumption: Assumption, value: float, allowed: float) -> Verdict:
    side, assumed = assumption.side, assumption.value
    if side != "at least" and (value > assumed + allowed or (side == "below" and value == assumed)):
        return Verdict.ABOVE
    if side in {"near", "at least"} and value < assumed - allowed:
        return Verdict.BELOW
    return Verdict.HOLDS


def _chance(assumption: Assumption, seen: Observation) -> float:
    """How far a figure is off by chance: so many standard errors as are allowed, those of means as they were seen.

    For a rate those of random arrivals in the time that was watched; for remote prefill of the requests that had left
    one server and not yet reached the other when watching began and when it ended, by Little's law as many as come
    within a TTFT.
    """
    sigmas = tolerances().sigmas
    if assumption.figure is REQUESTS and seen.duration_s > 0:
        return sigmas * sqrt(assumption.value / seen.duration_s)
    if assumption.figure is REMOTE_PREFILL and seen.answered and seen.requests_per_s and seen.ttft_ms:
        return sigmas * sqrt(2 * seen.requests_per_s * seen.ttft_ms / 1000) / seen.answered
    return sigmas * seen.standard_errors.get(assumption.figure.name, 0.0)


@dataclass(frozen=True)
class StackModel:
    """Whose assumptions they are; `name` only where the stack has several models."""

    stack: str
    name: str | None
    targets: Targets

    def command(self, *words: str) -> str:
        """A command of the tuner about it, ready to be copied."""
        about = ["--stack", self.stack, *(["--name", self.name] if self.name else [])]
        return shlex.join(["llmd-oke", "tune", words[0], *about, *words[1:]])


@dataclass(frozen=True)
class Advice:
    """Why something has to be done, and the command that begins it."""

    why: str
    command: str


def advice(judged: Sequence[Judgement], seen: Observation, place: StackModel) -> Iterator[Advice]:
    """One for each cause; none where all assumptions hold, or where no request came."""
    if not seen.answered:
        return
    off = [item.assumption for item in judged if item.off]
    remote = [assumption for assumption in off if assumption.figure is REMOTE_PREFILL]
    if any(assumption.kind is Kind.LOAD for assumption in off):
        why = "The load is another one than assumed: rank for what is seen."
        hits = seen.prefix_cache_hit_share
        if hits is not None and hits > tolerances().prefix_cache_share:
            why += f" Prefix caches answer {hits:.0%} of prompt tokens; the ranking then counts on as much."
        yield Advice(why, rank_command(seen, place))
    elif any(assumption.kind is Kind.LIMIT and assumption not in remote for assumption in off):
        yield Advice("The load is the assumed one, and the servers have no room for it.", rank_command(seen, place))
    if any(assumption.kind is Kind.FORECAST for assumption in off):
        why = "The load is the assumed one, and the forecast is off: measure the servers again, then rank."
        yield Advice(why, place.command("run"))
    if remote:
        why = "Decode servers compute prompts themselves: the smoke benchmark says which part is at fault."
        yield Advice(why, shlex.join(["llmd-oke", "smoke", "--stack", place.stack]))


def rank_command(seen: Observation, place: StackModel) -> str:
    """`tune rank` for what was seen, with the targets as they were; without lengths where few requests told them."""
    words: list[str] = []
    if seen.input_tokens and seen.output_tokens and seen.answered >= tolerances().latency_requests:
        words += ["--workload", f"{max(1, round(seen.input_tokens))}/{max(1, round(seen.output_tokens))}"]
    if seen.prefix_cache_hit_share and seen.prefix_cache_hit_share > tolerances().prefix_cache_share:
        words += ["--prefix-hits", f"{seen.prefix_cache_hit_share:.2g}"]
    rate = float(f"{seen.requests_per_s:.3g}") if seen.requests_per_s else place.targets.requests_per_s
    slo = str(replace(place.targets, requests_per_s=rate))
    return place.command("rank", *words, *(["--slo", slo] if slo else []))
