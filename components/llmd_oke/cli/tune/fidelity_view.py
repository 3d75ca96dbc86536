"""A fidelity report on the terminal."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console
from llmd_oke.cli.tables import Fitting
from llmd_oke.tuning.fidelity import texts
from llmd_oke.tuning.fidelity.report import Report


def show(report: Report, *, points: bool) -> None:
    """Prints errors by group, subject and metric; with `points`, every load too."""
    output = console.output()
    output.print(escape(texts.about(report)))
    for group in report.groups:
        output.print(f"\n[bold]{escape(group.title)}[/]  {escape(texts.heading(group))}")
        for each in group.circumstances:
            output.print(f"[dim]{escape(each)}[/]", soft_wrap=True)
        output.print(Fitting(_table(texts.SUMMARY, texts.summary(group), left=(0, 1, 6))))
        for errors in group.metrics if points else ():
            output.print("", Fitting(_table(texts.point_columns(group, errors), texts.points(errors))), sep="\n")
    if report.statements:
        output.print("\n[bold]published statements[/]")
        _show_statements(report)
    for each in report.omitted:
        output.print(f"[dim]not compared {escape(str(each))}[/]", soft_wrap=True)


def _show_statements(report: Report) -> None:
    """Each statement once, with its points below it."""
    for text, lines in groupby(texts.statement_lines(report), itemgetter(0)):
        console.output().print(escape(text))
        for _, at, published, simulated, outside in lines:
            console.output().print(escape(f"  at {at}: {published}, simulated {simulated}: {outside}"))


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if place in left else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    return table
