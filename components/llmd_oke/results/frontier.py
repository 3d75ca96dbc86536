"""The Pareto frontier: what nothing else exceeds in both of two quantities."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from llmd_oke.results.row import Row

T = TypeVar("T")

MOST_FAILURES_SHARE = 0.01
"""A run in which more requests failed than this did not serve its load, whatever its rates say."""


def frontier(items: Iterable[T], x: Callable[[T], float | None], y: Callable[[T], float | None]) -> list[T]:
    """The items that no other one dominates, in descending order of x; larger is better in both.

    One dominates another where it is at least as good in both and better in one, so equal items stay together. Items
    without x or y are left out. Sorting costs O(n log n), the rest O(n).
    """
    placed = [(x(item), y(item), item) for item in items]
    known = [(own_x, own_y, item) for own_x, own_y, item in placed if own_x is not None and own_y is not None]
    known.sort(key=lambda entry: entry[:2], reverse=True)
    best: list[tuple[float, float, T]] = []
    for entry in known:
        if not best or entry[1] > best[-1][1] or entry[:2] == best[-1][:2]:
            best.append(entry)
    return [item for _, _, item in best]


def served(row: Row) -> bool:
    """Whether a run did what it was for: it has a rate, and at most one in a hundred of its requests failed."""
    if not row.output_tokens_per_s or row.requests == 0:
        return False
    return row.failures <= MOST_FAILURES_SHARE * (row.requests or row.failures)
