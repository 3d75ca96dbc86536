"""Remarks on how far the numbers of a run can be trusted."""

from collections.abc import Iterator, Sequence

from llmd_oke.bench.deployment.metrics import Counter, EndpointRole, Snapshot, change
from llmd_oke.bench.records.performance import Performance
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.smoke.evidence import VLLM_COUNTERS

WAVES = 3
"""Requests for each user below which filling and draining weigh on the result."""

CACHED_SHARE = 0.01
"""Share of prompt tokens found in a prefix cache above which prefill wasn't what was measured."""

LENGTH_TOLERANCE = 0.05

LATE_SHARE = 0.05
"""Share of a simulator's steps that may be late before its latencies say more of the machine than of the model."""

TOO_SLOW = "this machine was too slow for the simulation"
"""How the remark begins that says so."""

_SIMULATED_STEPS = Counter(("llmd_oke_simulator_steps_total",))
_SIMULATED_LATE_STEPS = Counter(("llmd_oke_simulator_late_steps_total",))

_PROMPT_SERVERS: tuple[EndpointRole, ...] = ("prefill", "aggregated")


def remarks(
    input_tokens: int,
    concurrency: int,
    performance: Performance,
    warmup: Sequence[RequestRecord],
    records: Sequence[RequestRecord],
    snapshots: tuple[Snapshot, Snapshot],
) -> tuple[str, ...]:
    """What a reader must know before comparing the run with another one."""
    return (
        *_about_load(concurrency, performance, warmup),
        *_about_lengths(input_tokens, performance, records),
        *_about_caches(performance, *snapshots),
        *about_simulation(*snapshots),
    )


def _about_load(concurrency: int, performance: Performance, warmup: Sequence[RequestRecord]) -> Iterator[str]:
    if performance.planned < WAVES * concurrency:
        yield (
            f"{performance.planned} requests at concurrency {concurrency} are fewer than {WAVES} per user: "
            "throughput includes filling and draining"
        )
    failed = [record for record in warmup if not record.succeeded]
    if failed:
        first = f"{failed[0].failure}: {failed[0].error}"
        yield f"{len(failed)} of {len(warmup)} warm-up requests failed, the first with {first}"


def _about_lengths(input_tokens: int, performance: Performance, records: Sequence[RequestRecord]) -> Iterator[str]:
    if any(record.succeeded and not record.counted_by_server for record in records):
        yield "the server gave no token counts: input is what was asked for, output the number of events"
    length = performance.input_length
    if length is not None and abs(length.mean - input_tokens) > LENGTH_TOLERANCE * input_tokens:
        yield f"prompts have {length.mean:.0f} tokens to the server, {input_tokens} were asked for"
    if performance.tokens_per_event > 1 + LENGTH_TOLERANCE:
        yield (
            f"events carry {performance.tokens_per_event:.2f} tokens: inter-token latency is the time between events, "
            "time per output token isn't affected"
        )


def _about_caches(performance: Performance, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for role in _PROMPT_SERVERS:
        cached = change(before, after, role, VLLM_COUNTERS.cached_tokens).value or 0.0
        if cached > CACHED_SHARE * performance.input_tokens:
            yield f"{role} servers found {cached:.0f} of {performance.input_tokens} prompt tokens in their prefix cache"


def about_simulation(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Simulated servers share one process, so that one role tells of all."""
    roles: tuple[EndpointRole, ...] = ("decode", "aggregated")
    for role in roles:
        steps = change(before, after, role, _SIMULATED_STEPS).value
        late = change(before, after, role, _SIMULATED_LATE_STEPS).value
        if steps and late and late > LATE_SHARE * steps:
            yield (
                f"{TOO_SLOW}: {late / steps:.0%} of its steps were late, so that latencies are too long; rehearse with "
                "three times the time scale (--time-scale)"
            )
