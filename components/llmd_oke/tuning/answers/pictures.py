"""Plots of a search: what is best for each GPU and user, and where the chosen deployment stands in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_oke.plots.charts import lines_svg, scatter_svg
from llmd_oke.plots.page import Section, Table, page
from llmd_oke.plots.series import Box, Point, Series
from llmd_oke.plots.terminal import scatter_text
from llmd_oke.results.frontier import served
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.answers.confidence import Confidence
from llmd_oke.tuning.answers.ranking import Ranking, named
from llmd_oke.tuning.search.deployments import Deployment
from llmd_oke.tuning.search.frontiers import curve_of, frontier_of
from llmd_oke.tuning.search.question import Question

TPSU = "output tokens/s for each user (TPSU)"
TPSG = "output tokens/s for each GPU (TPSG)"
MOST_CURVES = 4
MOST_NAMES = 8
MOST_POINTS = 40
MOST_ROWS = 24

_FRONTIER = "What no other deployment and load exceeds in both: a part of the frontier, the fastest for users first."


@dataclass(frozen=True)
class Picture:
    """All that a plot shows."""

    model: str
    question: Question
    confidence: Confidence
    ranking: Ranking
    frontier: Sequence[Deployment]
    curves: Sequence[Sequence[Deployment]]
    measured: Sequence[Row] = ()


def picture(
    model: str, question: Question, confidence: Confidence, ranking: Ranking, measured: Sequence[Row] = ()
) -> Picture:
    """The frontier of all deployments, the curves of the best ones of different kinds, and measured runs."""
    shown = list({each.family: each for each in _candidates(ranking)}.values())[:MOST_CURVES]
    curves = [curve_of(question, each) for each in shown]
    return Picture(model, question, confidence, ranking, frontier_of(question), curves, measured)


def _candidates(ranking: Ranking) -> list[Deployment]:
    """The first, then the best of the other families, an aggregated one early among them."""
    losers = [loser.deployment for loser in ranking.losers]
    aggregated = [each for each in losers if each.family.startswith("agg")]
    return [*ranking.first[:1], *aggregated[:1], *losers]


def scatter(shown: Picture) -> list[Series]:
    """TPSG against TPSU: curves over the load, and the frontier with its topologies."""
    basis = shown.confidence.basis
    curves = [Series(named(curve[0]), _load_points(curve), basis) for curve in shown.curves if curve]
    best = Series("best of all", _frontier_points(shown.frontier), basis)
    return [*curves, best, *_measured(shown.measured)]


def _measured(rows: Sequence[Row]) -> Iterator[Series]:
    """Runs of whole deployments, a series for each deployment and basis."""
    whole = [row for row in rows if row.subject == "end-to-end" and served(row) and row.tpsu and row.tpsg]
    kinds = dict.fromkeys((row.topology or "run", row.copies, row.basis) for row in whole)
    for topology, copies, basis in kinds:
        own = [row for row in whole if ((row.topology or "run"), row.copies, row.basis) == (topology, copies, basis)]
        points = [Point(row.tpsu or 0.0, row.tpsg or 0.0, f"C {row.concurrency:.0f}") for row in own]
        yield Series(topology if copies == 1 else f"{copies} copies of {topology}", points, basis)


def box(shown: Picture) -> Box | None:
    """The speeds for users that need an ITL within its target; TTFT counts in a speed too."""
    itl_s = shown.question.targets.itl_s
    return None if itl_s is None else Box(x_min=1 / itl_s, label=f"ITL sure to be within {itl_s * 1000:g} ms")


def svg(shown: Picture) -> str:
    """The scatter plot."""
    return scatter_svg(scatter(shown), title=_title(shown), x_label=TPSU, y_label=TPSG, frontier=True, box=box(shown))


def text(shown: Picture, width: int, height: int) -> str:
    """The scatter plot for a terminal."""
    return scatter_text(scatter(shown), width=width, height=height, x_label=TPSU, y_label=TPSG)


def html(shown: Picture) -> str:
    """A page with the plots and the frontier's table."""
    latencies = [
        Section("TTFT against load", svg=_latency(shown, "TTFT, ms", "ttft_s")),
        Section("ITL against load", svg=_latency(shown, "ITL, ms", "itl_s")),
    ]
    throughput = Section("Throughput against speed", _text(shown), svg=svg(shown))
    return page(_title(shown), [throughput, *latencies, Section("Best of all", _FRONTIER, _table(shown.frontier))])


def _latency(shown: Picture, label: str, field: str) -> str:
    basis = shown.confidence.basis
    series = [
        Series(named(curve[0]), [Point(each.requests_per_s, getattr(each, field) * 1000) for each in curve], basis)
        for curve in shown.curves
        if curve
    ]
    return lines_svg(series, title=label.split(",", maxsplit=1)[0], x_label="requests/s", y_label=label)


def _load_points(curve: Sequence[Deployment]) -> list[Point]:
    """A curve, with the loads at its ends."""
    ends = {0, len(curve) - 1}
    return [
        Point(each.tpsu, each.tpsg, f"{each.requests_per_s:.0f} qps" if place in ends else "")
        for place, each in enumerate(curve)
    ]


def _frontier_points(frontier: Sequence[Deployment]) -> list[Point]:
    """A part of the frontier, with the names of some of its deployments at even distances."""
    shown = _thinned(frontier, MOST_POINTS)
    step = -(-len(shown) // MOST_NAMES)
    return [Point(each.tpsu, each.tpsg, "" if place % step else named(each)) for place, each in enumerate(shown)]


def _thinned(frontier: Sequence[Deployment], most: int) -> Sequence[Deployment]:
    return frontier[:: max(1, -(-len(frontier) // most))]


def _title(shown: Picture) -> str:
    return f"{shown.model}, {shown.question.workload}, on up to {shown.question.hardware.gpus} GPUs"


def _text(shown: Picture) -> str:
    what = "No forecasts" if shown.confidence.basis is Basis.BOUND else "Forecasts"
    return f"{what}: {shown.confidence.sentence}"


def _table(frontier: Sequence[Deployment]) -> Table:
    columns = ("TPSU", "TPSG", "deployment", "GPUs", "requests/s", "TTFT ms", "ITL ms")
    rows = [
        (
            f"{each.tpsu:.1f}",
            f"{each.tpsg:.0f}",
            named(each),
            str(each.gpus),
            f"{each.requests_per_s:.1f}",
            f"{each.ttft_s * 1000:.0f}",
            f"{each.itl_s * 1000:.1f}",
        )
        for each in _thinned(frontier, MOST_ROWS)
    ]
    return Table(columns, rows)
