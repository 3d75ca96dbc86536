"""Latency figures fitted to measured rows, with their errors on points that the fits didn't use.

The model is linear in its factors, so each column of a fit is the model itself with one factor at 1 and the others at
0. Points weigh by relative error, and no factor is negative: no part of a time can be less than nothing. A decode step
gets a fixed time for each spread of servers over GPUs that was measured, launches of layers and the exchange of experts
included, because spreads differ by more than bytes and operations explain: on the published points, of tensor parallel
sizes alone, that halves the error, in sample and for unseen loads. A prompt alone takes its GPU time t and the overhead
o. Of C in flight, those b that fit a step go on together, and hide their overheads behind the steps of the others as
far as there are others: a prompt takes max(t, (b t + o) / C). The efficiency of all-reduce is kept as it was: prompts
of one length can't tell it from computing.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llmd_base.errors import KitError
from llmd_base.row import Basis, Row
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue import CatalogueModel, NodeHardware
from llmd_oke.catalogue.conditions import Conditions, conditions_of
from llmd_oke.catalogue.latency_figures import Fit, LatencyFigures
from numpy.typing import NDArray

from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import key_of, latency_model_of
from llmd_tuner.measurements import StepTime, decode_points, prefill_points
from llmd_tuner.servers import TOKEN_BUDGET

Array = NDArray[np.float64]

Group = Callable[[StepTime], Hashable]

FEWEST_POINTS = 3
"""Minimum number of measured points from which the factors of a role (prefill or decode) are fitted."""

MAX_ROUNDS = 100

Fitter = Callable[[Sequence[StepTime], LatencyModel], LatencyModel]
"""Function that fits the latency model's factors of one role (prefill or decode) to measured times, and returns the
model with all other factors unchanged.
"""

_ROUNDS = 4


@dataclass(frozen=True)
class CalibratedRole:
    """Calibration of one role of servers, prefill or decode: functions that read measured points from rows, fit the
    role's factors to points, and predict the time of a point.
    """

    name: str
    points: Callable[[Iterable[Row]], list[StepTime]]
    fit: Fitter
    predict: Callable[[LatencyModel, StepTime], float]


def fit_decode(points: Sequence[StepTime], base: LatencyModel) -> LatencyModel:
    """Fit the factors of decode steps in the latency model `base` to measured times by least squares of the relative
    error, and return the model with these factors.
    """
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
    spreads = spreads_of(points)
    solution = _solve(
        points,
        lambda point: [
            *(decode_s(model, point) for model in alone),
            *(float(point.parallelism == spread) for spread in spreads),
        ],
    )
    factors = replace(
        none,
        decode_bytes_factor=solution[0],
        decode_flops_factor=solution[1],
        decode_sequence_s=solution[2],
        decode_fixed_s=tuple(zip(spreads, solution[3:], strict=True)),
    )
    return replace(base, factors=factors)


def fit_prefill(points: Sequence[StepTime], base: LatencyModel) -> LatencyModel:
    """Fit the factors of prefills in the latency model `base` to measured times by least squares of the relative error,
    and return the model with these factors.

    Which points kept the GPU busy depends on the factors, so the fit is repeated until that choice no longer changes.

    Raises:
        KitError: the fit leaves no time for computing.
    """
    busy = [point.sequences > _together(point) for point in points]
    fitted = _fit_prefill(points, busy, base)
    for _ in range(_ROUNDS):
        # Whether the GPU always has a prompt of those in flight.
        now_busy = [prefill_s(fitted, point) <= _gpu_s(fitted, point) for point in points]
        if now_busy == busy:
            break
        busy, fitted = now_busy, _fit_prefill(points, now_busy, base)
    return fitted


def _fit_prefill(points: Sequence[StepTime], busy: Sequence[bool], base: LatencyModel) -> LatencyModel:
    """Fit where it is known which points have a busy GPU; the overhead of `base` stays where all have."""
    ideal = replace(base, factors=replace(base.factors, prefill_overhead_s=0.0, prefill_compute_efficiency=1.0))
    links = replace(base, factors=replace(ideal.factors, prefill_compute_efficiency=float("inf")))
    at_work = dict(zip(points, busy, strict=True))

    def share(point: StepTime) -> float:
        return 1.0 if at_work[point] else _together(point) / point.sequences

    overhead_s, slowness = _solve(
        points,
        lambda point: [
            0.0 if at_work[point] else 1 / point.sequences,
            share(point) * (_gpu_s(ideal, point) - _gpu_s(links, point)),
        ],
        lambda point: share(point) * _gpu_s(links, point),
    )
    if slowness <= 0:
        raise KitError("The prefill points leave no time for computing prompts.", "Look at them with `tune import`.")
    if all(busy):
        overhead_s = base.factors.prefill_overhead_s
    factors = replace(base.factors, prefill_overhead_s=overhead_s, prefill_compute_efficiency=1 / slowness)
    return replace(base, factors=factors)


def decode_s(model: LatencyModel, point: StepTime) -> float:
    """Return the decode step's time in seconds that a latency model predicts for the batch, context and parallelism of
    a measured point.
    """
    return model.server(point.parallelism).decode_step_s(point.sequences, point.tokens)


def prefill_s(model: LatencyModel, point: StepTime) -> float:
    """Return the time in seconds for each prompt that a latency model predicts for a measured point: for prompts of its
    length, with as many in flight, on a server of its parallelism.
    """
    gpu_s = _gpu_s(model, point)
    return max(gpu_s, (_together(point) * gpu_s + model.factors.prefill_overhead_s) / point.sequences)


def _together(point: StepTime) -> int:
    """Return how many prompts of a point one step computes."""
    return min(point.sequences, max(1, int(TOKEN_BUDGET // point.tokens)))


def _gpu_s(model: LatencyModel, point: StepTime) -> float:
    return model.server(point.parallelism).prefill_s(round(point.tokens))


DECODE = CalibratedRole("decode", decode_points, fit_decode, decode_s)
PREFILL = CalibratedRole("prefill", prefill_points, fit_prefill, prefill_s)
ROLES = (PREFILL, DECODE)


def errors(role: CalibratedRole, model: LatencyModel, points: Sequence[StepTime]) -> list[float]:
    """Return the relative error of a latency model's prediction at each measured point: predicted over measured time,
    less one.
    """
    return [role.predict(model, point) / point.seconds - 1 for point in points]


def _solve(
    points: Sequence[StepTime],
    columns: Callable[[StepTime], list[float]],
    given: Callable[[StepTime], float] = lambda _point: 0.0,
) -> list[float]:
    """Return the factors of the columns that, beside what is given, predict points with the least relative error."""
    matrix = np.array([[value / point.seconds for value in columns(point)] for point in points])
    values = np.array([1 - given(point) / point.seconds for point in points])
    return [float(factor) for factor in nonnegative_least_squares(matrix, values)]


def nonnegative_least_squares(columns: Array, values: Array) -> Array:
    """Return the vector x >= 0 for which `columns @ x` is nearest to `values`.

    Active set method of Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23. Columns are scaled to
    equal length first, so that their units don't decide the order in which they become active.
    """
    lengths = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(float).tiny)
    return _active_set(columns / lengths, values) / lengths


def _active_set(columns: Array, values: Array) -> Array:
    chosen = np.zeros(columns.shape[1], dtype=bool)
    solution = np.zeros(columns.shape[1])
    for _ in range(MAX_ROUNDS):
        pull = np.where(chosen, -np.inf, columns.T @ (values - columns @ solution))
        best = int(np.argmax(pull))
        if pull[best] <= 1e-9 * float(np.linalg.norm(values)):
            break
        chosen[best] = True
        solution = _backed_off(columns, values, solution, chosen)
        if not chosen[best]:
            break  # adding it helps by no more than rounding
    return solution


def _backed_off(columns: Array, values: Array, start: Array, chosen: "NDArray[Any]") -> Array:
    """Move from `start` towards the free solution of the chosen columns, leaving out those that would turn negative."""
    current = start
    while True:
        free = np.zeros_like(current)
        free[chosen] = np.linalg.lstsq(columns[:, chosen], values, rcond=None)[0]
        falling = chosen & (free <= 0)
        if not falling.any():
            return free
        reach = float(np.min(current[falling] / (current[falling] - free[falling])))
        current = current + reach * (free - current)
        chosen &= current > 1e-15
        current = np.where(chosen, current, 0.0)


@dataclass(frozen=True)
class HeldOut:
    """Measured points that a fit didn't use, with the relative error of the fit's prediction at each: predicted over
    measured time, less one.
    """

    points: tuple[StepTime, ...]
    errors: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean absolute value of the relative errors (0.1 is 10 %)."""
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def largest(self) -> float:
        """Largest absolute value of the relative errors (0.1 is 10 %)."""
        return max(map(abs, self.errors))


