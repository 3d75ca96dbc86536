"""What the requests of a run come to: latencies, throughput, and throughput per GPU and per user."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmd_oke.bench.records.distributions import Statistics, describe
from llmd_oke.bench.records.request import STARTED_BUT_UNFINISHED, RequestRecord


@dataclass(frozen=True)
class Performance:
    """Measurements over the requests that succeeded, in seconds of model time; None where nothing could be measured.

    - `tpsg`: output tokens/s of the run divided by the GPUs.
    - `tpsu`: output tokens/s of the run divided by the users (requests in flight), so waiting and prefill count. This
      is what a Pareto chart of llm-d shows.
    - `tpsu_decode`: 1 / mean TPOT: how fast text runs once it has begun, as rows of results have it (`results/row.py`).
    """

    planned: int
    requests: int
    failures: int
    incomplete: int
    failure_reasons: tuple[str, ...]
    duration_s: float
    ttft: Statistics | None
    itl: Statistics | None
    tpot: Statistics | None
    normalized_tpot: Statistics | None
    e2e: Statistics | None
    input_length: Statistics | None
    output_length: Statistics | None
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    users: float
    gpus: int
    tpsg: float
    tpsu: float
    tpsu_decode: float | None
    tokens_per_event: float

    @property
    def total_tokens_per_s(self) -> float:
        """Input and output tokens per second."""
        return self.input_tokens_per_s + self.output_tokens_per_s


def summarize(
    records: Sequence[RequestRecord], *, planned: int, gpus: int, concurrency: int | None = None
) -> Performance:
    """Summarise `records` (in model time).

    `concurrency` is that of a closed loop; without it the users are the requests in flight on average (Little's law).
    """
    good = [record for record in records if record.succeeded]
    bad = [record for record in records if not record.succeeded]
    duration_s = _span_s(records)
    input_tokens = sum(record.input_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    users = _users(good, planned, duration_s, concurrency)
    output_tokens_per_s = _rate(output_tokens, duration_s)
    tpot = describe(_known(record.tpot_s for record in good), "s/token")
    return Performance(
        planned=planned,
        requests=len(records),
        failures=len(bad),
        incomplete=sum(record.failure in STARTED_BUT_UNFINISHED for record in bad),
        failure_reasons=_reasons(bad),
        duration_s=duration_s,
        ttft=describe(_known(record.ttft_s for record in good), "s"),
        itl=describe((gap for record in good for gap in record.gaps_s), "s/token"),
        tpot=tpot,
        normalized_tpot=describe(_known(record.normalized_tpot_s for record in good), "s/token"),
        e2e=describe((record.latency_s for record in good), "s"),
        input_length=describe((record.input_tokens for record in good), "count"),
        output_length=describe((record.output_tokens for record in good), "count"),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests_per_s=_rate(len(good), duration_s),
        input_tokens_per_s=_rate(input_tokens, duration_s),
        output_tokens_per_s=output_tokens_per_s,
        users=users,
        gpus=gpus,
        tpsg=_rate(output_tokens_per_s, gpus),
        tpsu=_rate(output_tokens_per_s, users),
        tpsu_decode=1 / tpot.mean if tpot and tpot.mean else None,
        tokens_per_event=_rate(output_tokens, sum(len(record.event_times_s) for record in good)),
    )


def _span_s(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    first = min(record.started_s for record in records)
    return max(record.started_s + record.latency_s for record in records) - first


def _users(good: Sequence[RequestRecord], planned: int, duration_s: float, concurrency: int | None) -> float:
    if concurrency is not None:
        return float(min(concurrency, planned))
    return _rate(sum(record.latency_s for record in good), duration_s)


def _reasons(bad: Sequence[RequestRecord]) -> tuple[str, ...]:
    """The kinds of failure, the most frequent first, each with its number."""
    kinds = Counter(f"{record.failure}: {record.error}" for record in bad)
    return tuple(f"{count} x {kind}" for kind, count in kinds.most_common())


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _rate(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
