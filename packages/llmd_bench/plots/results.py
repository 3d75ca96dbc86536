"""Charts of results (throughput per GPU against throughput per user, latency against rate, distributions) and the HTML
page of a comparison.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from llmd_base.metrics import Metric, metric
from llmd_base.row import Basis, Row

from llmd_bench.comparison import Comparison, LoadComparison, Verdict
from llmd_bench.history import SideResults
from llmd_bench.loads import ARRIVALS, RequestedLoad, deployment, grouped, served
from llmd_bench.plots.charts import distribution_svg, lines_svg, scatter_svg
from llmd_bench.plots.drawing import ChartPoint, ChartSeries, Samples
from llmd_bench.plots.page import Cell, PageSection, Table, Tone, page
from llmd_bench.texts import COLUMNS, Line, heading, lines

LATENCIES = ("ttft_ms.p95", "itl_ms.p95", "e2e_ms.mean")
"""Metrics that charts show against the request rate."""

TPSU = "TPSU (output tokens/s/user)"
TPSG = "TPSG (output tokens/s/GPU)"


def series_of(rows: Mapping[str, Sequence[Row]], x: Callable[[Row], float | None], y: Metric) -> list[ChartSeries]:
    """Return a series for each name, deployment, arrival process and basis, with points in ascending order of load.

    Repeated runs of one load are one point at their mean. A point's label is its load.
    """
    groups: dict[tuple[str, Basis], list[ChartPoint]] = {}
    for name, members in rows.items():
        names = _titles(name, members)
        for load, repeats in grouped(filter(served, members), by_deployment=True):
            for basis in dict.fromkeys(row.basis for row in repeats):
                point = _point(load, [row for row in repeats if row.basis is basis], x, y)
                if point:
                    groups.setdefault((names(load), basis), []).append(point)
    return [ChartSeries(title, points, basis) for (title, basis), points in groups.items()]


def _point(
    load: RequestedLoad, repeats: Sequence[Row], x: Callable[[Row], float | None], y: Metric
) -> ChartPoint | None:
    placed = [(x(row), y.of(row)) for row in repeats]
    known = [(place, value) for place, value in placed if place is not None and value is not None]
    if not known:
        return None
    users, offered = load.row.concurrency, load.row.offered_requests_per_s
    label = f"{offered:g}/s" if offered else ""
    if load.row.arrival == "closed":
        label = f"C={users:g}" if users else ""
    return ChartPoint(fmean(place for place, _ in known), fmean(value for _, value in known), label)


def _titles(name: str, rows: Sequence[Row]) -> Callable[[RequestedLoad], str]:
    """Return the function that names a load's series: the name, with deployment and arrival process if the rows have
    several.
    """
    deployments = len({deployment(row) for row in rows}) > 1 or not name
    arrivals = len({row.arrival for row in rows}) > 1

    def title(load: RequestedLoad) -> str:
        arrival = ARRIVALS[load.row.arrival] if arrivals else ""
        return ", ".join(filter(None, (name, load.deployment if deployments else "", arrival)))

    return title


def pareto_section(rows: Mapping[str, Sequence[Row]]) -> PageSection | None:
    """Return a chart of throughput per GPU against throughput per user with the Pareto frontier; None if no run served
    its load.
    """
    whole = {name: [row for row in members if row.subject == "end-to-end"] for name, members in rows.items()}
    series = series_of(_by_load(whole), lambda row: row.tpsu, metric("tpsg"))
    if not series:
        return None
    svg = scatter_svg(
        series, title="Throughput per GPU against throughput per user", x_label=TPSU, y_label=TPSG, frontier=True
    )
    text = (
        "Upwards and to the right is better. On the frontier are the runs that no other exceeds in both; C is the"
        " number of requests in flight. Runs in which more than one request in a hundred failed are left out."
    )
    return PageSection("Throughput", text, svg=svg)


def latency_section(rows: Mapping[str, Sequence[Row]]) -> PageSection | None:
    """Return charts of latencies against the request rate; None if no deployment was measured at more than one rate."""
    charts: list[str] = []
    for name in LATENCIES:
        drawn = metric(name)
        series = series_of(_by_load(rows), lambda row: row.offered_requests_per_s or row.achieved_requests_per_s, drawn)
        if any(len({point.x for point in one_series.points}) > 1 for one_series in series):
            label = f"{drawn.title} ({drawn.units})"
            charts.append(lines_svg(series, title=f"{drawn.title} against load", x_label="requests/s", y_label=label))
    text = "At a rate: requests that were offered; in a closed loop: requests that were answered."
    return PageSection("Latency against load", text, svg="".join(charts)) if charts else None


def distribution_section(ttft: Sequence[Samples], itl: Sequence[Samples]) -> PageSection | None:
    """Return charts of the distributions of single requests' TTFT and of gaps between tokens; None without samples."""
    charts: list[str] = []
    for title, label, samples in (("Time to first token", "TTFT (ms)", ttft), ("Time between tokens", "ITL (ms)", itl)):
        known = [sample_set for sample_set in samples if sample_set.values]
        if known:
            charts.append(distribution_svg(known, title=title, x_label=label))
    text = "Over all requests of all runs that were kept one by one."
    return PageSection("Distributions", text, svg="".join(charts)) if charts else None


