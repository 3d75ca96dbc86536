"""The plots of a run, each deployment a series of its own."""

from collections.abc import Mapping, Sequence

from llmd_oke.experiments.reporting.levels import deployment_of
from llmd_oke.experiments.runs.folders import RunFolder
from llmd_oke.plots.page import Section
from llmd_oke.plots.results import distribution_section, latency_section, pareto_section
from llmd_oke.plots.series import Samples
from llmd_oke.results.requests import FILE, Latencies
from llmd_oke.results.row import Row


def sections_with_charts(folder: RunFolder, rows: Sequence[Row]) -> list[Section]:
    """One section for each kind of plot that the rows have something for."""
    by_deployment: dict[str, list[Row]] = {}
    for row in rows:
        by_deployment.setdefault(deployment_of(row), []).append(row)
    sections = (pareto_section(by_deployment), latency_section(by_deployment), _distributions(folder, by_deployment))
    return [section for section in sections if section]


def _distributions(folder: RunFolder, by_deployment: Mapping[str, Sequence[Row]]) -> Section | None:
    """Only of a single level: requests of several levels in one distribution would say nothing."""
    levels = {
        (row.arrival, row.concurrency if row.arrival == "closed" else row.offered_requests_per_s)
        for rows in by_deployment.values()
        for row in rows
    }
    if len(levels) != 1:
        return None
    single = [(name, rows[0].basis, _latencies(folder, rows)) for name, rows in by_deployment.items()]
    ttft = [Samples(name, latencies.ttft_ms, basis) for name, basis, latencies in single]
    itl = [Samples(name, latencies.itl_ms, basis) for name, basis, latencies in single]
    return distribution_section(ttft, itl)


def _latencies(folder: RunFolder, rows: Sequence[Row]) -> Latencies:
    latencies = Latencies()
    for row in rows:
        with (folder.path / (row.origin.file or "")).with_name(FILE).open(encoding="utf-8") as lines:
            latencies.add(lines)
    return latencies