def by_load(point: StepTime) -> Hashable:
    """Return the load of a measured point (sequences in a batch or prompts in flight, and tokens of each) as a key for
    grouping points.
    """
    return point.sequences, point.tokens


def by_spread(point: StepTime) -> Hashable:
    """Return the parallelism (tensor and data parallel sizes, nodes) of the server that a point was measured on, as a
    key for grouping points.
    """
    return point.parallelism


def spreads_of(points: Iterable[StepTime]) -> list[Parallelism]:
    """Return the distinct parallelisms (tensor and data parallel sizes, nodes) of the servers that points were measured
    on, by ascending number of GPUs.
    """
    spreads = {point.parallelism for point in points}
    return sorted(spreads, key=lambda spread: (spread.gpus, spread.tensor_parallel_size, spread.kind))


def leave_out(role: CalibratedRole, points: Sequence[StepTime], base: LatencyModel, group: Group) -> HeldOut | None:
    """Cross-validate the fit of a role: predict the points of each group, such as those of one load, from a fit to the
    points of all other groups, and return the errors. None where there are too few points or groups.
    """
    predictions: list[tuple[StepTime, float]] = []
    for left_out in dict.fromkeys(map(group, points)):
        known = [point for point in points if group(point) != left_out]
        if len(known) < FEWEST_POINTS or len({group(point) for point in known}) < 2:
            return None
        held_out = [point for point in points if group(point) == left_out]
        predictions += zip(held_out, errors(role, role.fit(known, base), held_out), strict=True)
    return HeldOut(*zip(*predictions, strict=True)) if predictions else None


