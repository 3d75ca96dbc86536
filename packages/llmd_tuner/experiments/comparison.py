"""Comparison of a run's deployments: tables, Markdown, and a page with plots."""

from collections.abc import Mapping, Sequence
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
"""Rows by deployment and level of load: one row for each random seed."""


def write(folder: RunFolder) -> list[Row]:
    """Write the comparison of a run's deployments as Markdown and HTML, and return the rows that were compared.

    Raises:
        KitError: matplotlib is not installed; the Markdown file has been written all the same.
    """
    from llmd_bench.plots.page import page  # noqa: PLC0415 - brings jinja2

    rows = folder.gather()
    comparison = tables(folder, rows)
    introduction = _introduction(folder.state)
    files = ((row, (row.origin.file or "").removesuffix("/row.json")) for row in rows)
    notes = [f"{file}: {'; '.join(row.notes)}" for row, file in files if row.notes]
    title = f"Experiment {folder.path.parent.name}, stack {folder.state.settings.stack}"
    parts = [f"# {title}", introduction]
    for heading, table in comparison:
        marks = ["---:" if numeric else "---" for numeric in table.numeric]
        lines = [list(table.columns), marks, *([cell.text for cell in row] for row in table.cells)]
        parts.append(f"## {heading}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    if notes:
        parts.append("## Remarks\n\n" + "\n".join(f"- {note}" for note in notes))
    write_whole(folder.path / MARKDOWN, "\n\n".join(parts) + "\n")
    by_deployment: dict[str, list[Row]] = {}
    for row in rows:
        by_deployment.setdefault(deployment_of(row), []).append(row)
    plots = (pareto_section(by_deployment), latency_section(by_deployment), _distributions(folder, by_deployment))
    sections = [
        PageSection("What this is", introduction),
        *(PageSection(heading, table=table) for heading, table in comparison),
        *(section for section in plots if section),
        *([PageSection("Remarks", "\n\n".join(notes))] if notes else []),
    ]
    write_whole(folder.path / HTML, page(title, sections))
    return rows


def tables(folder: RunFolder, rows: Sequence[Row], *, brief: bool = False) -> list[tuple[str, Table]]:
    """Return titled tables of a run: the results, then the difference of each deployment from the baseline deployment
    at the same level of load. With `brief`, only the main metrics are shown.
    """
    by_level = groupby(rows, lambda row: (deployment_of(row), (row.origin.file or "").split("/")[1].rsplit("-s", 1)[0]))
    levels = {name: list(group) for name, group in by_level}
    candidates = [METRICS[name] for name in (_BRIEF if brief else (*_BRIEF, *_FURTHER))]
    metrics = [metric for metric in candidates if any(metric.of(row) is not None for row in rows)]
    comparison = [("Results", _results(levels, metrics, brief=brief))]
    differences = _differences(folder, levels, metrics)
    return [*comparison, (f"Against {baseline_of(folder)}", differences)] if differences.rows else comparison


def baseline_of(folder: RunFolder) -> str:
    """Return the name of the deployment that the others are compared with: the recipe's baseline, or the run's first
    one.
    """
    names = list(folder.deployments())
    baseline = folder.recipe.baseline
    return baseline if baseline in names else names[0]


def _results(levels: Levels, metrics: Sequence[Metric], *, brief: bool) -> Table:
    further = [] if brief else ["GPUs", "n"]
    columns = ["deployment", "level", *(metric.title for metric in metrics), "failed", "basis", *further]
    lines: list[list[str | Cell]] = []
    for (deployment, level), rows in levels.items():
        failed = sum(row.failures for row in rows)
        values = [_values(rows, metric) for metric in metrics]
        numbers = [number(fmean(metric_values)) if metric_values else "-" for metric_values in values]
        cells = [Cell(str(failed), "bad" if failed else ""), Cell(rows[0].basis.value, "quiet")]
        further_cells = [] if brief else [str(rows[0].gpus_counted), str(len(rows))]
        lines.append([deployment, level, *numbers, *cells, *further_cells])
    return Table(columns, lines)


def _values(rows: Sequence[Row], metric: Metric) -> tuple[float, ...]:
    return tuple(value for row in rows if (value := metric.of(row)) is not None)


def _differences(folder: RunFolder, levels: Levels, metrics: Sequence[Metric]) -> Table:
    """Compare what was measured in the same way: whole deployments, or servers of one kind."""
    baseline = baseline_of(folder)
    lines: list[list[str | Cell]] = []
    for (deployment, level), rows in levels.items():
        others = levels.get((baseline, level))
        if deployment != baseline and others and others[0].subject == rows[0].subject:
            changes = (_change(metric, _values(rows, metric), _values(others, metric)) for metric in metrics)
            lines.append([deployment, level, *changes])
    return Table(["deployment", "level", *(metric.title for metric in metrics)], lines)


def _change(metric: Metric, own: tuple[float, ...], other: tuple[float, ...]) -> Cell:
    """Return the relative change from the baseline's values, with its interval of confidence where there are seeds."""
    change = MetricChange(metric, other, own) if own and other else None
    if change is None or change.relative is None:
        return Cell("-")
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


def deployment_of(row: Row) -> str:
    """Return the name of the deployment that a row was measured on."""
    return (row.origin.file or "").split("/")[0]


def _distributions(folder: RunFolder, by_deployment: Mapping[str, Sequence[Row]]) -> PageSection | None:
    """Plot the distributions of a single level; None for several, which mixed would say nothing."""
    levels = {
        (row.arrival, row.concurrency if row.arrival == "closed" else row.offered_requests_per_s)
        for rows in by_deployment.values()
        for row in rows
    }
    if len(levels) != 1:
        return None
    ttft, itl = list[Samples](), list[Samples]()
    for name, rows in by_deployment.items():
        latencies = Latencies()
        for row in rows:
            with (folder.path / (row.origin.file or "")).with_name(REQUESTS_FILE).open(encoding="utf-8") as lines:
                latencies.add(lines)
        ttft.append(Samples(name, latencies.ttft_ms, rows[0].basis))
        itl.append(Samples(name, latencies.itl_ms, rows[0].basis))
    return distribution_section(ttft, itl)
