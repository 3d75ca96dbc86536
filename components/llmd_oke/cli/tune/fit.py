"""`llmd-oke tune fit`: latency figures from measured rows."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from llmd_oke.catalogue import Node, node_of_gpu
from llmd_oke.cli import console, options
from llmd_oke.cli.tables import Fitting
from llmd_oke.cli.tune import fitted, import_rows, inputs
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.rows import kept_rows, rows_file
from llmd_oke.results.files import read_rows, write_whole
from llmd_oke.results.row import CONDITIONS, Row
from llmd_oke.tuning.calibration.calibrating import calibrate
from llmd_oke.tuning.measurements.published import published_names, published_points
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.conditions import UNTOLD, Conditions
from llmd_oke.tuning.servers.figures import Fit, LatencyFigures, figures_text
from llmd_oke.tuning.servers.physical import unphysical

RowFiles = Annotated[list[Path] | None, typer.Argument(help="Rows of `tune import` or `tune run`.", metavar="ROWS")]
KeptOf = Annotated[str | None, typer.Option("--stack", "-s", help="Take the rows that `tune run` keeps of this stack.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", help=f"Only rows measured under this condition, NAME=VALUE: {', '.join(CONDITIONS)}."),
]
Published = Annotated[bool, typer.Option("--published", help="Add the kit's published measurements of the model.")]


def fit(
    rows: RowFiles = None,
    stack: KeptOf = None,
    project: options.Project = options.HERE,
    model: inputs.ModelName = None,
    shape: inputs.ShapeName = None,
    gpu: inputs.GpuName = None,
    image: Annotated[str | None, typer.Option(help="Only rows of this vLLM image.")] = None,
    only: Only = None,
    published: Published = False,
    figures: inputs.Figures = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the figures.", dir_okay=False)] = None,
) -> None:
    """Fit the latency model to prefill-only and decode-only rows, and say how far it is off where it did not look.

    The GPU is that of the rows where neither --gpu nor --shape names one. Without --output the figures are printed as
    YAML.
    """
    kept = _kept_file(project, stack) if stack else None
    node = inputs.named_node(shape, gpu) or _node_of([*([kept] if kept else ()), *(rows or ())])
    product = node.gpu.product
    found = kept_rows(kept, model or _one_model(read_rows(kept)), product) if kept else []
    if rows or published or not kept:
        found += rows_of(rows, model, product if published else None)
    chosen = asking.known_model(model or _one_model(found))
    base = fitted.figures_of(figures, chosen, node)
    wanted = conditions_of_words([*(only or ()), *([f"image={image}"] if image else [])])
    inspection = import_rows.inspected([row for row in found if wanted.items() <= _told(row).items()])
    import_rows.show_findings(inspection)
    calibration = calibrate(inspection.accepted, chosen, node, base)
    _show(calibration.figures, calibration.fitted)
    text = figures_text(calibration.figures)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)
        console.errors().print(f"figures  {output}", markup=False, soft_wrap=True)


def conditions_of_words(words: list[str]) -> dict[str, str]:
    """The conditions of texts such as `block_size=128`.

    Raises:
        KitError: a text names none.
    """
    named = {name: value for name, _, value in (word.partition("=") for word in words)}
    if unknown := [name for name in named if name not in CONDITIONS]:
        raise KitError(f"{unknown[0]!r} is no condition of a row.", f"--only NAME=VALUE: {', '.join(CONDITIONS)}.")
    return named


def _told(row: Row) -> dict[str, str]:
    return {name: str(value) for name, value in row.conditions.items() if value is not None}


def rows_of(paths: list[Path] | None, model: str | None, published: str | None) -> list[Row]:
    """The rows of files, and those that are published on a GPU where one is named, without points that are set aside.

    Raises:
        KitError: there are none, or files hold what is no row.
    """
    rows = [row for path in paths or [] for row in read_rows(path)]
    if published:
        name = model or _one_model(rows)
        points = published_points(name, published)
        if points is None:
            known = ", ".join(f"{each} on {gpu}" for each, gpu in published_names())
            raise KitError(f"The kit has no published measurements of {name} on {published}.", f"It has: {known}.")
        rows += points.kept_rows()
    if not rows and paths:
        raise KitError(
            f"There are no rows in {', '.join(map(str, paths))}.", "`llmd-oke tune import` makes such files."
        )
    if not rows:
        raise KitError("There are no rows.", "Name files of rows, or --published with --model.")
    return rows


def _node_of(files: list[Path]) -> Node:
    """The nodes of the one GPU that all rows are of; else the default ones."""
    products = {row.gpu for path in files for row in read_rows(path)}
    known = node_of_gpu(products.pop()) if len(products) == 1 else None
    return known or asking.known_shape(inputs.DEFAULT_SHAPE)


def _kept_file(project: Path, stack: str) -> Path:
    """The file of rows that `tune run` has kept for a stack.

    Raises:
        KitError: there are none.
    """
    file = rows_file(project, stack)
    if not file.exists():
        message = f"Nothing has been measured for the tuner with the stack {stack}."
        raise KitError(message, f"Measure: llmd-oke tune run --stack {stack}")
    return file


def _one_model(rows: list[Row]) -> str:
    names = sorted({row.model for row in rows})
    if len(names) != 1:
        raise KitError(f"The rows are of {len(names)} models.", f"--model is one of: {', '.join(names) or 'none'}.")
    return names[0]


def _show(figures: LatencyFigures, fitted: tuple[str, ...]) -> None:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("role", "points", "sizes", "error of the points", "unseen loads", "unseen sizes"):
        table.add_column(column, justify="left" if column in {"role", "sizes"} else "right")
    for name, fit_ in (("prefill", figures.prefill.fit), ("decode", figures.decode.fit)):
        table.add_row(name, *_cells(fit_ if name in fitted else None))
    console.errors().print(Fitting(table))
    for name, measured in figures.measured_conditions().items():
        if name in fitted:
            console.errors().print(f"{name} of  {_named(measured or UNTOLD)}", markup=False, soft_wrap=True)
    for fault in unphysical(figures):
        if fault.role in fitted:
            console.errors().print(f"not physical  {fault}", markup=False, soft_wrap=True)
            console.errors().print(f"  to tell it: {fault.remedy}", markup=False, soft_wrap=True)


def _named(measured: Conditions) -> str:
    """What the fitted servers were started with."""
    told = [f"{name.replace('_', ' ')} {value}" for name, value in measured if value is not None]
    return ", ".join([*told, *([] if measured.started_told else ["conditions unknown"])])


def _cells(fit_: Fit | None) -> list[str]:
    if fit_ is None:
        return ["too few: as before", "", "", "", ""]
    errors = (fit_.error, fit_.unseen_load_error, fit_.unseen_size_error)
    sizes = ", ".join(f"TP{size}" for size in fit_.tensor_parallel_sizes)
    return [str(fit_.points), sizes, *("-" if error is None else f"{error:.1%}" for error in errors)]
