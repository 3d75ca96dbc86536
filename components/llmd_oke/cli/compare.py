"""`llmd-oke compare`: what changed between two sets of results, how sure that is, and whether a pipeline may go on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from llmd_oke.cli import console, options
from llmd_oke.cli.results import Hint, History, history_address, parse_hints, show_rejected
from llmd_oke.cli.tables import Fitting, texts
from llmd_oke.errors import KitError

if TYPE_CHECKING:
    from llmd_oke.results.comparison import Comparison, LoadComparison
    from llmd_oke.results.sides import Loaded

_SIDE = "A file or folder of results, or a run: STACK@latest, STACK@previous, STACK:TIME, STACK@CONFIGURATION-HASH."
_STYLES = {"better": "green", "worse": "red", "unclear": "dim", "equal": "dim"}


def compare(
    a: Annotated[str, typer.Argument(help=f"What to compare with. {_SIDE}")],
    b: Annotated[str, typer.Argument(help="What is judged, named likewise.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with charts to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the tables to this file.")] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help="Condition that ends the command with exit code 1, such as ttft_ms.p95>+10%."),
    ] = None,
    hint: Hint = None,
    hint_a: Annotated[list[str] | None, typer.Option("--hint-a", help="A hint for A alone.")] = None,
    hint_b: Annotated[list[str] | None, typer.Option("--hint-b", help="A hint for B alone.")] = None,
    history: History = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Compare results load by load: deployments, configurations, or one configuration at two times.

    Runs of the same load count as repeats, from which follows how sure a change is.
    """
    from llmd_oke.results import comparison, gate, sides  # noqa: PLC0415 - not needed by other commands

    gates = gate.parse_gates(fail_on or ())
    hints = [parse_hints([*(hint or ()), *(own or ())]) for own in (hint_a, hint_b)]
    store = sides.open_store(history_address(history, project))
    loaded = [sides.load_side(name, store, own) for name, own in zip((a, b), hints, strict=True)]
    show_rejected([each for side in loaded for each in side.rejected])
    compared = comparison.compare(loaded[0].side, loaded[1].side)
    breaches = gate.breaches(gates, compared)
    _write(compared, loaded, html, markdown)
    if as_json:
        document = {**comparison.summarize(compared), "breaches": [str(breach) for breach in breaches]}
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(compared)
    for breach in breaches:
        console.show_error(KitError(str(breach)))
    if breaches:
        raise typer.Exit(1)


def _write(compared: "Comparison", loaded: "Sequence[Loaded]", html: Path | None, markdown: Path | None) -> None:
    if html:
        from llmd_oke.plots.comparison_page import comparison_page  # noqa: PLC0415 - brings matplotlib

        console.errors().print(f"[dim]drawing {html}[/]")
        _save(html, comparison_page(compared, *loaded))
    if markdown:
        from llmd_oke.plots.comparison_texts import markdown as text_of  # noqa: PLC0415

        _save(markdown, text_of(compared))


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KitError(f"{path} can't be written: {error.strerror}") from error


def _show(compared: "Comparison") -> None:
    out = console.output()
    for letter, side in (("A", compared.a), ("B", compared.b)):
        out.print(f"{letter}  {side.name} ({' and '.join(side.bases)})", markup=False, soft_wrap=True)
    for load in compared.loads:
        out.print(Fitting(_table(load)))
    for note in compared.notes:
        out.print(f"note: {note}", style="dim", markup=False)


def _table(load: "LoadComparison") -> Table:
    from llmd_oke.plots.comparison_texts import COLUMNS, heading, lines  # noqa: PLC0415

    table = Table(title=Text(heading(load)), title_justify="left")
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if 0 < index < len(COLUMNS) - 1 else "left")
    for line in lines(load):
        verdict = Text(line.verdict, style=_STYLES[line.verdict] if line.sure else "")
        table.add_row(*texts(line.metric, line.a, line.b, line.change, line.interval, verdict))
    return table
