"""Comparison of two sets of results: changes for each load, their confidence intervals, and regression gates for
pipelines.

Intervals are Welch's (B. L. Welch, Biometrika 34, 1947). Regression gates are conditions on a comparison of side A with
side B:

    ttft_ms.p95>+10%            fails if B's p95 is more than 10 % above A's
    output_tokens_per_s<-5%     fails if B's rate is less than 95 % of A's
    ttft_ms.p95>+50             fails if B's p95 is more than 50 ms above A's
    failures_share>0.01         fails if more than 1 % of B's requests failed, whatever A's share is
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import NormalDist, fmean, variance
from typing import Annotated, Literal

from llmd_base.errors import KitError
from llmd_base.metrics import METRICS, SHOWN, Metric, metric
from llmd_base.row import Basis, Row
from pydantic import AliasPath, BeforeValidator, Field

from llmd_bench.loads import RequestedLoad, deployment, grouped
from llmd_bench.summaries import SummarySection

LEVEL = 0.95

_STEPS = 400

KEEPS_UP_SHARE = 0.97
"""Minimum ratio of achieved to offered requests per second (0.97 is 97 %) at which a run kept up with the offered rate.
"""

Verdict = Literal["better", "worse", "unclear", "equal"]


@dataclass(frozen=True)
class Side:
    """One of the two compared sets of results, A or B, with its name."""

    name: str
    rows: tuple[Row, ...]

    @property
    def bases(self) -> tuple[Basis, ...]:
        """Bases of the side's figures (measured, calibrated, bound), sorted, without duplicates."""
        return tuple(sorted({row.basis for row in self.rows}))


