"""Comparison of a run's deployments: tables, Markdown, and a page with plots."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from statistics import fmean

from llmd_base.metrics import METRICS, Metric
from llmd_base.row import Row
from llmd_bench.comparison import MetricChange, Verdict
from llmd_bench.files import REQUESTS_FILE, Latencies, write_whole
from llmd_bench.plots.drawing import Samples
from llmd_bench.plots.page import Cell, PageSection, Table, Tone
from llmd_bench.plots.results import distribution_section, latency_section, pareto_section
from llmd_bench.texts import number

from llmd_tuner.experiments.runs import RunFolder, RunState

MARKDOWN = "report.md"
HTML = "report.html"

_BRIEF = (
    "achieved_requests_per_s",
    "ttft_ms.mean",
    "ttft_ms.p95",
    "itl_ms.mean",
    "itl_ms.p95",
    "e2e_ms.mean",
    "tpsg",
    "tpsu",
)
"""What fits a terminal."""

_FURTHER = ("e2e_ms.p95", "goodput_share", "usd_per_million_output_tokens")

_TONES: dict[Verdict, Tone] = {"better": "good", "worse": "bad", "unclear": "quiet", "equal": "quiet"}

_EXPLANATION = (
    "TPSG: output tokens per second and GPU. TPSU: output tokens per second and user, over everything in flight. "
    "Requests are per second, the price is in dollars for a million output tokens, latencies are milliseconds of model "
    "time. Levels with several seeds (n) show the mean over them, and changes their interval of 95 % confidence."
)

Levels = dict[tuple[str, str], list[Row]]
"""The rows of each deployment and level: one for each seed."""


def write(folder: RunFolder) -> list[Row]:
    """Write the comparison as Markdown and HTML, and return the rows that it is made from.

    Raises:
        KitError: matplotlib is not installed; the Markdown is there then.
    """
    from llmd_bench.plots.page import page  # noqa: PLC0415 - brings jinja2

    rows = folder.gather()
    comparison = tables(folder, rows)
    introduction, notes = _introduction(folder.state), _notes(rows)
    title = f"Experiment {folder.path.parent.name}, stack {folder.state.settings.stack}"
    write_whole(folder.path / MARKDOWN, _markdown(title, introduction, comparison, notes))
    sections = [
        PageSection("What this is", introduction),
        *(PageSection(heading, table=table) for heading, table in comparison),
    ]
    sections += sections_with_charts(folder, rows)
    if notes:
        sections.append(PageSection("Remarks", "\n\n".join(notes)))
    write_whole(folder.path / HTML, page(title, sections))
    return rows


def tables(folder: RunFolder, rows: Sequence[Row], *, brief: bool = False) -> list[tuple[str, Table]]:
    """Return the table of results, then that of each deployment's difference from the baseline at the same level."""
    levels = levels_of(rows)
    metrics = _metrics(rows, brief=brief)
    comparison = [("Results", _results(levels, metrics, brief=brief))]
    differences = _differences(folder, levels, metrics)
    return [*comparison, (f"Against {baseline_of(folder)}", differences)] if differences.rows else comparison


def baseline_of(folder: RunFolder) -> str:
    """Return the deployment that the others are compared with: the recipe's, or the first that the run has."""
    names = list(folder.deployments())
    baseline = folder.recipe.baseline
    return baseline if baseline in names else names[0]


def _metrics(rows: Sequence[Row], *, brief: bool) -> list[Metric]:
    """Return the metrics that any row has."""
    candidates = [METRICS[name] for name in (_BRIEF if brief else (*_BRIEF, *_FURTHER))]
    return [metric for metric in candidates if any(metric.of(row) is not None for row in rows)]


def _results(levels: Levels, metrics: Sequence[Metric], *, brief: bool) -> Table:
    further = [] if brief else ["GPUs", "n"]
    columns = ["deployment", "level", *(metric.title for metric in metrics), "failed", "basis", *further]
    return Table(columns, [_result(*name, rows, metrics)[: len(columns)] for name, rows in levels.items()])


def _result(deployment: str, level: str, rows: Sequence[Row], metrics: Sequence[Metric]) -> list[str | Cell]:
    failed = sum(row.failures for row in rows)
    values = [_values(rows, metric) for metric in metrics]
    numbers = [number(fmean(metric_values)) if metric_values else "-" for metric_values in values]
    failures = Cell(str(failed), "bad" if failed else "")
    basis = Cell(rows[0].basis.value, "quiet")
    return [deployment, level, *numbers, failures, basis, str(rows[0].gpus_counted), str(len(rows))]


