"""The fidelity report as one self-contained HTML page with its plots."""

from collections.abc import Iterator
from itertools import chain

from llmd_oke.plots.agreement import agreement_svg
from llmd_oke.plots.page import Cell, Section, Table, page
from llmd_oke.plots.series import Point, Series
from llmd_oke.results.metrics import METRICS
from llmd_oke.tuning.fidelity import texts
from llmd_oke.tuning.fidelity.cases import METRICS_BY_SUBJECT
from llmd_oke.tuning.fidelity.report import Errors, Group, Report
from llmd_oke.tuning.fidelity.standings import Standing


def html(report: Report) -> str:
    """The page.

    Raises:
        KitError: matplotlib is not installed.
    """
    return page(f"Fidelity of simulated measurements: {report.model} on {report.gpu}", list(_sections(report)))


def _sections(report: Report) -> Iterator[Section]:
    yield Section("What is compared", texts.about(report))
    for group in report.groups:
        told = "\n\n".join((texts.heading(group), *group.circumstances))
        yield Section(texts.title(group), told, Table(texts.SUMMARY, texts.summary(group)))
    charts = "".join(_charts(report))
    if charts:
        yield Section("Simulated against measured", "On the line both are equal.", svg=charts)
    if report.statements:
        lines = [
            (*cells, Cell(outside, "good" if each.error == 0 else "bad"))
            for each, (*cells, outside) in zip(report.statements, texts.statement_lines(report), strict=True)
        ]
        yield Section("Published statements", table=Table(texts.STATEMENTS, lines))
    for group in report.groups:
        for errors in group.metrics:
            yield Section(f"{errors.title}, {group.title}", table=_points(group, errors))
    if report.omitted:
        yield Section("Not compared", "\n\n".join(map(str, report.omitted)))


def _points(group: Group, errors: Errors) -> Table:
    return Table(texts.point_columns(group, errors), texts.points(errors))


def _charts(report: Report) -> Iterator[str]:
    """One for each metric, with a series for each group, subject and basis; other accelerators stay in their tables."""
    groups = [group for group in report.groups if group.standing is not Standing.OTHER_ACCELERATOR]
    rehearsed = any(group.standing is Standing.REHEARSED for group in groups)
    seen = "measured or rehearsed" if rehearsed else "measured"
    for name in dict.fromkeys(chain.from_iterable(METRICS_BY_SUBJECT.values())):
        series = [one for group in groups for errors in group.metrics for one in _series(group, errors, name)]
        if series:
            metric = METRICS[name]
            yield agreement_svg(
                series,
                title=f"{metric.title} ({metric.units})",
                x_label=f"{seen} ({metric.units})",
                y_label=f"simulated ({metric.units})",
            )


def _series(group: Group, errors: Errors, name: str) -> Iterator[Series]:
    if errors.metric.name != name:
        return
    for basis in dict.fromkeys(entry.case.simulated.basis for entry in errors.entries):
        own = [entry.compared for entry in errors.entries if entry.case.simulated.basis is basis]
        points = [Point(each.seen, each.predicted) for each in own if each.predicted > 0]
        if points:
            yield Series(f"{errors.subject}, {group.title}", points, basis)
