"""`llmd-oke compare`, `llmd-oke history`: stored results, of one stack over time or of two runs."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.documents import explain
from llmd_base.errors import KitError
from llmd_base.metrics import METRICS
from llmd_base.row import Row
from llmd_bench import comparison, texts
from llmd_bench import history as runs
from llmd_bench.comparison import Comparison, LoadComparison
from llmd_bench.files import CatalogueNames, Hints, Rejection, make_folder, write_whole
from llmd_bench.history import SideResults, StoredRun, load_side, open_store
from llmd_bench.loads import RequestedLoad, deployment, pace
from llmd_bench.texts import number
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmd_oke.catalogue import gpu_names
from llmd_oke.catalogue.models import names_by_repository
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import FittingTable, plain_cells

MAX_REJECTED = 20

_MOST = 20

History = Annotated[
    str | None,
    typer.Option(
        "--history",
        help="Folder or s3://BUCKET/PREFIX of earlier results; `reports` in the project if left out.",
        envvar="LLMD_OKE_HISTORY",
    ),
]

Hint = Annotated[
    list[str] | None,
    typer.Option("--hint", help="What a file leaves out, as NAME=VALUE, such as gpus=16 or topology=8p-tp1-2d-tp4."),
]

_HINTS = TypeAdapter(Hints)

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

    Runs of the same load count as repeats, which determine the certainty of a change.
    """

    gates = comparison.parse_gates(fail_on or ())
    hints = [parse_hints([*(hint or ()), *(own or ())]) for own in (hint_a, hint_b)]
    store = open_store(history_address(history, project))
    loaded = [load_side(name, store, own) for name, own in zip((a, b), hints, strict=True)]
    show_rejected([item for side in loaded for item in side.rejected])
    compared = comparison.compare(loaded[0].side, loaded[1].side)
    breaches = comparison.breaches(gates, compared)
    _write(compared, loaded, html, markdown)
    if as_json:
        document = {**comparison.summarize(compared), "breaches": [str(breach) for breach in breaches]}
        console.show_json(document)
    else:
        out = console.output()
        for letter, side in (("A", compared.a), ("B", compared.b)):
            console.show_line(f"{letter}  {side.name} ({' and '.join(side.bases)})")
        for load in compared.loads:
            out.print(FittingTable(_table(load)))
        for note in compared.notes:
            out.print(f"note: {note}", style="dim", markup=False)
    for breach in breaches:
        console.show_error(KitError(str(breach)))
    if breaches:
        raise typer.Exit(1)


def _write(compared: Comparison, loaded: Sequence[SideResults], html: Path | None, markdown: Path | None) -> None:
    if html:
        from llmd_bench.plots.results import comparison_page  # noqa: PLC0415 - brings matplotlib

        console.errors().print(f"[dim]drawing {html}[/]")
        make_folder(html.parent)
        write_whole(html, comparison_page(compared, *loaded))
    if markdown:
        from llmd_bench.texts import markdown as text_of  # noqa: PLC0415

        make_folder(markdown.parent)
        write_whole(markdown, text_of(compared))


def _table(load: LoadComparison) -> Table:

    table = Table(title=Text(texts.heading(load)), title_justify="left")
    for index, column in enumerate(texts.COLUMNS):
        table.add_column(column, justify="right" if 0 < index < len(texts.COLUMNS) - 1 else "left")
    for line in texts.lines(load):
        verdict = Text(line.verdict, style=_STYLES[line.verdict] if line.sure else "")
        table.add_row(*plain_cells(line.metric, line.a, line.b, line.change, line.interval, verdict))
    return table


history_app = typer.Typer(
    no_args_is_help=True, help="Results of a stack over time, by the configuration that they measured."
)


