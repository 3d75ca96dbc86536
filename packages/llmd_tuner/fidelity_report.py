"""Fidelity report: errors by group, subject and metric, as tables, Markdown, plain data, and a page with plots."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from llmd_base.metrics import METRICS, Metric
from llmd_base.records import collected
from llmd_base.row import Row
from llmd_bench.comparison import ForecastError, mean_absolute_error
from llmd_bench.loads import deployment
from llmd_bench.plots.charts import agreement_svg
from llmd_bench.plots.drawing import ChartPoint, ChartSeries
from llmd_bench.plots.page import Cell, PageSection, Table, page
from llmd_bench.texts import number, plain

from llmd_tuner.fidelity import METRICS_BY_SUBJECT, Case, ClaimSimulation, Omission, Standing

SUMMARY = ("of", "metric", "points", "mean error", "rehearsed", "worst", "at")
"""Column titles of a group's summary table; the column `rehearsed` has the mean error of rehearsals under the same
loads.
"""

STATEMENTS = ("published", "at", "range", "simulated", "outside by")

ENTRY = (
    *("standing", "counted", "subject", "load", "gpu", "image", "source", "metric", "units", "reference"),
    *("reference_basis", "simulated", "simulated_basis", "error", "rehearsed", "rehearsed_error"),
)
"""Keys of the JSON object for one metric of one measurement, in order."""

NOT_COUNTED = "Not counted."

ERROR = "Errors are simulated over measured, less one; mean errors are without their signs (MAPE)."


@dataclass(frozen=True)
class CaseFigure:
    """Error of one simulated metric against its measurement; `rehearsed` is the error of the same metric in a
    rehearsal, None without one.
    """

    case: Case
    compared: ForecastError
    rehearsed: ForecastError | None

    @property
    def name(self) -> str:
        """Deployment and load of the measurement, as a short text."""
        return named(self.case.reference)


@dataclass(frozen=True)
class Errors:
    """Errors of one metric in one group of measurements: of whole deployments, or of servers of one role."""

    subject: str
    metric: Metric
    entries: tuple[CaseFigure, ...]

    @property
    def title(self) -> str:
        """Title of the errors: subject and metric, such as `decode TPSG`."""
        return f"{self.subject} {self.metric.title}"

    @property
    def mean_absolute(self) -> float:
        """Mean absolute value of the simulation's relative errors (MAPE; 0.1 is 10 %)."""
        return mean_absolute_error([entry.compared for entry in self.entries])

    @property
    def worst(self) -> CaseFigure:
        """Metric of the measurement for which the simulation has the largest absolute error."""
        return max(self.entries, key=lambda entry: abs(entry.compared.error))

    @property
    def rehearsed_mean_absolute(self) -> float | None:
        """Mean absolute value of the rehearsals' relative errors (0.1 is 10 %); None without a rehearsal."""
        figures = [entry.rehearsed for entry in self.entries if entry.rehearsed]
        return mean_absolute_error(figures) if figures else None


@dataclass(frozen=True)
class CaseGroup:
    """Measurements with the same relation to the judged latency figures (`standing`), such as those that the figures
    were fitted to. Measurements of other vLLM images form one group for each image.
    """

    standing: Standing
    cases: tuple[Case, ...]
    image: str | None = None

    @property
    def title(self) -> str:
        """Title of the group of measurements: its relation to the latency figures, and the image where groups differ by
        it.
        """
        return self.standing.title if self.image is None else f"{self.standing.title}: {self.image}"

    @cached_property
    def metrics(self) -> tuple[Errors, ...]:
        """Errors of the simulation by subject and metric, for all metrics that measurements and simulations have in
        common.
        """
        entries: dict[tuple[str, str], list[CaseFigure]] = {}
        for case in self.cases:
            rehearsed = {figure.metric.name: figure for figure in case.rehearsed_figures}
            for figure in case.figures:
                name = figure.metric.name
                entry = CaseFigure(case, figure, rehearsed.get(name))
                entries.setdefault((case.reference.subject, name), []).append(entry)
        return tuple(
            Errors(subject, METRICS[name], tuple(own))
            for subject, names in METRICS_BY_SUBJECT.items()
            for name in names
            if (own := entries.get((subject, name)))
        )

    @property
    def circumstances(self) -> list[str]:
        """Lines of text on how the group's measurements were made: GPU, image, tool, and the notes of each."""
        rows = [case.reference for case in self.cases]
        seen = dict.fromkeys(f"{row.gpu}, {row.image or 'image not told'}, {row.origin.tool}" for row in rows)
        return [*seen, *dict.fromkeys(note for row in rows for note in row.notes)]