def _values(rows: Sequence[Row], metric: Metric) -> tuple[float, ...]:
    return tuple(value for row in rows if (value := metric.of(row)) is not None)


def _differences(folder: RunFolder, levels: Levels, metrics: Sequence[Metric]) -> Table:
    """Compare what was measured in the same way: whole deployments, or servers of one kind."""
    baseline = baseline_of(folder)
    rows = [
        [deployment, level, *_changes(rows, others, metrics)]
        for (deployment, level), rows in levels.items()
        if deployment != baseline and (others := levels.get((baseline, level))) and others[0].subject == rows[0].subject
    ]
    return Table(["deployment", "level", *(metric.title for metric in metrics)], rows)


def _changes(rows: Sequence[Row], others: Sequence[Row], metrics: Sequence[Metric]) -> Iterator[Cell]:
    for metric in metrics:
        own, other = _values(rows, metric), _values(others, metric)
        change = MetricChange(metric, other, own) if own and other else None
        yield _change(change) if change and change.relative is not None else Cell("-")


def _change(change: MetricChange) -> Cell:
    interval = change.relative_interval
    confidence = f" ({interval[0]:+.0%} … {interval[1]:+.0%})" if interval else ""
    return Cell(f"{change.relative:+.0%}{confidence}", _TONES[change.verdict])


def _introduction(state: RunState) -> str:
    settings = state.settings
    paragraphs = [
        f"Begun {_moment(state.started)}, {f'ended {_moment(state.ended)}' if state.ended else 'not ended yet'}."
    ]
    if settings.rehearsed:
        paragraphs.append(
            f"Rehearsed, not measured: simulated are {', '.join(state.simulated)}. Their latencies come from a model "
            f"that was fitted to published measurements. Model time is wall time / {settings.time_scale:g}."
        )
    if settings.most_requests:
        paragraphs.append(f"Scaled down: at most {settings.most_requests} requests at each level.")
    failed = {name: standing for name, standing in state.deployments.items() if standing.phase == "failed"}
    paragraphs += [f"{name} failed: {standing.cause}" for name, standing in failed.items()]
    return "\n\n".join([*paragraphs, _EXPLANATION])


def _moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M UTC")


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return one line for each measurement that has remarks."""
    return [f"{(row.origin.file or '').removesuffix('/row.json')}: {'; '.join(row.notes)}" for row in rows if row.notes]


def _markdown(title: str, introduction: str, comparison: Sequence[tuple[str, Table]], notes: Sequence[str]) -> str:
    parts = [f"# {title}", introduction]
    parts += [f"## {heading}\n\n{_markdown_table(table)}" for heading, table in comparison]
    if notes:
        parts.append("## Remarks\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    marks = ["---:" if numeric else "---" for numeric in table.numeric]
    lines = [list(table.columns), marks, *([cell.text for cell in row] for row in table.cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def deployment_of(row: Row) -> str:
    """Return the name of the deployment that a row of a run is about."""
    return (row.origin.file or "").split("/")[0]


def level_of(row: Row) -> str:
    """Return the name of the load level, the same for all seeds and deployments."""
    return (row.origin.file or "").split("/")[1].rsplit("-s", 1)[0]


def levels_of(rows: Sequence[Row]) -> Levels:
    """Group rows that are in the order of a recipe."""

    def key(row: Row) -> tuple[str, str]:
        return deployment_of(row), level_of(row)

    return {name: list(group) for name, group in groupby(rows, key)}


def sections_with_charts(folder: RunFolder, rows: Sequence[Row]) -> list[PageSection]:
    """Return one section for each kind of plot that the rows have something for."""
    by_deployment: dict[str, list[Row]] = {}
    for row in rows:
        by_deployment.setdefault(deployment_of(row), []).append(row)
    sections = (pareto_section(by_deployment), latency_section(by_deployment), _distributions(folder, by_deployment))
    return [section for section in sections if section]


def _distributions(folder: RunFolder, by_deployment: Mapping[str, Sequence[Row]]) -> PageSection | None:
    """Plot the distributions of a single level; None for several, which mixed would say nothing."""
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
        with (folder.path / (row.origin.file or "")).with_name(REQUESTS_FILE).open(encoding="utf-8") as lines:
            latencies.add(lines)
    return latencies