@dataclass(frozen=True)
class MetricChange:
    """Values of one metric under one load: one value per run of side A and of side B."""

    metric: Metric
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def mean_a(self) -> float:
        """Mean of the metric over the runs of side A."""
        return fmean(self.a)

    @property
    def mean_b(self) -> float:
        """Mean of the metric over the runs of side B."""
        return fmean(self.b)

    @property
    def difference(self) -> float:
        """Mean of side B's runs minus mean of side A's runs, in the metric's units."""
        return self.mean_b - self.mean_a

    @property
    def relative(self) -> float | None:
        """Difference of side B's mean from side A's as a share of A's mean (0.1 is 10 %); None if A's mean is 0."""
        return self.difference / self.mean_a if self.mean_a else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the difference between the means of side B and side A; None if a side has a
        single run.
        """
        return difference_interval(self.a, self.b)

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """Confidence interval of the difference divided by side A's mean, whose own error is neglected; None without an
        interval or if A's mean is 0.
        """
        interval = self.interval
        return (interval[0] / self.mean_a, interval[1] / self.mean_a) if interval and self.mean_a else None

    @property
    def verdict(self) -> Verdict:
        """Verdict on side B relative to side A: `unclear` if the confidence interval of the difference contains 0."""
        if self.difference == 0:
            return "equal"
        interval = self.interval
        if interval and interval[0] <= 0 <= interval[1]:
            return "unclear"
        return "better" if (self.difference > 0) == (self.metric.better == "more") else "worse"


@dataclass(frozen=True)
class LoadComparison:
    """Rows of results of both sides of a comparison under one load."""

    load: RequestedLoad
    a: tuple[Row, ...]
    b: tuple[Row, ...]

    @property
    def repeated(self) -> bool:
        """True if both sides have more than one run, which a confidence interval needs."""
        return len(self.a) > 1 and len(self.b) > 1

    def change(self, metric: Metric) -> MetricChange | None:
        """Return the change of a metric from side A to side B under this load; None if a side lacks the metric."""
        a, b = (tuple(value for row in rows if (value := metric.of(row)) is not None) for rows in (self.a, self.b))
        return MetricChange(metric, a, b) if a and b else None

    @property
    def shown(self) -> Iterator[MetricChange]:
        """Yield the changes of the metrics that tables of comparisons show."""
        changes = (self.change(METRICS[name]) for name in SHOWN)
        return (change for change in changes if change)

    @property
    def by_metric(self) -> dict[str, MetricChange]:
        """Changes of the metrics that tables of comparisons show, by metric name."""
        return {change.metric.name: change for change in self.shown}


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sides: the loads that both sides have, and the loads that only one has."""

    a: Side
    b: Side
    loads: tuple[LoadComparison, ...]
    only_a: tuple[RequestedLoad, ...]
    only_b: tuple[RequestedLoad, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the validity of the comparison, such as different bases of the figures."""
        return tuple(_notes(self))


def compare(a: Side, b: Side) -> Comparison:
    """Compare two sides under each load that both have.

    If each side has a single deployment, these two are compared even if they differ; otherwise only equal deployments
    are compared.

    Raises:
        KitError: the sides have no load in common.
    """
    by_deployment = any(len({deployment(row) for row in side.rows}) > 1 for side in (a, b))
    groups_a, groups_b = (grouped(side.rows, by_deployment=by_deployment) for side in (a, b))
    pairs = [(load, ours, theirs) for load, ours in groups_a for other, theirs in groups_b if load.same(other)]
    if not pairs:
        raise KitError(
            f"{a.name} and {b.name} have no load in common.", _loads_of(a, groups_a) + _loads_of(b, groups_b)
        )
    return Comparison(
        a,
        b,
        tuple(LoadComparison(load, tuple(ours), tuple(theirs)) for load, ours, theirs in pairs),
        only_a=tuple(load for load, _ in groups_a if not any(load.same(other) for other, _ in groups_b)),
        only_b=tuple(load for load, _ in groups_b if not any(load.same(other) for other, _ in groups_a)),
    )


def _loads_of(side: Side, groups: Sequence[tuple[RequestedLoad, list[Row]]]) -> str:
    return f"{side.name} has {'; '.join(str(load) for load, _ in groups) or 'no results'}."


def _notes(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.a, comparison.b
    for side in (a, b):
        deployments = ", ".join(dict.fromkeys(deployment(row) for row in side.rows))
        gpus = dict.fromkeys(
            f"{row.gpus_counted} {row.gpu}"
            f"{f', {row.gpus_reserved} reserved' if row.gpus_reserved not in {None, 0, row.gpus_counted} else ''}"
            for row in side.rows
        )
        runs = "1 result" if len(side.rows) == 1 else f"{len(side.rows)} results"
        yield f"{side.name}: {runs}, {' and '.join(side.bases)}, of {deployments} on {', '.join(gpus)}."
    if a.bases != b.bases:
        yield "The two are not of the same kind: compare what was measured with what was measured."
    if not all(load.repeated for load in comparison.loads):
        yield "A single run says nothing about chance: such changes have no confidence interval."
    for load in comparison.loads:
        for side, rows in ((a, load.a), (b, load.b)):
            failures, requests = sum(row.failures for row in rows), sum(row.requests or 0 for row in rows)
            if failures:
                failed = f"{failures} of {requests}" if requests else f"{failures}"
                yield f"{side.name}: {failed} requests failed under {load.load}; latencies are those of the others."
            yield from _behind(side, load.load, rows)
    for side, loads in ((a, comparison.only_a), (b, comparison.only_b)):
        if loads:
            yield f"Only in {side.name}: {'; '.join(map(str, loads))}."


def _behind(side: Side, load: RequestedLoad, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a remark if a side answers fewer requests than are offered: without a steady state, latencies depend on the
    run's length.
    """
    shares = [
        row.achieved_requests_per_s / (row.offered_requests_per_s * _answered_share(row))
        for row in rows
        if row.achieved_requests_per_s and row.offered_requests_per_s and _answered_share(row) > 0
    ]
    if shares and fmean(shares) < KEEPS_UP_SHARE:
        yield (
            f"{side.name} answered {fmean(shares):.0%} of the {load.level:g} requests/s that were offered: its"
            " latencies depend on how long it ran."
        )


def _answered_share(row: Row) -> float:
    """Return the share of a row's requests that succeeded, so that failed requests don't count as slowness."""
    return 1 - row.failures / row.requests if row.requests else 1.0


class SideSummary(SummarySection):
    """One side of a comparison as JSON: its name, and the bases of its figures."""

    name: str
    bases: tuple[Basis, ...]


class ChangeSummary(SummarySection):
    """Change of one metric from side A to side B as JSON: both means, and `change` and `interval` as shares of A's
    mean.
    """

    units: str = Field(validation_alias=AliasPath("metric", "units"))
    a: float = Field(validation_alias="mean_a")
    b: float = Field(validation_alias="mean_b")
    change: float | None = Field(validation_alias="relative")
    interval: tuple[float, float] | None = Field(validation_alias="relative_interval")
    verdict: Verdict


class LoadChanges(SummarySection):
    """Changes of all metrics under one load as JSON, with the number of runs on each side."""

    load: Annotated[str, BeforeValidator(str)]
    runs_a: Annotated[int, BeforeValidator(len)] = Field(validation_alias="a")
    runs_b: Annotated[int, BeforeValidator(len)] = Field(validation_alias="b")
    metrics: dict[str, ChangeSummary] = Field(validation_alias="by_metric")


class ComparisonSummary(SummarySection):
    """Comparison of two sets of results as JSON."""

    a: SideSummary
    b: SideSummary
    notes: tuple[str, ...]
    loads: tuple[LoadChanges, ...]


def summarize(comparison: Comparison) -> dict[str, object]:
    """Return the comparison as the object of `--json`; changes and their confidence intervals are shares of side A's
    mean.
    """
    return ComparisonSummary.model_validate(comparison).model_dump(mode="json")


_GATE = re.compile(r"\s*([a-z0-9_.]+)\s*([<>])\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")

Kind = Literal["relative", "difference", "value"]


@dataclass(frozen=True)
class Gate:
    """Condition on a metric of a comparison.

    Attributes:
        text: the gate as the user wrote it.
        metric: the metric.
        above: whether the gate fails above `limit`, otherwise below.
        limit: limit of the relative change (0.1 is 10 %), of the difference, or of B's value in the metric's units.
        kind: whether `limit` applies to the relative change, to the difference, or to B's value.
    """

    text: str
    metric: Metric
    above: bool
    limit: float
    kind: Kind


@dataclass(frozen=True)
class Breach:
    """Failure of a regression gate under one load, with the reason."""

    gate: Gate
    load: str
    why: str

    def __str__(self) -> str:
        return f"{self.gate.text}: {self.why} ({self.load})"


def parse_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Parse gates such as `ttft_ms.p95>+10%`.

    Raises:
        KitError: at least one text is no gate; the message names all of these.
    """
    gates: list[Gate] = []
    wrong: list[str] = []
    for text in texts:
        try:
            gates.append(_parse(text))
        except KitError as error:
            wrong.append(f"{text!r} is no gate. {error.message} {error.remedy or ''}".rstrip())
    if wrong:
        raise KitError(
            "\n".join(wrong), "A gate reads like ttft_ms.p95>+10%, output_tokens_per_s<-5% or failures_share>0.01."
        )
    return tuple(gates)


def _parse(text: str) -> Gate:
    match = _GATE.fullmatch(text)
    if not match:
        raise KitError("It needs a metric, < or >, and a number, with a sign for a change and % for a share of A.")
    name, sign, direction, number, percent = match.groups()
    value = float(number) * (-1 if direction == "-" else 1)
    if percent:
        return Gate(text, metric(name), sign == ">", value / 100, "relative")
    return Gate(text, metric(name), sign == ">", value, "difference" if direction else "value")


def breaches(gates: Sequence[Gate], comparison: Comparison) -> list[Breach]:
    """Return the failures of the gates under each load. A gate also fails if its metric can't be computed or if B has
    no result under a load of A.
    """
    failed: list[Breach] = []
    for load, gate in product(comparison.loads, gates):
        value, why = _judged_value(gate, load)
        if value is None or (value > gate.limit if gate.above else value < gate.limit):
            failed.append(Breach(gate, str(load.load), why))
    failed += (Breach(gate, str(load), "B has no result under it") for load in comparison.only_a for gate in gates)
    return failed


def _judged_value(gate: Gate, load: LoadComparison) -> tuple[float | None, str]:
    units = gate.metric.units
    if gate.kind == "value":
        values = [value for row in load.b if (value := gate.metric.of(row)) is not None]
        mean = sum(values) / len(values) if values else None
        return mean, "B does not have it" if mean is None else f"B has {mean:,.4g} {units}"
    change = load.change(gate.metric)
    if change is None:
        return None, "one side does not have it"
    if gate.kind == "difference":
        return change.difference, f"it changed by {change.difference:+,.4g} {units}"
    if change.relative is None:
        return (None, "A is zero, so that there is no share of it") if change.difference else (0.0, "")
    return (
        change.relative,
        f"it changed by {change.relative:+.1%}, from {change.mean_a:,.4g} to {change.mean_b:,.4g} {units}",
    )


@dataclass(frozen=True)
class ForecastError:
    """Forecast and measured value of one metric."""

    metric: Metric
    predicted: float
    seen: float

    @property
    def error(self) -> float:
        """Relative error of the forecast: predicted / measured - 1."""
        return self.predicted / self.seen - 1


def forecast_errors(names: Iterable[str], predicted: Row, seen: Row) -> Iterator[ForecastError]:
    """Yield the relative error of the forecast for each named metric (such as `ttft_ms.mean`) that both rows have."""
    for figure in (METRICS[name] for name in names):
        forecast, measured = figure.of(predicted), figure.of(seen)
        if forecast is not None and measured:
            yield ForecastError(figure, forecast, measured)


def mean_absolute_error(figures: Sequence[ForecastError]) -> float:
    """Return the mean absolute relative error (0.1 is 10 %; the MAPE divided by 100) of one or more figures."""
    return fmean(abs(figure.error) for figure in figures)


def worst(figures: Sequence[ForecastError]) -> ForecastError:
    """Return the figure with the largest absolute error, of one or more figures."""
    return max(figures, key=lambda figure: abs(figure.error))


def difference_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Return the confidence interval of mean(b) - mean(a) at level `LEVEL`; None if `a` or `b` has a single value."""
    if len(a) < 2 or len(b) < 2:
        return None
    share_a, share_b = variance(a) / len(a), variance(b) / len(b)
    middle, error = fmean(b) - fmean(a), math.sqrt(share_a + share_b)
    if error == 0:
        return middle, middle
    freedom = (share_a + share_b) ** 2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
    reach = error * t_quantile((1 + LEVEL) / 2, freedom)
    return middle - reach, middle + reach


@lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution with `freedom` degrees of freedom at probability `share` (over
    0.5).

    Newton's method from the normal quantile converges from below, since the distribution function is concave there. The
    result is accurate to 1e-11 at 0.975 and to 1e-6 at 0.995; the method fails at 0.9995 with one degree of freedom
    (decision 0075).
    """
    value = NormalDist().inv_cdf(share)
    for _ in range(100):
        step = (share - 0.5 - _area(value, freedom)) / _density(value, freedom)
        value += step
        if abs(step) < 1e-10 * value:
            break
    return value


def _density(value: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return math.exp(scale) / math.sqrt(freedom * math.pi) * (1 + value * value / freedom) ** (-(freedom + 1) / 2)


def _area(value: float, freedom: float) -> float:
    """Return the area under the density between 0 and `value`, by Simpson's rule."""
    step = value / _STEPS
    inner = math.fsum((4 if index % 2 else 2) * _density(index * step, freedom) for index in range(1, _STEPS))
    return step / 3 * (_density(0, freedom) + inner + _density(value, freedom))