@dataclass(frozen=True)
class Report:
    """Content of a fidelity report. `figures` describes the judged latency figures and the images that they were
    measured with.
    """

    model: str
    gpu: str
    figures: str
    cases: tuple[Case, ...]
    omitted: tuple[Omission, ...] = ()
    statements: tuple[ClaimSimulation, ...] = ()

    @cached_property
    def groups(self) -> tuple[CaseGroup, ...]:
        """Non-empty groups of measurements; those whose errors count for the accuracy of the latency figures come
        first.
        """
        cases: dict[tuple[Standing, str | None], list[Case]] = {}
        for case in self.cases:
            image = case.reference.image if case.standing is Standing.OTHER_IMAGE else None
            cases.setdefault((case.standing, image), []).append(case)
        order = list(Standing)
        keys = sorted(cases, key=lambda key: order.index(key[0]))
        return tuple(CaseGroup(standing, tuple(cases[standing, image]), image) for standing, image in keys)

    def beyond(self, most_error: float) -> list[tuple[CaseGroup, Errors]]:
        """Return the metrics whose mean absolute error exceeds `most_error` (0.1 is 10 %), with their groups of
        measurements; only groups that count for the accuracy of the latency figures.
        """
        return [
            (group, errors)
            for group in self.groups
            if group.standing.counted
            for errors in group.metrics
            if errors.mean_absolute > most_error
        ]

    @property
    def counted(self) -> bool:
        """True if the report has errors that count for the accuracy of the latency figures."""
        return any(group.standing.counted and group.metrics for group in self.groups)


def named(row: Row) -> str:
    """Return a short name of a row's deployment and load: `decode tp2 2/256 C 64`, `8p-tp1-2d-tp4 5151/281 45/s`."""
    role = "" if row.subject == "end-to-end" else f"{row.subject} "
    level = f"C {row.concurrency:g}" if row.arrival == "closed" else f"{row.offered_requests_per_s:g}/s"
    return f"{role}{deployment(row)} {row.input_tokens:.0f}/{row.output_tokens:.0f} {level}"


