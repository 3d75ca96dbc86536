"""Rows by load: which runs had the same, which served theirs, and which of them no other exceeds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from llmd_base.errors import KitError
from llmd_base.row import Arrival, Row

ARRIVALS: Mapping[Arrival, str] = {
    "closed": "closed loop",
    "constant": "constant rate",
    "poisson": "Poisson",
    "trace": "trace",
}
"""Names of the ways in which requests arrive."""

MAX_LOADS = 500
"""Most loads in one comparison, of which each has a table."""

LEVEL_TOLERANCE = 0.02
"""Rates and concurrencies that differ by less are the same load."""

LENGTH_TOLERANCE = 0.15
"""Mean lengths of one workload vary with tokenizers and random lengths: the llm-d guide asked for 5000 and 250 tokens,
and its published report counts 5151 and 281.
"""


@dataclass(frozen=True)
class RequestedLoad:
    """Load that was asked of a deployment; `deployment` is empty where deployments are compared with each other."""

    row: Row
    deployment: str = ""

    @property
    def level(self) -> float | None:
        """Number that sets the pace: users in a closed loop, else the offered rate."""
        return self.row.concurrency if self.row.arrival == "closed" else self.row.offered_requests_per_s

    def same(self, other: "RequestedLoad") -> bool:
        """Check that results under the two loads may be compared."""
        own, their = self.row, other.row
        alike = (own.subject, own.model, own.arrival, self.deployment)
        if alike != (their.subject, their.model, their.arrival, other.deployment):
            return False
        return (
            _close(self.level, other.level, LEVEL_TOLERANCE)
            and _close(own.input_tokens, their.input_tokens, LENGTH_TOLERANCE)
            and _close(own.output_tokens, their.output_tokens, LENGTH_TOLERANCE)
        )

    def __str__(self) -> str:
        row = self.row
        level = "unknown load" if self.level is None else f"{self.level:g}"
        pace = f"{level} users" if row.arrival == "closed" else f"{level} requests/s, {ARRIVALS[row.arrival]}"
        parts = [row.model, self.deployment, f"{row.input_tokens:.0f}/{row.output_tokens:.0f} tokens", pace]
        if row.subject != "end-to-end":
            parts.insert(1, f"{row.subject} only")
        return ", ".join(filter(None, parts))


def pace(row: Row) -> str:
    """Describe the pace in a word or two: `closed 8` users, `constant 45/s`."""
    offered = row.offered_requests_per_s
    return f"{row.arrival} {offered:g}/s" if offered else f"{row.arrival} {row.concurrency or 0:g}"


def deployment(row: Row) -> str:
    """Name the deployment of a row: `4 x 8p-tp1-4d-tp2`, or the role and its GPUs where there is no topology."""
    if row.topology:
        return row.topology if row.copies == 1 else f"{row.copies} x {row.topology}"
    size = row.tensor_parallel_size
    return f"tp{size}" if size else f"{row.gpus_counted} GPUs"


def grouped(rows: Iterable[Row], *, by_deployment: bool) -> list[tuple[RequestedLoad, list[Row]]]:
    """Group rows of the same load together, in the order in which loads first appear.

    Raises:
        KitError: there are too many to be compared one by one, or read.
    """
    groups: list[tuple[RequestedLoad, list[Row]]] = []
    for row in rows:
        load = RequestedLoad(row, deployment(row) if by_deployment else "")
        members = next((members for other, members in groups if other.same(load)), None)
        if members is None:
            groups.append((load, [row]))
            if len(groups) > MAX_LOADS:
                raise KitError(f"There are more than {MAX_LOADS} different loads.", "Compare fewer at a time.")
        else:
            members.append(row)
    return groups


def _close(own: float | None, other: float | None, tolerance: float) -> bool:
    if own is None or other is None:
        return own is other
    return abs(own - other) <= tolerance * max(abs(own), abs(other))


T = TypeVar("T")

MAX_FAILURES_SHARE = 0.01
"""A run in which more requests failed than this did not serve its load, whatever its rates say."""


def frontier(items: Iterable[T], x: Callable[[T], float | None], y: Callable[[T], float | None]) -> list[T]:
    """Return the items that no other one dominates, in descending order of x; larger is better in both.

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
    """Check that a run served its load: it has a rate, and at most one in a hundred of its requests failed."""
    if not row.output_tokens_per_s or row.requests == 0:
        return False
    return row.failures <= MAX_FAILURES_SHARE * (row.requests or row.failures)
