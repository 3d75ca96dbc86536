"""The charts of results: throughput per GPU against throughput per user, latency against rate, distributions."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from llmd_oke.plots.charts import distribution_svg, lines_svg, scatter_svg
from llmd_oke.plots.page import Section
from llmd_oke.plots.series import Point, Samples, Series
from llmd_oke.results.frontier import served
from llmd_oke.results.loads import ARRIVALS, Load, deployment, grouped
from llmd_oke.results.metrics import Metric, metric
from llmd_oke.results.row import Basis, Row

LATENCIES = ("ttft_ms.p95", "itl_ms.p95", "e2e_ms.mean")
"""What is drawn against the rate of requests."""

TPSU = "TPSU (output tokens/s/user)"
TPSG = "TPSG (output tokens/s/GPU)"


def series_of(rows: Mapping[str, Sequence[Row]], x: Callable[[Row], float | None], y: Metric) -> list[Series]:
    """A series for each name, deployment, way of arrival and basis, joined in the order of rising load.

    Repeated runs of one load are one point, at their mean. A point's label is its load.
    """
    groups: dict[tuple[str, Basis], list[Point]] = {}
    for name, members in rows.items():
        names = _titles(name, members)
        for load, repeats in grouped(filter(served, members), by_deployment=True):
            for basis in dict.fromkeys(row.basis for row in repeats):
                point = _point(load, [row for row in repeats if row.basis is basis], x, y)
                if point:
                    groups.setdefault((names(load), basis), []).append(point)
    return [Series(title, points, basis) for (title, basis), points in groups.items()]


def _point(load: Load, repeats: Sequence[Row], x: Callable[[Row], float | None], y: Metric) -> Point | None:
    placed = [(x(row), y.of(row)) for row in repeats]
    known = [(place, value) for place, value in placed if place is not None and value is not None]
    if not known:
        return None
    return Point(fmean(place for place, _ in known), fmean(value for _, value in known), _label(load.row))


def _titles(name: str, rows: Sequence[Row]) -> Callable[[Load], str]:
    """How to call the series of a load: by its deployment and arrival too, where there are several."""
    deployments = len({deployment(row) for row in rows}) > 1 or not name
    arrivals = len({row.arrival for row in rows}) > 1

    def title(load: Load) -> str:
        arrival = ARRIVALS[load.row.arrival] if arrivals else ""
        return ", ".join(filter(None, (name, load.deployment if deployments else "", arrival)))

    return title


def pareto_section(rows: Mapping[str, Sequence[Row]]) -> Section | None:
    """Throughput per GPU against throughput per user, with the frontier; None where nothing served."""
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
    return Section("Throughput", text, svg=svg)


def latency_section(rows: Mapping[str, Sequence[Row]]) -> Section | None:
    """Latencies against the rate of requests; None where no deployment was measured at more than one."""
    charts: list[str] = []
    for name in LATENCIES:
        drawn = metric(name)
        series = series_of(_by_load(rows), lambda row: row.offered_requests_per_s or row.achieved_requests_per_s, drawn)
        if any(len({point.x for point in each.points}) > 1 for each in series):
            label = f"{drawn.title} ({drawn.units})"
            charts.append(lines_svg(series, title=f"{drawn.title} against load", x_label="requests/s", y_label=label))
    text = "At a rate: requests that were offered; in a closed loop: requests that were answered."
    return Section("Latency against load", text, svg="".join(charts)) if charts else None


def distribution_section(ttft: Sequence[Samples], itl: Sequence[Samples]) -> Section | None:
    """Distributions over single requests and single gaps between tokens; None where nothing has them."""
    charts: list[str] = []
    for title, label, samples in (("Time to first token", "TTFT (ms)", ttft), ("Time between tokens", "ITL (ms)", itl)):
        known = [each for each in samples if each.values]
        if known:
            charts.append(distribution_svg(known, title=title, x_label=label))
    text = "Over all requests of all runs that were kept one by one."
    return Section("Distributions", text, svg="".join(charts)) if charts else None


def _by_load(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    return {name: sorted(members, key=lambda row: Load(row).level or 0.0) for name, members in rows.items()}


def _label(row: Row) -> str:
    if row.arrival == "closed":
        return f"C={row.concurrency:g}" if row.concurrency else ""
    return f"{row.offered_requests_per_s:g}/s" if row.offered_requests_per_s else ""
