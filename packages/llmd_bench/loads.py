"""Grouping of rows by load, the test whether a run served its load, and the Pareto frontier."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from llmd_base.errors import KitError
from llmd_base.row import Arrival, Row

from llmd_bench.deployment import Parallelism

ARRIVALS: Mapping[Arrival, str] = {
    "closed": "closed loop",
    "constant": "constant rate",
    "poisson": "Poisson",
    "trace": "trace",
}
"""Names of the arrival processes in texts for users."""

MAX_LOADS = 500
"""Maximum number of loads in one comparison; each has a table."""

LEVEL_TOLERANCE = 0.02
"""Relative difference up to which two rates or concurrencies count as equal (0.02 is 2 %)."""

LENGTH_TOLERANCE = 0.15
"""Relative difference up to which two mean lengths count as equal (0.15 is 15 %): tokenizers and random lengths make
them vary. The llm-d guide requests 5000 and 250 tokens, and its published report counts 5151 and 281.
"""


@dataclass(frozen=True)
class RequestedLoad:
    """Load that a deployment was to serve, as its result `row` states it. `deployment` is the deployment's name where
    rows of different deployments are kept apart, otherwise empty.
    """

    row: Row
    deployment: str = ""

    @property
    def level(self) -> float | None:
        """Number of users in a closed loop, otherwise the offered rate in requests per second; None if unknown."""
        return self.row.concurrency if self.row.arrival == "closed" else self.row.offered_requests_per_s

    def same(self, other: "RequestedLoad") -> bool:
        """Return whether results under this load and `other` may be compared: of one subject, model, arrival process
        and deployment, at a level and lengths that are equal within the tolerances.
        """
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
    """Return a short description of a row's load level: `closed 8` (users) or `constant 45/s`."""
    offered = row.offered_requests_per_s
    return f"{row.arrival} {offered:g}/s" if offered else f"{row.arrival} {row.concurrency or 0:g}"


def deployment(row: Row) -> str:
    """Return the name of a row's deployment, such as `4 x 8p-tp1-4d-tp2`; without a topology in the row, its tensor
    parallel size or number of GPUs as text.
    """
    if row.topology:
        return row.topology if row.copies == 1 else f"{row.copies} x {row.topology}"
    if row.tensor_parallel_size is None:
        return f"{row.gpus_counted} GPUs"
    ranks, nodes = row.data_parallel_size or 1, row.nodes or 1
    return Parallelism(row.tensor_parallel_size, ranks, bool(row.expert_parallel), nodes).kind


def grouped(rows: Iterable[Row], *, by_deployment: bool) -> list[tuple[RequestedLoad, list[Row]]]:
    """Return the loads in the order of their first row, each with all rows under it. With `by_deployment` rows of
    different deployments have different loads.

    Raises:
        KitError: there are more than `MAX_LOADS` loads.
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
"""Maximum share of failed requests (0.01 is 1 %) of a run that served its load."""


def frontier(items: Iterable[T], x: Callable[[T], float | None], y: Callable[[T], float | None]) -> list[T]:
    """Return the items on the Pareto frontier, in descending order of x; larger is better for x and y.

    An item dominates another if both its values are at least as large and one is larger, so equal items stay together.
    Items without x or y are left out. The cost is O(n log n).
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
    """Return whether a run served its load: it has an output rate, and at most `MAX_FAILURES_SHARE` of its requests
    failed.
    """
    if not row.output_tokens_per_s or row.requests == 0:
        return False
    return row.failures <= MAX_FAILURES_SHARE * (row.requests or row.failures)
