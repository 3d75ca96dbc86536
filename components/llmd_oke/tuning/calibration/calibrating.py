"""Latency figures of a model and image from measured rows, with the errors that are to be stated beside forecasts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llmd_oke.catalogue import Model, Node
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.calibration.fit import DECODE, PREFILL, Role, errors
from llmd_oke.tuning.calibration.validation import FEWEST_POINTS, HeldOut, by_load, by_size, leave_out
from llmd_oke.tuning.measurements.points import Point, decode_points, prefill_points
from llmd_oke.tuning.servers.conditions import Conditions, conditions_of
from llmd_oke.tuning.servers.figures import Fit, LatencyFigures, latency_model_of
from llmd_oke.tuning.servers.latency import LatencyModel

_POINTS: dict[str, Callable[[Sequence[Row]], list[Point]]] = {"decode": decode_points, "prefill": prefill_points}


@dataclass(frozen=True)
class Calibration:
    """New figures; `fitted` names the roles whose factors are new."""

    figures: LatencyFigures
    fitted: tuple[str, ...]


def calibrate(rows: Sequence[Row], model: Model, node: Node, base: LatencyFigures) -> Calibration:
    """The figures that the rows make of `base`: each role with enough points gets new factors, the others stay.

    Raises:
        KitError: the rows are of several images, those of a role of several conditions, of none of this model and GPU,
            or too few of either role.
    """
    own = [row for row in rows if row.model in {model.name, model.repository} and row.gpu == node.gpu.product]
    image = _one_image(own)
    figures = base
    fitted: list[str] = []
    for role in (PREFILL, DECODE):
        of_role = [row for row in own if row.subject == role.name]
        points = _POINTS[role.name](of_role)
        if len(points) >= FEWEST_POINTS:
            about = _one_kind(of_role, image), _sources(of_role)
            figures = _with_role(figures, role, points, latency_model_of(base, model, node), about)
            fitted.append(role.name)
    if not fitted:
        found = f"{len(own)} of {len(rows)} rows are of {model.name} on {node.gpu.product}"
        remedy = f"A fit takes at least {FEWEST_POINTS} prefill-only or decode-only rows: see `llmd-oke tune plan`."
        raise KitError(f"There is too little to fit: {found}.", remedy)
    if len(fitted) < len(_POINTS):
        return Calibration(figures.model_copy(update={"image": None}), tuple(fitted))
    return Calibration(figures.model_copy(update={"image": image, "conditions": None}), tuple(fitted))


def _one_image(rows: Sequence[Row]) -> str | None:
    images = sorted({row.image for row in rows if row.image})
    if len(images) > 1:
        listed = ", ".join(images)
        raise KitError(f"The rows are of several images: {listed}.", "Fit one at a time: `--image`.")
    return images[0] if images else None


def _one_kind(rows: Sequence[Row], image: str | None) -> Conditions:
    """What the servers of all rows were started with; that a row doesn't tell what another tells is a difference.

    Raises:
        KitError: the rows are of several kinds of servers; says in what they differ.
    """
    every = [conditions_of(row).model_copy(update={"image": image}) for row in rows]
    values = {name: Counter(getattr(each, name) for each in every) for name in Conditions.model_fields}
    if several := {name: found for name, found in values.items() if len(found) > 1}:
        listed = "; ".join(f"{name.replace('_', ' ')} {_counts(found)}" for name, found in several.items())
        remedy = f"Fit one kind at a time: {', '.join(f'--only {name}=VALUE' for name in several)}."
        raise KitError(f"The {rows[0].subject} rows were measured under several conditions: {listed}.", remedy)
    return every[0]


def _counts(found: Mapping[str | int | None, int]) -> str:
    """`16 (4 rows), not told (2 rows)`."""
    known = sorted(found.items(), key=lambda item: (item[0] is None, str(item[0])))
    return ", ".join(f"{'not told' if value is None else value} ({count} rows)" for value, count in known)


def _sources(rows: Sequence[Row]) -> str:
    """Where the rows are from, in a line."""
    basis = sorted({row.basis.value for row in rows})
    return f"{', '.join(sorted({row.origin.tool for row in rows}))} ({', '.join(basis)})"


def _with_role(
    figures: LatencyFigures, role: Role, points: Sequence[Point], base: LatencyModel, about: tuple[Conditions, str]
) -> LatencyFigures:
    """`about` is what the points were measured of, and where they are from."""
    conditions, source = about
    fitted = role.fit(points, base)
    own = errors(role, fitted, points)
    fit = Fit(
        source=source,
        conditions=conditions,
        points=len(points),
        tensor_parallel_sizes=tuple(sorted({point.tensor_parallel_size for point in points})),
        most_sequences=max(point.sequences for point in points),
        most_tokens=max(point.tokens for point in points),
        error=sum(map(abs, own)) / len(own),
        unseen_load_error=_mean(leave_out(role, points, base, by_load)),
        unseen_size_error=_mean(leave_out(role, points, base, by_size)),
    )
    section = getattr(figures, role.name)
    return figures.model_copy(update={role.name: section.model_copy(update={**_factors(role, fitted), "fit": fit})})


def _factors(role: Role, fitted: LatencyModel) -> dict[str, object]:
    factors = fitted.factors
    if role is PREFILL:
        new = {"overhead_s": factors.prefill_overhead_s, "compute_efficiency": factors.prefill_compute_efficiency}
    else:
        new = {
            "layer_s": factors.decode_layer_s,
            "bytes_factor": factors.decode_bytes_factor,
            "flops_factor": factors.decode_flops_factor,
            "sequence_s": factors.decode_sequence_s,
            "fixed_s": dict(factors.decode_fixed_s),
        }
    return {"basis": Basis.CALIBRATED, **new}


def _mean(found: HeldOut | None) -> float | None:
    return None if found is None else found.mean
