"""`llmd-oke history`: results of a stack over time."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from llmd_oke.cli import console, options
from llmd_oke.cli.results import History, history_address, show_rejected
from llmd_oke.cli.tables import Fitting, texts
from llmd_oke.errors import KitError

if TYPE_CHECKING:
    from llmd_oke.results.history import Run
    from llmd_oke.results.row import Row

app = typer.Typer(no_args_is_help=True, help="Results of a stack over time, by the configuration that they measured.")

_MOST = 20


@app.command("list")
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
    """The newest runs of a stack with their main figures: smoke benchmarks, and loads of `bench`, stage by stage."""
    found = _runs(history_address(history, project), stack)
    if config_hash:
        found = [run for run in found if any(each.startswith(config_hash) for each in run.config_hashes)]
    _print(found[:most], as_json=as_json)


@app.command("show")
def show(
    stack: options.Stack,
    run: Annotated[str, typer.Argument(help="latest, previous, a time, or a configuration hash.")] = "latest",
    history: History = None,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """One run whole: each of its rows, with all figures."""
    from llmd_oke.results import history as results_history  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.results.sides import open_store  # noqa: PLC0415

    mark = ":" if run.endswith("Z") else "@"
    name = results_history.stack_folder(stack)
    found = results_history.find(open_store(history_address(history, project)), f"{name}{mark}{run}")
    if as_json:
        _print(found, as_json=True)
        return
    for each in found:
        console.output().print(Text(each.name, style="bold"))
        for row in each.rows:
            console.output().print(_figures(row))


@app.command("push")
def push(
    stack: options.Stack,
    to: Annotated[str, typer.Argument(help="Folder or s3://BUCKET/PREFIX.")],
    history: History = None,
    project: options.Project = options.HERE,
) -> None:
    """Copy the runs of a stack that another history lacks to it."""
    from llmd_oke.results.history import copy_runs  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.results.sides import open_store  # noqa: PLC0415

    progress = console.progress()
    progress.step(f"copying the runs of {stack} to {to}")
    copied = copy_runs(open_store(history_address(history, project)), open_store(to), stack, progress.detail)
    console.output().print(f"{len(copied)} runs copied" if copied else "nothing new")


def _runs(address: str, stack: str) -> "list[Run]":
    from llmd_oke.results.history import runs, stacks  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.results.sides import open_store  # noqa: PLC0415

    store = open_store(address)
    found = runs(store, stack, loads=True)
    if not found:
        raise KitError(
            f"Stack {stack} has no results in {address}.", f"Stacks with results: {', '.join(stacks(store)) or 'none'}."
        )
    return found


def _print(found: "Sequence[Run]", *, as_json: bool) -> None:
    if as_json:
        documents = [_document(run) for run in found]
        typer.echo(json.dumps(documents, indent=2))
        return
    rows = [(run, row) for run in found for row in run.rows]
    show_rejected([rejected for run in found for rejected in run.found.rejected])
    several = len({row.model for _, row in rows}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=Text(_title(rows)), title_justify="left")
    table.add_column("run", no_wrap=True)
    table.add_column("config", no_wrap=True)
    table.add_column("deployment")
    table.add_column("load")
    for column in ("TTFT\np95 ms", "ITL\np95 ms", "output\ntokens/s"):
        table.add_column(column, justify="right")
    table.add_column("figures", no_wrap=True)
    for run, row in rows:
        table.add_row(*texts(run.time, (row.origin.config_hash or "-")[:8], *_cells(row, several=several)))
    console.output().print(Fitting(table))


def _document(run: "Run") -> dict[str, Any]:
    return {"run": run.name, "kind": run.kind, "rows": [row.model_dump(mode="json") for row in run.rows]}


def _title(rows: "Sequence[tuple[Run, Row]]") -> str:
    """The stack, and the model where it is one."""
    names = [*dict.fromkeys(run.stack for run, _ in rows), *dict.fromkeys(row.model for _, row in rows)]
    return ", ".join(names) if len(names) == 2 else names[0] if names else "no such run"


def _cells(row: "Row", *, several: bool) -> list[str]:
    from llmd_oke.plots.comparison_texts import number  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.results.loads import deployment, pace  # noqa: PLC0415

    values = (row.ttft_ms.p95, row.itl_ms.p95, row.output_tokens_per_s)
    figures = ["-" if value is None else number(value) for value in values]
    what = f"{row.model} {deployment(row)}" if several else deployment(row)
    return [what, pace(row), *figures, row.basis.value]


def _figures(row: "Row") -> Table:
    from llmd_oke.plots.comparison_texts import number  # noqa: PLC0415 - not needed by other commands
    from llmd_oke.results.loads import Load, deployment  # noqa: PLC0415
    from llmd_oke.results.metrics import METRICS  # noqa: PLC0415

    configuration = row.origin.config_hash or "unknown"
    title = f"{deployment(row)}: {Load(row)}; {row.basis.value} figures, configuration {configuration}"
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for metric in METRICS.values():
        value = metric.of(row)
        if value is not None:
            table.add_row(metric.title, number(value), metric.units)
    return table
