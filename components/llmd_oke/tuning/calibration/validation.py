"""How far a fit is off where it has not looked: groups of points are left out, fitted without, and predicted."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from llmd_oke.tuning.calibration.fit import Role, errors
from llmd_oke.tuning.measurements.points import Point
from llmd_oke.tuning.servers.latency import LatencyModel

Group = Callable[[Point], Hashable]

FEWEST_POINTS = 3
"""Below that a fit is not even tried."""


@dataclass(frozen=True)
class HeldOut:
    """Errors of points that were predicted from others: predicted over measured, less one."""

    points: tuple[Point, ...]
    errors: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean absolute error, as a share."""
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def largest(self) -> float:
        """Largest absolute error, as a share."""
        return max(map(abs, self.errors))


def by_load(point: Point) -> Hashable:
    """Points of one load: a batch and a length."""
    return point.sequences, point.tokens


def by_size(point: Point) -> Hashable:
    """Points of one tensor parallel size."""
    return point.tensor_parallel_size


def leave_out(role: Role, points: Sequence[Point], base: LatencyModel, group: Group) -> HeldOut | None:
    """Each group predicted from the others; None where there are too few points or groups for that."""
    found: list[tuple[Point, float]] = []
    for left_out in dict.fromkeys(map(group, points)):
        known = [point for point in points if group(point) != left_out]
        if len(known) < FEWEST_POINTS or len({group(point) for point in known}) < 2:
            return None
        unseen = [point for point in points if group(point) == left_out]
        found += zip(unseen, errors(role, role.fit(known, base), unseen), strict=True)
    return HeldOut(tuple(point for point, _ in found), tuple(error for _, error in found)) if found else None


def predict(role: Role, known: Sequence[Point], unseen: Sequence[Point], base: LatencyModel) -> HeldOut:
    """Some points predicted from others."""
    return HeldOut(tuple(unseen), tuple(errors(role, role.fit(known, base), unseen)))