def predict(role: CalibratedRole, known: Sequence[StepTime], others: Sequence[StepTime], base: LatencyModel) -> HeldOut:
    """Return the relative errors with which a fit to the points `known` predicts the points `others`."""
    return HeldOut(tuple(others), tuple(errors(role, role.fit(known, base), others)))


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration: the new latency figures. `fitted` names the roles (prefill, decode) that had enough
    measurements, so that their factors are new.
    """

    figures: LatencyFigures
    fitted: tuple[str, ...]


def calibrate(rows: Sequence[Row], model: CatalogueModel, node: NodeHardware, base: LatencyFigures) -> Calibration:
    """Return latency figures fitted to the rows of a model's single servers on the GPUs of a node. A role (prefill,
    decode) with too few rows keeps the factors of `base`.

    Raises:
        KitError: the rows are of several images, the rows of a role are of several conditions, no row is of this model
            and GPU, or there are too few points for both roles.
    """
    own = [row for row in rows if row.model in {model.name, model.repository} and row.gpu == node.gpu.product]
    images = sorted({row.image for row in own if row.image})
    if len(images) > 1:
        raise KitError(f"The rows are of several images: {', '.join(images)}.", "Fit one at a time: `--image`.")
    image = images[0] if images else None
    figures = base
    fitted: list[str] = []
    for role in ROLES:
        of_role = [row for row in own if row.subject == role.name]
        points = role.points(of_role)
        if len(points) >= FEWEST_POINTS:
            figures = _with_role(figures, role, points, latency_model_of(base, model, node), of_role, image)
            fitted.append(role.name)
    if not fitted:
        count = f"{len(own)} of {len(rows)} rows are of {model.name} on {node.gpu.product}"
        remedy = f"A fit takes at least {FEWEST_POINTS} prefill-only or decode-only rows: see `llmd-oke tune plan`."
        raise KitError(f"There is too little to fit: {count}.", remedy)
    if len(fitted) < len(ROLES):
        return Calibration(figures.model_copy(update={"image": None}), tuple(fitted))
    return Calibration(figures.model_copy(update={"image": image, "conditions": None}), tuple(fitted))


def _one_kind(rows: Sequence[Row], image: str | None) -> Conditions:
    """Return the conditions that the servers of all rows were started under; one that only some rows tell is a
    difference.

    Raises:
        KitError: the rows are of several kinds of servers; says in what they differ.
    """
    every = [conditions_of(row).model_copy(update={"image": image}) for row in rows]
    values = {name: Counter(getattr(conditions, name) for conditions in every) for name in Conditions.model_fields}
    if several := {name: counts for name, counts in values.items() if len(counts) > 1}:
        texts: list[str] = []  # `block size 16 (4 rows), not told (2 rows)`
        for name, counts in several.items():
            known = sorted(counts.items(), key=lambda item: (item[0] is None, str(item[0])))
            shown = (f"{'not told' if value is None else value} ({count} rows)" for value, count in known)
            texts.append(f"{name.replace('_', ' ')} {', '.join(shown)}")
        listed = "; ".join(texts)
        remedy = f"Fit one kind at a time: {', '.join(f'--only {name}=VALUE' for name in several)}."
        raise KitError(f"The {rows[0].subject} rows were measured under several conditions: {listed}.", remedy)
    return every[0]


def _with_role(
    figures: LatencyFigures,
    role: CalibratedRole,
    points: Sequence[StepTime],
    base: LatencyModel,
    rows: Sequence[Row],
    image: str | None,
) -> LatencyFigures:
    """Return the figures with factors of a role that are fitted to the points of some rows."""
    fitted, spreads = role.fit(points, base), spreads_of(points)
    own = errors(role, fitted, points)
    alone = all(spread == Parallelism(spread.tensor_parallel_size) for spread in spreads)
    tools, bases = (", ".join(sorted(set(names))) for names in ((r.origin.tool for r in rows), (r.basis for r in rows)))
    fit = Fit(
        source=f"{tools} ({bases})",
        conditions=_one_kind(rows, image),
        points=len(points),
        tensor_parallel_sizes=tuple(sorted({spread.tensor_parallel_size for spread in spreads})),
        servers=() if alone else tuple(spread.kind for spread in spreads),
        most_sequences=max(point.sequences for point in points),
        most_tokens=max(point.tokens for point in points),
        error=sum(map(abs, own)) / len(own),
        unseen_load_error=_mean(leave_out(role, points, base, by_load)),
        unseen_size_error=_mean(leave_out(role, points, base, by_spread)),
    )
    section = getattr(figures, role.name)
    return figures.model_copy(update={role.name: section.model_copy(update={**_factors(role, fitted), "fit": fit})})


def _factors(role: CalibratedRole, fitted: LatencyModel) -> dict[str, object]:
    factors = fitted.factors
    if role is PREFILL:
        new = {"overhead_s": factors.prefill_overhead_s, "compute_efficiency": factors.prefill_compute_efficiency}
    else:
        new = {
            "layer_s": factors.decode_layer_s,
            "bytes_factor": factors.decode_bytes_factor,
            "flops_factor": factors.decode_flops_factor,
            "sequence_s": factors.decode_sequence_s,
            "fixed_s": {key_of(spread): fixed_s for spread, fixed_s in factors.decode_fixed_s},
        }
    return {"basis": Basis.CALIBRATED, **new}


def _mean(held_out: HeldOut | None) -> float | None:
    return None if held_out is None else held_out.mean


def left_out_models(rows: Sequence[Row], base: LatencyModel) -> Iterator[tuple[Row, LatencyModel]]:
    """Yield each row with a latency model that was fitted without the rows of the same load, or without those of the
    same parallelism where all rows have the same load. Rows of a role (prefill, decode) with too few points are left
    out.
    """
    for role in ROLES:
        pairs = [(row, point) for row in rows for point in role.points([row])]
        group = next(
            (key for key in (by_load, by_spread) if _enough(list(map(key, (point for _, point in pairs))))), None
        )
        models: dict[Hashable, LatencyModel] = {}
        for row, point in pairs if group else ():
            left_out = group(point) if group else None
            if group and left_out not in models:
                models[left_out] = role.fit([other for _, other in pairs if group(other) != left_out], base)
            yield row, models[left_out]


def _enough(groups: Sequence[Hashable]) -> bool:
    """Return whether enough points for a fit, of more than one group, stay whichever group is left out."""
    remaining = [[other for other in groups if other != left_out] for left_out in set(groups)]
    return bool(remaining) and all(len(others) >= FEWEST_POINTS and len(set(others)) > 1 for others in remaining)
