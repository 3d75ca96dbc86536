"""Commands `llmd-oke tune import`, `fit` and `match`: checked rows of measurements, and latency figures and matchings
of servers that are computed from rows.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import collected
from llmd_base.row import CONDITIONS, Row, Scope
from llmd_bench.files import read_rows, write_rows, write_whole
from llmd_bench.readers import read_all
from llmd_oke import catalogue
from llmd_oke.catalogue import node_of_gpu
from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS
from llmd_oke.catalogue.latency_figures import LatencyFigures, figures_text
from llmd_oke.cli import console, options
from llmd_oke.cli.results import Hint, parse_hints
from llmd_oke.cli.tables import FittingTable, open_table
from rich.table import Table

from llmd_tuner import search_inputs
from llmd_tuner import workload as workloads
from llmd_tuner.calibration import calibrate
from llmd_tuner.cli.tune_options import (
    DEFAULT_SHAPE,
    DEFAULT_WORKLOAD,
    Figures,
    GpuName,
    ModelName,
    ShapeName,
    WorkloadText,
    figures_of,
    named_node,
    show_findings,
)
from llmd_tuner.experiments.records import current_rows, rows_file
from llmd_tuner.latency_models import unphysical
from llmd_tuner.matching import Match, MatchingSettings, matches
from llmd_tuner.measurements import published_names, published_points
from llmd_tuner.row_filters import inspect_by_model

RowFiles = Annotated[list[Path] | None, typer.Argument(help="Rows of `tune import` or `tune run`.", metavar="ROWS")]


Only = Annotated[
    list[str] | None,
    typer.Option("--only", help=f"Only rows measured under this condition, NAME=VALUE: {', '.join(CONDITIONS)}."),
]

Published = Annotated[bool, typer.Option("--published", help="Add the kit's published measurements of the model.")]


Share = Annotated[float, typer.Option("--prefill-share", help="Share of prefill's rate to use.", min=0.1, max=1.0)]

Files = Annotated[list[Path], typer.Argument(help="Files or folders of results.", exists=True)]


def import_rows(
    files: Files,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Rows as JSON Lines, or CSV by its name.", dir_okay=False)
    ] = Path("rows.jsonl"),
    model: Annotated[str | None, typer.Option(help="Model, where files don't say.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU product, where files don't say: MI300X.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs in use, where files don't say.", min=1)] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="Of the server, likewise.", min=1)] = None,
    image: Annotated[str | None, typer.Option(help="vLLM image, likewise.")] = None,
    subject: Annotated[Scope | None, typer.Option(help="What was measured, likewise.")] = None,
    topology: Annotated[str | None, typer.Option(help="Of a whole deployment, likewise: 8p-tp1-4d-tp2.")] = None,
    input_tokens: Annotated[float | None, typer.Option(help="Mean prompt length, likewise.", min=1)] = None,
    output_tokens: Annotated[float | None, typer.Option(help="Mean output length, likewise.", min=1)] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Of the server, likewise.", min=1)] = None,
    hint: Hint = None,
    keep_rejected: Annotated[bool, typer.Option("--keep-rejected", help="Write rows that a rule rejects too.")] = False,
) -> None:
    """Read results of `vllm bench serve`, inference-perf, llm-d-benchmark, j-pareto and this kit, and check them.

    What can't be read is listed by file and line; rows that can't be right are left out, each with its reason. Ends
    with exit code 1 where something could not be read, and leaves the output as it was where no row is left.
    """
    options: dict[str, Any] = {
        "model": model,
        "gpu": gpu and search_inputs.gpu_named(gpu),
        "gpus": gpus,
        "tensor_parallel_size": tensor_parallel_size,
        "image": image,
        "subject": subject,
        "topology": topology,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "max_num_seqs": max_num_seqs,
    }
    hints = replace(parse_hints(hint or ()), **{name: value for name, value in options.items() if value is not None})
    result = read_all(files, hints)
    inspection = inspect_by_model(list(result.rows))
    show_findings(inspection, result.rejected)
    known = catalogue.gpu_names()
    for product in sorted({row.gpu for row in result.rows} - set(known)):
        console.tell(f"not held against hardware bounds: {product} is no GPU of the catalogue ({', '.join(known)})")
    rows = result.rows if keep_rejected else inspection.accepted
    if not rows:
        unchanged = f"; {output} stays as it was" if output.exists() else ""
        message = f"No row is left of {', '.join(map(str, files))}{unchanged}."
        raise KitError(message, "What is wrong with each is above; what files don't say can be given by options.")
    write_rows(rows, output)
    console.show_line(f"{len(rows)} of {len(result.rows)} rows in {output}")
    if result.rejected:
        raise typer.Exit(1)


def fit(
    rows: RowFiles = None,
    stack: Annotated[
        str | None, typer.Option("--stack", "-s", help="Take the rows that `tune run` keeps of this stack.")
    ] = None,
    project: options.Project = options.HERE,
    model: ModelName = None,
    shape: ShapeName = None,
    gpu: GpuName = None,
    image: Annotated[str | None, typer.Option(help="Only rows of this vLLM image.")] = None,
    only: Only = None,
    published: Published = False,
    figures: Figures = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the figures.", dir_okay=False)] = None,
) -> None:
    """Fit the latency model to prefill-only and decode-only rows, and show its errors on rows that the fit did not use.

    The GPU is that of the rows where neither --gpu nor --shape names one. Without --output the figures are printed as
    YAML.
    """
    stored = _kept_file(project, stack) if stack else None
    node = named_node(shape, gpu)
    if node is None:
        files = [*([stored] if stored else ()), *(rows or ())]
        products = {row.gpu for path in files for row in read_rows(path)}
        found = node_of_gpu(products.pop()) if len(products) == 1 else None
        node = found or search_inputs.known_shape(DEFAULT_SHAPE)
    product = node.gpu.product
    measured = current_rows(stored, model or _one_model(read_rows(stored)), product) if stored else []
    if rows or published or not stored:
        measured += rows_of(rows, model, product if published else None)
    chosen = search_inputs.known_model(model or _one_model(measured))
    base = figures_of(figures, chosen, node)
    conditions = conditions_of_words([*(only or ()), *([f"image={image}"] if image else [])])
    told = [{name: str(value) for name, value in row.conditions.items() if value is not None} for row in measured]
    chosen_rows = [row for row, own in zip(measured, told, strict=True) if conditions.items() <= own.items()]
    inspection = inspect_by_model(chosen_rows)
    show_findings(inspection)
    calibration = calibrate(inspection.accepted, chosen, node, base)
    _show(calibration.figures, calibration.fitted)
    text = figures_text(calibration.figures)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)
        console.tell(f"figures  {output}")


def conditions_of_words(words: list[str]) -> dict[str, str]:
    """Parse conditions of a measurement, given as words such as `block_size=128`, into a mapping.

    Raises:
        KitError: a text has another form, or names no known condition.
    """
    named = {name: value for name, _, value in (word.partition("=") for word in words)}
    if unknown := [name for name in named if name not in CONDITIONS]:
        raise KitError(f"{unknown[0]!r} is no condition of a row.", f"--only NAME=VALUE: {', '.join(CONDITIONS)}.")
    return named


def rows_of(paths: list[Path] | None, model: str | None, published: str | None) -> list[Row]:
    """Return the measured rows of files and, if `published` names a GPU, the published rows of the model on that GPU.
    Published points that are known not to be what their source says are left out.

    Raises:
        KitError: there are no rows, or a file contains something else.
    """
    rows = [row for path in paths or [] for row in read_rows(path)]
    if published:
        name = model or _one_model(rows)
        points = published_points(name, published)
        if points is None:
            known = ", ".join(f"{model_name} on {gpu}" for model_name, gpu in published_names())
            raise KitError(f"The kit has no published measurements of {name} on {published}.", f"It has: {known}.")
        rows += points.kept_rows()
    if not rows and paths:
        raise KitError(
            f"There are no rows in {', '.join(map(str, paths))}.", "`llmd-oke tune import` makes such files."
        )
    if not rows:
        raise KitError("There are no rows.", "Name files of rows, or --published with --model.")
    return rows


def _kept_file(project: Path, stack: str) -> Path:
    """Return the file of rows that `tune run` has kept for a stack.

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
    errors = ("error of the points", "unseen loads", "unseen sizes")
    table = open_table("role", "points", "sizes", *errors, right={"points", *errors})
    for name, fit_ in (("prefill", figures.prefill.fit), ("decode", figures.decode.fit)):
        if fit_ is None or name not in fitted:
            table.add_row(name, "too few: as before", "", "", "", "")
            continue
        shares = (fit_.error, fit_.unseen_load_error, fit_.unseen_size_error)
        sizes = ", ".join(spread.kind.upper() for spread in fit_.parallelisms)
        shown = ("-" if error is None else f"{error:.1%}" for error in shares)
        table.add_row(name, str(fit_.points), sizes, *shown)
    console.errors().print(FittingTable(table))
    for name, measured in figures.measured_conditions().items():
        if name in fitted:
            conditions = measured or UNKNOWN_CONDITIONS
            texts = [f"{key.replace('_', ' ')} {value}" for key, value in conditions if value is not None]
            told = ", ".join([*texts, *([] if conditions.started_told else ["conditions unknown"])])
            console.tell(f"{name} of  {told}")
    for fault in unphysical(figures):
        if fault.role in fitted:
            console.tell(f"not physical  {fault}")
            console.tell(f"  to tell it: {fault.remedy}")