@history_app.command("list")
def list_runs(
    stack: options.Stack,
    config_hash: Annotated[
        str | None, typer.Option(help="Only runs of this configuration; its first digits do.")
    ] = None,
    most: Annotated[int, typer.Option(help="How many of the newest to show.", min=1)] = _MOST,
    history: History = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """List the newest runs of a stack with their main figures: smoke benchmarks, and stages of `bench`."""
    items = _runs(history_address(history, project), stack)
    if config_hash:
        items = [run for run in items if any(digest.startswith(config_hash) for digest in run.config_hashes)]
    _print(items[:most], as_json=as_json)


@history_app.command("show")
def show(
    stack: options.Stack,
    run: Annotated[str, typer.Argument(help="latest, previous, a time, or a configuration hash.")] = "latest",
    history: History = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Show one run in full: each of its rows, with all figures."""

    mark = ":" if run.endswith("Z") else "@"
    name = runs.stack_folder(stack)
    items = runs.find(open_store(history_address(history, project)), f"{name}{mark}{run}")
    if as_json:
        _print(items, as_json=True)
        return
    for item in items:
        console.output().print(Text(item.name, style="bold"))
        for row in item.rows:
            console.output().print(_figures(row))


@history_app.command("push")
def push(
    stack: options.Stack,
    to: Annotated[str, typer.Argument(help="Folder or s3://BUCKET/PREFIX.")],
    history: History = None,
    project: options.Project = options.HERE,
) -> None:
    """Copy the runs of a stack to another history that lacks them."""

    progress = console.progress()
    progress.step(f"copying the runs of {stack} to {to}")
    copied = runs.copy_runs(open_store(history_address(history, project)), open_store(to), stack, progress.detail)
    console.output().print(f"{len(copied)} runs copied" if copied else "nothing new")


def _runs(address: str, stack: str) -> list[StoredRun]:

    store = open_store(address)
    items = runs.runs(store, stack, loads=True)
    if not items:
        raise KitError(
            f"Stack {stack} has no results in {address}.",
            f"Stacks with results: {', '.join(runs.stacks(store)) or 'none'}.",
        )
    return items


def _print(items: Sequence[StoredRun], *, as_json: bool) -> None:
    if as_json:
        documents = [
            {"run": run.name, "kind": run.kind, "rows": [row.model_dump(mode="json") for row in run.rows]}
            for run in items
        ]
        console.show_json(documents)
        return
    rows = [(run, row) for run in items for row in run.rows]
    show_rejected([rejected for run in items for rejected in run.found.rejected])
    several = len({row.model for _, row in rows}) > 1
    names = [*dict.fromkeys(run.stack for run, _ in rows), *dict.fromkeys(row.model for _, row in rows)]
    title = Text(", ".join(names) if len(names) == 2 else names[0] if names else "no such run")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    table.add_column("run", no_wrap=True)
    table.add_column("config", no_wrap=True)
    table.add_column("deployment")
    table.add_column("load")
    for column in ("TTFT\np95 ms", "ITL\np95 ms", "output\ntokens/s"):
        table.add_column(column, justify="right")
    table.add_column("figures", no_wrap=True)
    for run, row in rows:
        values = (row.ttft_ms.p95, row.itl_ms.p95, row.output_tokens_per_s)
        figures = ["-" if value is None else number(value) for value in values]
        what = f"{row.model} {deployment(row)}" if several else deployment(row)
        table.add_row(
            *plain_cells(run.time, (row.origin.config_hash or "-")[:8], what, pace(row), *figures, row.basis.value)
        )
    console.output().print(FittingTable(table))


def _figures(row: Row) -> Table:

    configuration = row.origin.config_hash or "unknown"
    title = f"{deployment(row)}: {RequestedLoad(row)}; {row.basis.value} figures, configuration {configuration}"
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for metric in METRICS.values():
        value = metric.of(row)
        if value is not None:
            table.add_row(metric.title, number(value), metric.units)
    return table


def history_address(history: str | None, project: Path) -> str:
    """Return the path or URL of the history of stored results: `history`, or the project's default if None."""
    return history or str(project / "reports")


def parse_hints(texts: Iterable[str]) -> Hints:
    """Return facts about a deployment from texts such as `gpus=16`, with the catalogue's names of models and GPUs.

    Raises:
        KitError: a name is unknown, or a value is invalid.
    """
    known = [field.name for field in fields(Hints) if field.name not in {"names", "notes"}]
    values: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or name not in known:
            raise KitError(f"{text!r} is no hint.", f"A hint is NAME=VALUE; names are {', '.join(known)}.")
        values[name] = value
    try:
        names = CatalogueNames(names_by_repository(), tuple(gpu_names()))
        return replace(_HINTS.validate_python(values), names=names)
    except ValidationError as error:
        raise KitError(f"A hint has an impossible value: {explain(error)}.") from error


def show_rejected(rejected: Sequence[Rejection]) -> None:
    """Show the rows of results that could not be read, by file and line."""
    for item in rejected[:MAX_REJECTED]:
        console.errors().print(f"[magenta]not read[/] {escape(str(item))}", soft_wrap=True)
    if len(rejected) > MAX_REJECTED:
        console.errors().print(f"[magenta]not read[/] and {len(rejected) - MAX_REJECTED} more")
