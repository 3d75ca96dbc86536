"""Latency models that have not seen a point: for each load of a fit, a fit of all others."""

from collections.abc import Callable, Hashable, Iterator, Sequence

from llmd_oke.results.row import Row
from llmd_oke.tuning.calibration.fit import DECODE, PREFILL, Role
from llmd_oke.tuning.calibration.validation import FEWEST_POINTS, Group, by_load, by_size
from llmd_oke.tuning.measurements.points import Point, decode_points, prefill_points
from llmd_oke.tuning.servers.latency import LatencyModel

Pairs = Sequence[tuple[Row, Point]]

_ROLES: tuple[tuple[Role, Callable[[Sequence[Row]], list[Point]]], ...] = (
    (PREFILL, prefill_points),
    (DECODE, decode_points),
)


def unseen(rows: Sequence[Row], base: LatencyModel) -> Iterator[tuple[Row, LatencyModel]]:
    """Each row with a model that was fitted to the rows of other loads, or of other tensor parallel sizes where all
    have the same load; none for a role with too few points.
    """
    for role, points_of in _ROLES:
        pairs = [(row, point) for row in rows for point in points_of([row])]
        group = next((each for each in (by_load, by_size) if _possible(pairs, each)), None)
        if group is not None:
            yield from _each_left_out(role, pairs, base, group)


def _possible(pairs: Pairs, group: Group) -> bool:
    """Whether enough points of more than one group stay, whichever is left out."""
    groups = [group(point) for _, point in pairs]
    kept = [[other for other in groups if other != left_out] for left_out in set(groups)]
    return bool(kept) and all(len(each) >= FEWEST_POINTS and len(set(each)) > 1 for each in kept)


def _each_left_out(role: Role, pairs: Pairs, base: LatencyModel, group: Group) -> Iterator[tuple[Row, LatencyModel]]:
    models: dict[Hashable, LatencyModel] = {}
    for row, point in pairs:
        left_out = group(point)
        if left_out not in models:
            models[left_out] = role.fit([other for _, other in pairs if group(other) != left_out], base)
        yield row, models[left_out]
