"""Plots of a search: the frontier of throughput for each GPU against speed for each user, and the chosen deployment in
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_base.row import Basis, Row
from llmd_bench.loads import served
from llmd_bench.plots.charts import lines_svg, scatter_svg, scatter_text
from llmd_bench.plots.drawing import Box, ChartPoint, ChartSeries
from llmd_bench.plots.page import PageSection, Table, page

from llmd_tuner.confidence import Confidence
from llmd_tuner.ranking import Ranking, deployment_name
from llmd_tuner.search import Candidate, curve_of, frontier_of
from llmd_tuner.search_inputs import SearchInputs

TPSU = "output tokens/s for each user (TPSU)"
TPSG = "output tokens/s for each GPU (TPSG)"
MAX_CURVES = 4
MAX_NAMES = 8
MAX_POINTS = 40
MAX_ROWS = 24

_FRONTIER = "What no other deployment and load exceeds in both: a part of the frontier, the fastest for users first."


@dataclass(frozen=True)
class Picture:
    """Contents of a plot of a search for the best deployment: frontier of all deployments, curves of single ones over
    the load, targets, and measured runs.
    """

    model: str
    question: SearchInputs
    confidence: Confidence
    ranking: Ranking
    frontier: Sequence[Candidate]
    curves: Sequence[Sequence[Candidate]]
    measured: Sequence[Row] = ()


def picture(
    model: str, question: SearchInputs, confidence: Confidence, ranking: Ranking, measured: Sequence[Row] = ()
) -> Picture:
    """Return the contents of a plot: the frontier of all deployments, the curves of the best deployments of different
    kinds, and measured runs.
    """
    losers = [loser.deployment for loser in ranking.losers]
    aggregated = [deployment for deployment in losers if deployment.family.startswith("agg")]
    # The first, then the best of the other families, an aggregated one early among them.
    candidates = (*ranking.first[:1], *aggregated[:1], *losers)
    shown = list({deployment.family: deployment for deployment in candidates}.values())[:MAX_CURVES]
    curves = [curve_of(question, deployment) for deployment in shown]
    return Picture(model, question, confidence, ranking, frontier_of(question), curves, measured)


def scatter(picture: Picture) -> list[ChartSeries]:
    """Return the series of TPSG (tokens per second and GPU) against TPSU (tokens per second and user): curves over the
    load, the frontier with its topologies, and measured runs.
    """
    basis = picture.confidence.basis
    series: list[ChartSeries] = []
    for curve in filter(None, picture.curves):
        ends = {0, len(curve) - 1}
        points = [
            ChartPoint(
                deployment.tpsu, deployment.tpsg, f"{deployment.requests_per_s:.0f} qps" if place in ends else ""
            )
            for place, deployment in enumerate(curve)
        ]
        series.append(ChartSeries(deployment_name(curve[0]), points, _basis(picture, curve[0])))
    shown = _thinned(picture.frontier, MAX_POINTS)
    step = -(-len(shown) // MAX_NAMES)  # names stand at even distances
    best = [
        ChartPoint(deployment.tpsu, deployment.tpsg, "" if place % step else deployment_name(deployment))
        for place, deployment in enumerate(shown)
    ]
    return [*series, ChartSeries("best of all", best, basis), *_measured(picture.measured)]


def _measured(rows: Sequence[Row]) -> Iterator[ChartSeries]:
    """Yield a series of runs for each measured deployment and basis."""
    whole = [row for row in rows if row.subject == "end-to-end" and served(row) and row.tpsu and row.tpsg]
    kinds = dict.fromkeys((row.topology or "run", row.copies, row.basis) for row in whole)
    for topology, copies, basis in kinds:
        own = [row for row in whole if ((row.topology or "run"), row.copies, row.basis) == (topology, copies, basis)]
        points = [ChartPoint(row.tpsu or 0.0, row.tpsg or 0.0, f"C {row.concurrency:.0f}") for row in own]
        yield ChartSeries(topology if copies == 1 else f"{copies} copies of {topology}", points, basis)


def box(picture: Picture) -> Box | None:
    """Return the region of the plot with the speeds for users at which ITL meets its target; None without such a
    target.
    """
    itl_s = picture.question.targets.itl_s
    return None if itl_s is None else Box(x_min=1 / itl_s, label=f"ITL sure to be within {itl_s * 1000:g} ms")


def svg(picture: Picture) -> str:
    """Draw the search's scatter plot of throughput for each GPU against speed for each user, and return its SVG."""
    return scatter_svg(
        scatter(picture), title=_title(picture), x_label=TPSU, y_label=TPSG, frontier=True, box=box(picture)
    )


def text(picture: Picture, width: int, height: int) -> str:
    """Return the search's scatter plot as text for a terminal of `width` columns and `height` lines."""
    return scatter_text(scatter(picture), width=width, height=height, x_label=TPSU, y_label=TPSG)


def html(picture: Picture) -> str:
    """Return an HTML page with the plots of a search and a table of its frontier."""
    latencies = [
        PageSection("TTFT against load", svg=_latency(picture, "TTFT, ms", "ttft_s")),
        PageSection("ITL against load", svg=_latency(picture, "ITL, ms", "itl_s")),
    ]
    what = "No forecasts" if picture.confidence.basis is Basis.BOUND else "Forecasts"
    throughput = PageSection("Throughput against speed", f"{what}: {picture.confidence.sentence}", svg=svg(picture))
    return page(
        _title(picture), [throughput, *latencies, PageSection("Best of all", _FRONTIER, _table(picture.frontier))]
    )


def _latency(picture: Picture, label: str, field: str) -> str:
    series = [
        ChartSeries(
            deployment_name(curve[0]),
            [ChartPoint(deployment.requests_per_s, getattr(deployment, field) * 1000) for deployment in curve],
            _basis(picture, curve[0]),
        )
        for curve in picture.curves
        if curve
    ]
    return lines_svg(series, title=label.split(",", maxsplit=1)[0], x_label="requests/s", y_label=label)


def _basis(picture: Picture, deployment: Candidate) -> Basis:
    """Return what a deployment's figures are: a bound where nothing was measured of its servers."""
    return Basis.BOUND if deployment.bound else picture.confidence.basis


def _thinned(frontier: Sequence[Candidate], most: int) -> Sequence[Candidate]:
    return frontier[:: max(1, -(-len(frontier) // most))]


def _title(picture: Picture) -> str:
    return f"{picture.model}, {picture.question.workload}, on up to {picture.question.hardware.gpus} GPUs"


def _table(frontier: Sequence[Candidate]) -> Table:
    columns = ("TPSU", "TPSG", "deployment", "GPUs", "requests/s", "TTFT ms", "ITL ms")
    rows = [
        (
            f"{deployment.tpsu:.1f}",
            f"{deployment.tpsg:.0f}",
            deployment_name(deployment),
            str(deployment.gpus),
            f"{deployment.requests_per_s:.1f}",
            f"{deployment.ttft_s * 1000:.0f}",
            f"{deployment.itl_s * 1000:.1f}",
        )
        for deployment in _thinned(frontier, MAX_ROWS)
    ]
    return Table(columns, rows)
