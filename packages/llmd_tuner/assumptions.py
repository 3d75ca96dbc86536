"""Assumptions under which a deployment was chosen, compared with counters of its running servers: verdicts and advice.

There are three kinds: the load that a deployment was chosen for, the latencies that were forecast for that load, and
limits that must hold under any load.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmd_base.row import Row
from llmd_oke.operations.judgements import Assumption, AssumptionJudgement, AssumptionKind, latency_limits, tolerances
from llmd_oke.operations.observations import (
    HITS,
    INPUT_TOKENS,
    ITL,
    OUTPUT_TOKENS,
    REMOTE_PREFILL,
    REQUESTS,
    RUNNING,
    TTFT,
    CountedObservation,
)

from llmd_tuner.search_inputs import Targets


def of_forecast(
    forecast: Row, targets: Targets, servers: int, forecast_share: float, load_share: float
) -> tuple[Assumption, ...]:
    """Return the assumptions behind a forecast (request rate, lengths, latencies, targets), each as a figure that
    counters of running servers can be compared with.

    `servers` is the number of servers that generate tokens. `forecast_share` and `load_share` are the tolerated
    relative errors of latencies and of loads (0.1 is 10 %). A forecast without a given load is for the highest load
    that the deployment carries; a smaller load then breaks no assumption.
    """
    load: list[Assumption] = []
    if rate := forecast.offered_requests_per_s:
        given = targets.requests_per_s is not None
        basis, side = ("given", "near") if given else (forecast.basis.value, "at most")
        load.append(Assumption(REQUESTS, AssumptionKind.LOAD, rate, basis, side, load_share * rate))
    hit_share = forecast.prefix_cache_hit_share or 0.0
    return (
        *load,
        *of_lengths(forecast.input_tokens, forecast.output_tokens, load_share, hit_share=hit_share),
        *_forecast(forecast, servers, forecast_share),
        *of_targets(targets),
    )


def of_lengths(
    input_tokens: float, output_tokens: float, share: float, *, hit_share: float = 0.0
) -> Iterator[Assumption]:
    """Yield the assumptions about mean prompt and output length in tokens, each with the tolerated relative error
    `share` (0.1 is 10 %), and about `hit_share`, the share of prompt tokens that a prefix cache answers.
    """
    for figure, tokens in ((INPUT_TOKENS, input_tokens), (OUTPUT_TOKENS, output_tokens)):
        yield Assumption(figure, AssumptionKind.LOAD, tokens, "given", tolerance=share * tokens)
    yield Assumption(HITS, AssumptionKind.LOAD, hit_share, "given", tolerance=tolerances().prefix_cache_share)


def of_targets(targets: Targets) -> Iterator[Assumption]:
    """Yield the targets for TTFT and ITL as assumptions: upper limits of the mean latency in milliseconds, none for a
    target that isn't set.
    """
    ttft_s, itl_s = targets.ttft_s, targets.itl_s
    yield from latency_limits(None if ttft_s is None else ttft_s * 1000, None if itl_s is None else itl_s * 1000)


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
            yield Assumption(figure, AssumptionKind.FORECAST, value, forecast.basis.value, tolerance=share * value)


@dataclass(frozen=True)
class StackModel:
    """Model of a stack file, with the options by which `tune` commands in advice name it. `name` is None where the
    stack has a single model, which needs no `--name`; `targets` are the model's latency targets.
    """

    stack: str
    name: str | None
    targets: Targets

    def command(self, *words: str) -> str:
        """Return the command line of a `tune` command about this model, quoted so that it can be pasted
        into a shell.
        """
        about = ["--stack", self.stack, *(["--name", self.name] if self.name else [])]
        return shlex.join(["llmd-oke", "tune", words[0], *about, *words[1:]])


@dataclass(frozen=True)
class NextStep:
    """Advice to a user: the reason to act, and the command to begin with."""

    why: str
    command: str


def advice(judged: Sequence[AssumptionJudgement], seen: CountedObservation, place: StackModel) -> Iterator[NextStep]:
    """Yield the next steps for a user: one for each cause of a broken assumption; none where all assumptions hold, or
    where no request was counted.
    """
    if not seen.answered:
        return
    off = [item.assumption for item in judged if item.off]
    remote = [assumption for assumption in off if assumption.figure is REMOTE_PREFILL]
    if any(assumption.kind is AssumptionKind.LOAD for assumption in off):
        why = "The load is another one than assumed: rank for what is seen."
        hits = seen.prefix_cache_hit_share
        if hits is not None and hits > tolerances().prefix_cache_share:
            why += f" Prefix caches answer {hits:.0%} of prompt tokens; the ranking then counts on as much."
        yield NextStep(why, rank_command(seen, place))
    elif any(assumption.kind is AssumptionKind.LIMIT and assumption not in remote for assumption in off):
        yield NextStep("The load is the assumed one, and the servers have no room for it.", rank_command(seen, place))
    if any(assumption.kind is AssumptionKind.FORECAST for assumption in off):
        why = "The load is the assumed one, and the forecast is off: measure the servers again, then rank."
        yield NextStep(why, place.command("run"))
    if remote:
        why = "Decode servers compute prompts themselves: the smoke benchmark says which part is at fault."
        yield NextStep(why, shlex.join(["llmd-oke", "smoke", "--stack", place.stack]))


def rank_command(seen: CountedObservation, place: StackModel) -> str:
    """Return the `tune rank` command for the observed load and the targets that the deployment was chosen for. Lengths
    of requests are omitted where too few requests were counted.
    """
    words: list[str] = []
    if seen.input_tokens and seen.output_tokens and seen.answered >= tolerances().latency_requests:
        words += ["--workload", f"{max(1, round(seen.input_tokens))}/{max(1, round(seen.output_tokens))}"]
    if seen.prefix_cache_hit_share and seen.prefix_cache_hit_share > tolerances().prefix_cache_share:
        words += ["--prefix-hits", f"{seen.prefix_cache_hit_share:.2g}"]
    rate = float(f"{seen.requests_per_s:.3g}") if seen.requests_per_s else place.targets.requests_per_s
    slo = str(replace(place.targets, requests_per_s=rate))
    return place.command("rank", *words, *(["--slo", slo] if slo else []))
