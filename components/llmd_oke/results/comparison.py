"""What changed between two sets of results, load by load, and how sure that is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from llmd_oke.errors import KitError
from llmd_oke.results.confidence import difference_interval
from llmd_oke.results.loads import Load, deployment, grouped
from llmd_oke.results.metrics import METRICS, SHOWN, Metric
from llmd_oke.results.row import Basis, Row

KEEPS_UP_SHARE = 0.97
"""Below this share of its offered rate a run counts as not having followed it."""

Verdict = Literal["better", "worse", "unclear", "equal"]


@dataclass(frozen=True)
class Side:
    """One of the two: what to call it, and its rows."""

    name: str
    rows: tuple[Row, ...]

    @property
    def bases(self) -> tuple[Basis, ...]:
        """What its figures are."""
        return tuple(sorted({row.basis for row in self.rows}))


@dataclass(frozen=True)
class Change:
    """One metric under one load: the values of each side's runs."""

    metric: Metric
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def mean_a(self) -> float:
        """Mean of A's runs."""
        return fmean(self.a)

    @property
    def mean_b(self) -> float:
        """Mean of B's runs."""
        return fmean(self.b)

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.mean_b - self.mean_a

    @property
    def relative(self) -> float | None:
        """The difference as a share of A; None where A is zero."""
        return self.difference / self.mean_a if self.mean_a else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true difference lies with 95 % confidence; None with a single run on a side."""
        return difference_interval(self.a, self.b)

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """The same as a share of A's mean, which is taken as certain."""
        interval = self.interval
        return (interval[0] / self.mean_a, interval[1] / self.mean_a) if interval and self.mean_a else None

    @property
    def verdict(self) -> Verdict:
        """Whether B is better; `unclear` where repeated runs differ as much among themselves."""
        if self.difference == 0:
            return "equal"
        interval = self.interval
        if interval and interval[0] <= 0 <= interval[1]:
            return "unclear"
        return "better" if (self.difference > 0) == (self.metric.better == "more") else "worse"


@dataclass(frozen=True)
class LoadComparison:
    """Both sides under one load."""

    load: Load
    a: tuple[Row, ...]
    b: tuple[Row, ...]

    @property
    def repeated(self) -> bool:
        """Whether both sides ran more than once, so that something can be said about chance."""
        return len(self.a) > 1 and len(self.b) > 1

    def change(self, metric: Metric) -> Change | None:
        """The change of a metric; None where a side does not have it."""
        a, b = (tuple(value for row in rows if (value := metric.of(row)) is not None) for rows in (self.a, self.b))
        return Change(metric, a, b) if a and b else None

    @property
    def shown(self) -> Iterator[Change]:
        """The changes that a table shows."""
        changes = (self.change(METRICS[name]) for name in SHOWN)
        return (change for change in changes if change)


@dataclass(frozen=True)
class Comparison:
    """Two sides: the loads that both have, and those that one has alone."""

    a: Side
    b: Side
    loads: tuple[LoadComparison, ...]
    only_a: tuple[Load, ...]
    only_b: tuple[Load, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before the figures."""
        return tuple(_notes(self))


def compare(a: Side, b: Side) -> Comparison:
    """Compare two sides under each load that both have.

    Where each side has one deployment these are compared, whatever they are; else equal deployments are.

    Raises:
        KitError: they share no load.
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


def _loads_of(side: Side, groups: Sequence[tuple[Load, list[Row]]]) -> str:
    return f"{side.name} has {'; '.join(str(load) for load, _ in groups) or 'no results'}."


def _notes(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.a, comparison.b
    for side in (a, b):
        yield f"{side.name}: {_what(side)}."
    if a.bases != b.bases:
        yield "The two are not of the same kind: compare what was measured with what was measured."
    if not all(load.repeated for load in comparison.loads):
        yield "A single run says nothing about chance: such changes have no confidence interval."
    for load in comparison.loads:
        for side, rows in ((a, load.a), (b, load.b)):
            yield from _failed(side, load.load, rows)
            yield from _behind(side, load.load, rows)
    for side, loads in ((a, comparison.only_a), (b, comparison.only_b)):
        if loads:
            yield f"Only in {side.name}: {'; '.join(map(str, loads))}."


def _failed(side: Side, load: Load, rows: Sequence[Row]) -> Iterator[str]:
    failures, requests = sum(row.failures for row in rows), sum(row.requests or 0 for row in rows)
    if failures:
        of_all = f" of {requests}" if requests else ""
        yield f"{side.name}: {failures}{of_all} requests failed under {load}; latencies are those of the others."


def _behind(side: Side, load: Load, rows: Sequence[Row]) -> Iterator[str]:
    """A deployment that can't follow its load has no steady state: its latencies depend on the run's length."""
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
    """Requests that failed are no reason to call a deployment slow."""
    return 1 - row.failures / row.requests if row.requests else 1.0


def _what(side: Side) -> str:
    deployments = ", ".join(dict.fromkeys(deployment(row) for row in side.rows))
    gpus = ", ".join(dict.fromkeys(_gpus(row) for row in side.rows))
    runs = "1 result" if len(side.rows) == 1 else f"{len(side.rows)} results"
    return f"{runs}, {' and '.join(side.bases)}, of {deployments} on {gpus}"


def _gpus(row: Row) -> str:
    """GPUs that count, and those that were reserved beside them: TPSG goes by the first."""
    idle = "" if not row.gpus_reserved or row.gpus_reserved == row.gpus_counted else f", {row.gpus_reserved} reserved"
    return f"{row.gpus_counted} {row.gpu}{idle}"


def summarize(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain JSON; changes and intervals are shares of A."""
    return {
        "a": {"name": comparison.a.name, "bases": list(comparison.a.bases)},
        "b": {"name": comparison.b.name, "bases": list(comparison.b.bases)},
        "notes": list(comparison.notes),
        "loads": [
            {
                "load": str(load.load),
                "runs_a": len(load.a),
                "runs_b": len(load.b),
                "metrics": {change.metric.name: _summary(change) for change in load.shown},
            }
            for load in comparison.loads
        ],
    }


def _summary(change: Change) -> dict[str, object]:
    return {
        "units": change.metric.units,
        "a": change.mean_a,
        "b": change.mean_b,
        "change": change.relative,
        "interval": change.relative_interval,
        "verdict": change.verdict,
    }