@dataclass(frozen=True)
class FidelityVerdict:
    """Verdict on latency figures: the metrics whose mean absolute error in a counted group of measurements exceeds
    `most_error` (0.1 is 10 %). `counted` is False if there was no error to judge.
    """

    most_error: float
    counted: bool
    beyond: tuple[tuple[CaseGroup, Errors], ...]

    @property
    def passed(self) -> bool:
        """True if there were errors to judge, and all of them are within the limit."""
        return self.counted and not self.beyond

    def __str__(self) -> str:
        if not self.counted:
            return "There is no measurement whose errors count, so that --max-error has nothing to hold."
        if not self.beyond:
            return f"No mean error is above {self.most_error:.1%}."
        lines = [f"  {group.title}: {errors.title}, {errors.mean_absolute:.1%}" for group, errors in self.beyond]
        return "\n".join((f"Mean errors above {self.most_error:.1%}:", *lines))

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as the member `verdict` of the JSON report."""
        return {
            "passed": self.passed,
            "max_error": self.most_error,
            "why": str(self),
            "beyond": [
                {
                    "standing": group.standing.title,
                    "subject": errors.subject,
                    "metric": errors.metric.name,
                    "mean_absolute_error": errors.mean_absolute,
                }
                for group, errors in self.beyond
            ],
        }


def verdict_of(report: Report, most_error: float) -> FidelityVerdict:
    """Return the verdict on a report with `most_error` as the highest acceptable mean absolute error (0.1 is 10 %)."""
    return FidelityVerdict(most_error, report.counted, tuple(report.beyond(most_error)))


def about(report: Report) -> str:
    """Return an introductory sentence of the report: what was compared with what."""
    return (
        f"{report.model} on {report.gpu}: the event simulation with {report.figures}, under the loads of measurements. "
        f"{ERROR}"
    )


def title(group: CaseGroup) -> str:
    """Return the heading of a group's section in the report: the group's title with a capital; an image's name keeps
    its case.
    """
    return f"{group.title[0].upper()}{group.title[1:]}"


def heading(group: CaseGroup) -> str:
    """Return a sentence on which measurements a group has, and whether its errors count."""
    quiet = "" if group.standing.counted else f" {NOT_COUNTED}"
    return f"{group.standing.about[0].upper()}{group.standing.about[1:]}.{quiet}"


def summary(group: CaseGroup) -> list[tuple[str, ...]]:
    """Return the rows of the summary table of a group of measurements, one for each metric."""
    return [
        (
            errors.subject,
            f"{errors.metric.title} ({errors.metric.units})",
            str(len(errors.entries)),
            _mean(errors.mean_absolute if group.standing.has_mean else None),
            _mean(errors.rehearsed_mean_absolute if group.standing.has_mean else None),
            percent(errors.worst.compared.error),
            errors.worst.name,
        )
        for errors in group.metrics
    ]


def point_columns(group: CaseGroup, errors: Errors) -> tuple[str, ...]:
    """Return the column titles of the table with all measurements of a metric."""
    bases = sorted({entry.case.simulated.basis.value for entry in errors.entries})
    seen = "rehearsed (calibrated)" if group.standing.name == "REHEARSED" else "measured"
    simulated = (f"simulated ({', '.join(bases)})", "error")
    rehearsed = ("rehearsed (calibrated)", "error") if _has_rehearsed(errors) else ()
    return (f"{errors.title}, {errors.metric.units}", seen, *simulated, *rehearsed)


def points(errors: Errors) -> list[tuple[str, ...]]:
    """Return the rows of the table with all measurements of a metric and their errors, one for each load."""
    lines: list[tuple[str, ...]] = []
    for entry in errors.entries:
        own, other = entry.compared, entry.rehearsed
        cells = (entry.name, number(own.seen), number(own.predicted), percent(own.error))
        rehearsed = (number(other.predicted), percent(other.error)) if other else ("", "")
        lines.append((*cells, *(rehearsed if _has_rehearsed(errors) else ())))
    return lines


def statement_lines(report: Report) -> list[tuple[str, ...]]:
    """Return the rows of the table of published statements, one for each statement and point."""
    lines: list[tuple[str, ...]] = []
    for item in report.statements:
        least, most = (None if end is None else number(end) for end in item.published)
        if least is None or most is None:
            published = f"at most {most}" if least is None else f"at least {least}"
        else:
            published = least if least == most else f"{least} to {most}"
        simulated = "not reached" if item.simulated is None else number(item.simulated)
        lines.append((item.text, item.at, published, f"{simulated} ({item.basis.value})", outside(item)))
    return lines


def outside(statement: ClaimSimulation) -> str:
    """Return as text how far the simulated value is outside the published range."""
    if statement.error is None:
        return "-"
    return percent(statement.error) if statement.error else "within"


def percent(share: float) -> str:
    """Format an error, given as a share, as a percentage with its sign."""
    return f"{share:+.1%}"


def markdown(report: Report) -> str:
    """Return the whole fidelity report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def as_json(report: Report, verdict: FidelityVerdict | None = None) -> dict[str, Any]:
    """Return the whole fidelity report as the object of `--json`, with the verdict where one was asked for."""
    return {
        **collected("report", ("model", "gpu", "figures"), [report], {}),
        "groups": [_group_json(group) for group in report.groups],
        "points": list(_entries_json(report)),
        "statements": [_statement_json(item) for item in report.statements],
        "omitted": [str(item) for item in report.omitted],
        **({} if verdict is None else {"verdict": verdict.as_json()}),
    }


def json_lines(report: Report) -> str:
    """Return JSON Lines with one object for each metric of each measurement in the report."""
    return "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in _entries_json(report))


