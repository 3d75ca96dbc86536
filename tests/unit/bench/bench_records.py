"""Requests that ended, made up for tests."""

from dataclasses import replace

from llmd_bench.load.records import Failure, RequestRecord


def request(
    index: int = 0,
    started_s: float = 0.0,
    first_s: float = 0.5,
    gap_s: float = 0.1,
    tokens: int = 6,
    events: int | None = None,
    **changes: object,
) -> RequestRecord:
    times_s = tuple(first_s + gap_s * number for number in range(events or tokens))
    record = RequestRecord(index, started_s, times_s[-1], times_s, 100, tokens, counted_by_server=True)
    return replace(record, **changes)


def failed(index: int = 9, **changes: object) -> RequestRecord:
    record = RequestRecord(index, started_s=0, latency_s=0.1, failure=Failure.STATUS, error="HTTP 503: x")
    return replace(record, **changes)
