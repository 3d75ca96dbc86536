"""Factors of the latency model from measured points.

The model is linear in its factors, so each column of a fit is the model itself with one factor at 1 and the others at
0. Points weigh by relative error, and no factor is negative. A decode step gets a fixed time for each tensor parallel
size that was measured, launches of layers included, because sizes differ by more than bytes and operations explain: on
the published points that halves the error, in sample and for unseen loads. With C prompts in flight a
prompt takes its GPU time and a C-th of the overhead. The efficiency of all-reduce is kept as it was: prompts of one
length can't tell it from computing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmd_oke.errors import KitError
from llmd_oke.tuning.latency import LatencyModel
from llmd_oke.tuning.nonnegative import nonnegative_least_squares
from llmd_oke.tuning.points import Point

Predict = Callable[[Point], float]
"""The time of a point, in seconds, as a fitted model has it."""

Fitter = Callable[[Sequence[Point], LatencyModel], LatencyModel]
"""Fits the factors of one role and leaves the others."""


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

    Raises:
        KitError: the points leave no time for computing.
    """
    ideal = replace(base, factors=replace(base.factors, prefill_overhead_s=0.0, prefill_compute_efficiency=1.0))
    links = replace(base, factors=replace(ideal.factors, prefill_compute_efficiency=float("inf")))
    overhead_s, slowness = _solve(
        points,
        lambda point: [1 / point.sequences, prefill_s(ideal, point) - prefill_s(links, point)],
        lambda point: prefill_s(links, point),
    )
    if slowness <= 0:
        raise KitError("The prefill points leave no time for computing prompts.", "Look at them with `tune import`.")
    factors = replace(base.factors, prefill_overhead_s=overhead_s, prefill_compute_efficiency=1 / slowness)
    return replace(base, factors=factors)


def decode_s(model: LatencyModel, point: Point) -> float:
    """The step of a point."""
    return model.server(point.tensor_parallel_size).decode_step_s(point.sequences, point.tokens)


def prefill_s(model: LatencyModel, point: Point) -> float:
    """The prompt of a point."""
    server = model.server(point.tensor_parallel_size)
    return server.prefill_s(round(point.tokens)) + model.factors.prefill_overhead_s / point.sequences


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
