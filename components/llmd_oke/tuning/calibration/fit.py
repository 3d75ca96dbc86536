"""Factors of the latency model from measured points.

The model is linear in its factors, so each column of a fit is the model itself with one factor at 1 and the others at
0. Points weigh by relative error, and no factor is negative. A decode step gets a fixed time for each tensor parallel
size that was measured, launches of layers included, because sizes differ by more than bytes and operations explain: on
the published points that halves the error, in sample and for unseen loads. A prompt alone takes its GPU time t and
the overhead o. Of C in flight, those b that fit a step go on together, and hide their overheads behind the steps of the
others as far as there are others: a prompt takes max(t, (b t + o) / C). The efficiency of all-reduce is kept as it was:
prompts of one length can't tell it from computing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmd_oke.errors import KitError
from llmd_oke.tuning.calibration.nonnegative import nonnegative_least_squares
from llmd_oke.tuning.measurements.points import Point
from llmd_oke.tuning.servers.curves import TOKEN_BUDGET
from llmd_oke.tuning.servers.latency import LatencyModel

Fitter = Callable[[Sequence[Point], LatencyModel], LatencyModel]
"""Fits the factors of one role and leaves the others."""


_ROUNDS = 4


@dataclass(frozen=True)
class Role:
    """How one role's factors are fitted, and how a model predicts its points."""

    name: str
    fit: Fitter
    predict: Callable[[LatencyModel, Point], float]


def fit_decode(points: Sequence[Point], base: LatencyModel) -> LatencyModel:
    """`base` with the factors of a decode step that fit the points best."""
    none = replace(
        base.factors,
        decode_layer_s=0.0,
        decode_bytes_factor=0.0,
        decode_flops_factor=0.0,
        decode_sequence_s=0.0,
        decode_fixed_s=(),
    )
    alone = [
        replace(base, factors=replace(none, **{name: 1.0}))
        for name in ("decode_bytes_factor", "decode_flops_factor", "decode_sequence_s")
    ]
    sizes = sorted({point.tensor_parallel_size for point in points})
    found = _solve(
        points,
        lambda point: [
            *(decode_s(model, point) for model in alone),
            *(float(point.tensor_parallel_size == size) for size in sizes),
        ],
    )
    factors = replace(
        none,
        decode_bytes_factor=found[0],
        decode_flops_factor=found[1],
        decode_sequence_s=found[2],
        decode_fixed_s=tuple(zip(sizes, found[3:], strict=True)),
    )
    return replace(base, factors=factors)


def fit_prefill(points: Sequence[Point], base: LatencyModel) -> LatencyModel:
    """`base` with the factors of a prefill that fit the points best.

    Which points have a busy GPU follows from the fit itself, so that it is repeated until that stays as it was.

    Raises:
        KitError: the points leave no time for computing.
    """
    busy = [point.sequences > _together(point) for point in points]
    fitted = _fit_prefill(points, busy, base)
    for _ in range(_ROUNDS):
        found = [_busy(fitted, point) for point in points]
        if found == busy:
            break
        busy, fitted = found, _fit_prefill(points, found, base)
    return fitted


def _fit_prefill(points: Sequence[Point], busy: Sequence[bool], base: LatencyModel) -> LatencyModel:
    """The fit where it is known which points have a busy GPU; the overhead of `base` stays where all have."""
    ideal = replace(base, factors=replace(base.factors, prefill_overhead_s=0.0, prefill_compute_efficiency=1.0))
    links = replace(base, factors=replace(ideal.factors, prefill_compute_efficiency=float("inf")))
    at_work = dict(zip(points, busy, strict=True))

    def overheads(point: Point) -> float:
        return 0.0 if at_work[point] else 1 / point.sequences

    def share(point: Point) -> float:
        return 1.0 if at_work[point] else _together(point) / point.sequences

    overhead_s, slowness = _solve(
        points,
        lambda point: [overheads(point), share(point) * (_gpu_s(ideal, point) - _gpu_s(links, point))],
        lambda point: share(point) * _gpu_s(links, point),
    )
    if slowness <= 0:
        raise KitError("The prefill points leave no time for computing prompts.", "Look at them with `tune import`.")
    if all(busy):
        overhead_s = base.factors.prefill_overhead_s
    factors = replace(base.factors, prefill_overhead_s=overhead_s, prefill_compute_efficiency=1 / slowness)
    return replace(base, factors=factors)


def decode_s(model: LatencyModel, point: Point) -> float:
    """The step of a point."""
    return model.server(point.tensor_parallel_size).decode_step_s(point.sequences, point.tokens)


def prefill_s(model: LatencyModel, point: Point) -> float:
    """The prompt of a point."""
    gpu_s = _gpu_s(model, point)
    return max(gpu_s, (_together(point) * gpu_s + model.factors.prefill_overhead_s) / point.sequences)


def _together(point: Point) -> int:
    """Prompts of one step."""
    return min(point.sequences, max(1, int(TOKEN_BUDGET // point.tokens)))


def _gpu_s(model: LatencyModel, point: Point) -> float:
    return model.server(point.tensor_parallel_size).prefill_s(round(point.tokens))


def _busy(model: LatencyModel, point: Point) -> bool:
    """Whether the GPU always has a prompt of those in flight."""
    return prefill_s(model, point) <= _gpu_s(model, point)


DECODE = Role("decode", fit_decode, decode_s)
PREFILL = Role("prefill", fit_prefill, prefill_s)


def errors(role: Role, model: LatencyModel, points: Sequence[Point]) -> list[float]:
    """Predicted over measured, less one, for each point."""
    return [role.predict(model, point) / point.seconds - 1 for point in points]


def _solve(
    points: Sequence[Point],
    columns: Callable[[Point], list[float]],
    given: Callable[[Point], float] = lambda _point: 0.0,
) -> list[float]:
    """The factors of the columns, beside what is given, by relative error."""
    matrix = np.array([[each / point.seconds for each in columns(point)] for point in points])
    values = np.array([1 - given(point) / point.seconds for point in points])
    return [float(factor) for factor in nonnegative_least_squares(matrix, values)]
