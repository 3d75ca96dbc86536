"""What measured rows say about a server's times.

A decode row gives the time of a step: its mean TPOT, or concurrency / output rate where it has none. A prefill row
gives the time of a prompt, 1 / request rate; prompts that a prefix cache answered are taken out of the rate.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmd_oke.results.row import Row


@dataclass(frozen=True)
class Point:
    """The time of one step with `sequences` in the batch and `tokens` of mean context each, or that of one prompt of
    `tokens` with `sequences` prompts in flight, in seconds.
    """

    tensor_parallel_size: int
    sequences: int
    tokens: float
    seconds: float


def decode_points(rows: Iterable[Row]) -> list[Point]:
    """The points of the decode rows that say enough."""
    return [point for row in rows if row.subject == "decode" and (point := _decode_point(row))]


def prefill_points(rows: Iterable[Row]) -> list[Point]:
    """The points of the prefill rows that say enough."""
    return [point for row in rows if row.subject == "prefill" and (point := _prefill_point(row))]


def requests_per_s(row: Row) -> float | None:
    """Requests that were served per second, from whichever rate the row has."""
    if row.achieved_requests_per_s:
        return row.achieved_requests_per_s
    if row.input_tokens_per_s:
        return row.input_tokens_per_s / row.input_tokens
    return row.output_tokens_per_s / row.output_tokens if row.output_tokens_per_s else None


def _decode_point(row: Row) -> Point | None:
    if not row.tensor_parallel_size or not row.concurrency:
        return None
    step_s = row.tpot_ms.mean / 1000 if row.tpot_ms.mean else _step_of_rate_s(row.concurrency, row.output_tokens_per_s)
    if step_s is None:
        return None
    context_tokens = row.input_tokens + row.output_tokens / 2
    return Point(row.tensor_parallel_size, max(1, round(row.concurrency)), context_tokens, step_s)


def _step_of_rate_s(concurrency: float, tokens_per_s: float | None) -> float | None:
    return concurrency / tokens_per_s if tokens_per_s else None


def _prefill_point(row: Row) -> Point | None:
    rate = requests_per_s(row)
    if not row.tensor_parallel_size or not row.concurrency or rate is None:
        return None
    computed = rate * (1 - (row.prefix_cache_hit_share or 0.0))
    if computed <= 0:
        return None
    return Point(row.tensor_parallel_size, max(1, round(row.concurrency)), row.input_tokens, 1 / computed)