def _mean(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _has_rehearsed(errors: Errors) -> bool:
    return any(entry.rehearsed for entry in errors.entries)


def _markdown(report: Report) -> Iterator[str]:
    yield f"# Fidelity of simulated measurements: {plain(report.model)} on {plain(report.gpu)}\n"
    yield f"{plain(about(report))}\n"
    for group in report.groups:
        yield f"## {plain(title(group))}\n\n{plain(heading(group))}\n"
        yield from (f"- {plain(item)}" for item in group.circumstances)
        yield from _table(SUMMARY, summary(group))
        for errors in group.metrics:
            yield from _table(point_columns(group, errors), points(errors))
    if report.statements:
        yield "\n## Published statements"
        yield from _table(STATEMENTS, statement_lines(report))
    if report.omitted:
        yield "\n## Not compared\n"
        yield from (f"- {plain(str(item))}" for item in report.omitted)


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"\n| {' | '.join(map(plain, columns))} |"
    yield f"|{'|'.join('---' for _ in columns)}|"
    yield from (f"| {' | '.join(map(plain, line))} |" for line in lines)


def _group_json(group: CaseGroup) -> dict[str, Any]:
    metrics: list[dict[str, Any]] = [
        {
            "subject": errors.subject,
            "metric": errors.metric.name,
            "points": len(errors.entries),
            "mean_absolute_error": errors.mean_absolute if group.standing.has_mean else None,
            "rehearsed_mean_absolute_error": errors.rehearsed_mean_absolute if group.standing.has_mean else None,
            "worst_error": errors.worst.compared.error,
            "worst_at": errors.worst.name,
        }
        for errors in group.metrics
    ]
    keys = ("standing", "image", "counted", "about", "circumstances", "metrics")
    return collected("group", keys, (group, group.standing), {"standing": group.standing.title, "metrics": metrics})


def _entries_json(report: Report) -> Iterator[dict[str, Any]]:
    triples = (
        (group, errors, entry) for group in report.groups for errors in group.metrics for entry in errors.entries
    )
    for group, errors, entry in triples:
        own, other, reference = entry.compared, entry.rehearsed, entry.case.reference
        named = {
            "standing": group.standing.title,
            "load": entry.name,
            "source": reference.origin.tool,
            "metric": errors.metric.name,
            "reference": own.seen,
            "reference_basis": reference.basis.value,
            "simulated": own.predicted,
            "simulated_basis": entry.case.simulated.basis.value,
            "rehearsed": other and other.predicted,
            "rehearsed_error": other and other.error,
        }
        yield collected("entry", ENTRY, (group.standing, errors, reference, errors.metric, own), named)


def _statement_json(statement: ClaimSimulation) -> dict[str, Any]:
    keys = ("statement", "source", "at", "published", "simulated", "simulated_basis", "outside_by")
    named = {
        "statement": statement.text,
        "published": list(statement.published),
        "simulated_basis": statement.basis.value,
        "outside_by": statement.error,
    }
    return collected("statement", keys, [statement], named)


def html(report: Report) -> str:
    """Return the whole fidelity report as an HTML page.

    Raises:
        KitError: matplotlib is not installed.
    """
    return page(f"Fidelity of simulated measurements: {report.model} on {report.gpu}", list(_sections(report)))


def _sections(report: Report) -> Iterator[PageSection]:
    yield PageSection("What is compared", about(report))
    for group in report.groups:
        text = "\n\n".join((heading(group), *group.circumstances))
        yield PageSection(title(group), text, Table(SUMMARY, summary(group)))
    charts = "".join(_charts(report))
    if charts:
        yield PageSection("Simulated against measured", "On the line both are equal.", svg=charts)
    if report.statements:
        lines = [
            (*cells, Cell(outside, "good" if statement.error == 0 else "bad"))
            for statement, (*cells, outside) in zip(report.statements, statement_lines(report), strict=True)
        ]
        yield PageSection("Published statements", table=Table(STATEMENTS, lines))
    for group in report.groups:
        for errors in group.metrics:
            yield PageSection(
                f"{errors.title}, {group.title}", table=Table(point_columns(group, errors), points(errors))
            )
    if report.omitted:
        yield PageSection("Not compared", "\n\n".join(map(str, report.omitted)))


def _charts(report: Report) -> Iterator[str]:
    """Draw a chart for each metric, with a series for each group, subject and basis; other accelerators stay in their
    tables.
    """
    groups = [group for group in report.groups if group.standing is not Standing.OTHER_ACCELERATOR]
    rehearsed = any(group.standing is Standing.REHEARSED for group in groups)
    seen = "measured or rehearsed" if rehearsed else "measured"
    for name in dict.fromkeys(chain.from_iterable(METRICS_BY_SUBJECT.values())):
        of_metric = [(group, errors) for group in groups for errors in group.metrics if errors.metric.name == name]
        series: list[ChartSeries] = []
        for group, errors in of_metric:
            for basis in dict.fromkeys(entry.case.simulated.basis for entry in errors.entries):
                own = [entry.compared for entry in errors.entries if entry.case.simulated.basis is basis]
                points = [ChartPoint(figure.seen, figure.predicted) for figure in own if figure.predicted > 0]
                if points:
                    series.append(ChartSeries(f"{errors.subject}, {group.title}", points, basis))
        if series:
            metric = METRICS[name]
            yield agreement_svg(
                series,
                title=f"{metric.title} ({metric.units})",
                x_label=f"{seen} ({metric.units})",
                y_label=f"simulated ({metric.units})",
            )
