"""`llmd-oke tune findings`: does the event simulation say what others have published?"""

import json
from collections import Counter

import typer
from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console, options
from llmd_oke.cli.tables import Fitting
from llmd_oke.tuning.proving.checks import Outcome, Verdict, check_findings
from llmd_oke.tuning.proving.findings import published_findings

_COLOURS: dict[Verdict, str] = {"hit": "green", "known miss": "yellow", "miss": "red", "unexpected hit": "red"}

_SHORT_UNITS = {"requests/s": "qps", "of prefill capacity": "of capacity"}


def findings(as_json: options.Json = False) -> None:
    """Hold the event simulation against published findings: hits, and misses with their reasons.

    Takes some seconds. Ends with exit code 1 where something misses that is not known to miss, or the other way round.
    """
    outcomes = check_findings(published_findings(), console.progress())
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in outcomes], indent=2))
    else:
        console.output().print(Fitting(_table(outcomes)))
        counts = Counter(each.verdict for each in outcomes)
        console.output().print(f"\n{', '.join(f'{verdict}: {count}' for verdict, count in counts.items())}")
        for why in dict.fromkeys(each.why for each in outcomes if each.why):
            names = ", ".join(dict.fromkeys(each.finding.name for each in outcomes if each.why == why))
            console.output().print(f"known miss of {names}: {why}", markup=False, soft_wrap=True)
    if any(each.verdict in {"miss", "unexpected hit"} for each in outcomes):
        raise typer.Exit(1)


def _plain(each: Outcome) -> dict[str, object]:
    return {
        "finding": each.finding.name,
        "statement": each.finding.statement,
        "source": each.finding.source,
        "at": each.at,
        "unit": each.unit,
        "basis": each.basis.value,
        "predicted": each.predicted,
        "accepted": each.accepted,
        "verdict": each.verdict,
        "why": each.why,
    }


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("finding", "at", "predicted", "accepted", "basis", "verdict"):
        table.add_column(column, justify="right" if column == "at" else "left")
    for each in outcomes:
        colour = _COLOURS[each.verdict]
        cells = (
            each.finding.name,
            f"{each.at:g} {_SHORT_UNITS.get(each.unit, each.unit)}",
            each.predicted,
            each.accepted,
            each.basis.value,
        )
        table.add_row(*map(escape, cells), f"[{colour}]{each.verdict}[/]")
    return table