def _by_load(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    return {name: sorted(members, key=lambda row: RequestedLoad(row).level or 0.0) for name, members in rows.items()}


_TONES: dict[Verdict, Tone] = {"better": "good", "worse": "bad", "unclear": "quiet", "equal": "quiet"}


def comparison_page(comparison: Comparison, a: SideResults, b: SideResults) -> str:
    """Return the HTML page of a comparison; `a` and `b` are the loaded results of its sides.

    Charts precede the tables if there are several loads, and follow the table of a single load.

    Raises:
        KitError: matplotlib is not installed.
    """
    named = f"A is {comparison.a.name}, B is {comparison.b.name}."
    opening = PageSection("What is compared", "\n\n".join((named, *comparison.notes)))
    tables = [PageSection(heading(load), table=_table(load)) for load in comparison.loads]
    charts = list(_charts(comparison, a, b))
    sections = [opening, *charts, *tables] if len(tables) > 1 else [opening, *tables, *charts]
    return page(f"{comparison.a.name} against {comparison.b.name}", sections)


def _charts(comparison: Comparison, a: SideResults, b: SideResults) -> Iterator[PageSection]:
    """Yield the charts. Sides are named after their deployments if each has exactly one and the two differ."""
    sides = {"A": comparison.a, "B": comparison.b}
    deployments = [list(dict.fromkeys(map(deployment, side.rows))) for side in sides.values()]
    names = [f"{letter}: {side.name}" for letter, side in sides.items()]
    if deployments[0] != deployments[1] and all(len(each) == 1 for each in deployments):
        names = [f"{letter}: {each[0]}" for letter, each in zip(sides, deployments, strict=True)]
    rows = dict(zip(names, (comparison.a.rows, comparison.b.rows), strict=True))
    single = [(name, side.basis, side.latencies()) for name, side in zip(names, (a, b), strict=True)]
    ttft = [Samples(name, latencies.ttft_ms, basis) for name, basis, latencies in single]
    itl = [Samples(name, latencies.itl_ms, basis) for name, basis, latencies in single]
    sections = (pareto_section(rows), latency_section(rows), distribution_section(ttft, itl))
    return (section for section in sections if section)


def _table(load: LoadComparison) -> Table:
    rows = [
        (
            line.metric,
            line.a,
            line.b,
            Cell(line.change, _tone(line)),
            Cell(line.interval, "quiet"),
            Cell(line.verdict, _tone(line)),
        )
        for line in lines(load)
    ]
    return Table(("Metric", *COLUMNS[1:-1], "B is"), rows)


def _tone(line: Line) -> Tone:
    """Return the colour of a line; changes between single runs, which may be chance, have none."""
    return _TONES[line.verdict] if line.sure else ""