def match(
    rows: RowFiles = None,
    workload: WorkloadText = None,
    model: ModelName = None,
    gpu: Annotated[str, typer.Option("--gpu", help="GPU of the published measurements.")] = "MI300X",
    published: Published = False,
    decode_replicas: Annotated[
        int, typer.Option("--decode-replicas", help="Decode servers of a unit.", min=1, max=64)
    ] = 1,
    prefill_share: Share = 1.0,
    as_json: options.Json = False,
) -> None:
    """Find for each decode measurement the fewest prefill GPUs that keep up with it, by the published method."""
    product = search_inputs.known_gpu(gpu).gpu.product if published else None
    inspection = inspect_by_model(rows_of(rows, model, product))
    show_findings(inspection)
    lengths = workloads.parse(workload or DEFAULT_WORKLOAD)
    settings = MatchingSettings(lengths.input_tokens, lengths.output_tokens, decode_replicas, prefill_share)
    result = matches(inspection.accepted, settings)
    if as_json:
        keys = ("topology", "gpus", "tpsu", "tpsg")
        console.show_json([asdict(item) | collected("match", keys, [item], {}) for item in result])
    else:
        console.output().print(FittingTable(_table(result)))


def _table(result: list[Match]) -> Table:
    figures = ("concurrency", "decode tok/s", "prompt tok/s", "prefill GPUs", "GPUs", "TPSU", "TPSG")
    table = open_table("topology", *figures, right=figures, no_wrap=True)
    for item in result:
        table.add_row(
            item.topology,
            f"{item.decode.concurrency:g}",
            f"{item.decode.tokens_per_s:.0f}",
            f"{item.prompt_tokens_per_s:.0f}",
            str(item.prefill_gpus),
            str(item.gpus),
            f"{item.tpsu:.1f}",
            f"{item.tpsg:.0f}",
        )
    return table
