"""`llmd-oke tune fidelity`: how near are simulated measurements to real ones?"""

import json
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.gathering import gathered
from llmd_oke.cli.results import Hint, parse_hints, show_rejected
from llmd_oke.cli.tune import fidelity_view, fitted, import_rows, inputs
from llmd_oke.cli.tune.inputs import Where
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.rows import rows_file
from llmd_oke.planning.releases import used_release
from llmd_oke.results.files import make_folder, read_rows, write_whole
from llmd_oke.results.readers import read_all
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.fidelity import pages, texts
from llmd_oke.tuning.fidelity.cases import Subject, held_against
from llmd_oke.tuning.fidelity.report import Report
from llmd_oke.tuning.fidelity.runs import Run, published_runs
from llmd_oke.tuning.fidelity.standings import Known
from llmd_oke.tuning.fidelity.statements import statements
from llmd_oke.tuning.fidelity.verdict import Verdict, judged
from llmd_oke.tuning.measurements.published import published_points
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.conditions import AS_VLLM, started_with
from llmd_oke.tuning.simulation.deployment import Policy

Results = Annotated[
    list[Path] | None, typer.Argument(help="Results of any tool that `tune import` reads.", exists=True)
]
Rehearsed = Annotated[
    list[Path] | None,
    typer.Option("--rehearsed", help="Results of a rehearsal, such as its run folder; several times.", exists=True),
]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", help="Latency figures of `tune fit`; the kit's own if left out.", dir_okay=False),
]
FittedTo = Annotated[
    list[Path] | None,
    typer.Option("--fitted-to", help="Rows that --figures were fitted to; several times.", dir_okay=False),
]
RouterPolicy = Annotated[
    Policy, typer.Option("--policy", help="How the router of your results picks servers; random: a plain Service.")
]
MostError = Annotated[
    float | None,
    typer.Option("--max-error", help="End with exit code 1 where a mean error is above so many percent.", min=0),
]
Points = Annotated[bool, typer.Option("--points", help="Show every load, not only the errors of each metric.")]


@dataclass(frozen=True)
class Whose(Where):
    """The options that say of what the figures are."""

    stack: Annotated[
        str | None,
        typer.Option("--stack", "-s", help="Take model and shape from this stack, and what the tuner kept of it."),
    ] = None


@dataclass(frozen=True)
class Files:
    """Where else the report goes."""

    markdown: Annotated[Path | None, typer.Option(help="Write the report to this file.", dir_okay=False)] = None
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.", dir_okay=False)] = None
    lines: Annotated[
        Path | None, typer.Option(help="Write every figure to this file, as JSON Lines.", dir_okay=False)
    ] = None


@gathered
def fidelity(
    where: Whose,
    files: Files,
    results: Results = None,
    rehearsed: Rehearsed = None,
    hint: Hint = None,
    figures: Figures = None,
    fitted_to: FittedTo = None,
    policy: RouterPolicy = "queue",
    max_error: MostError = None,
    points: Points = False,
    as_json: options.Json = False,
) -> None:
    """Hold simulated measurements against published ones and your own, load by load.

    The loads are sent to the event simulation; what a rehearsal measured under the same load stands beside it. Points
    that the latency figures were fitted to, others, and those of another GPU or image are kept apart.
    """
    hints = parse_hints(hint or ())
    found = _read(results, hints) + _kept(where)
    rehearsal = _read(rehearsed, Hints(basis=Basis.CALIBRATED))
    show_rejected((*found.rejected, *rehearsal.rejected))
    subject = _subject(where, found.rows, figures, fitted_to)
    report = _report(subject, found.rows, rehearsal.rows, policy, own=figures is None)
    _write(report, files)
    verdict = None if max_error is None else judged(report, max_error / 100)
    _show(report, verdict, as_json=as_json, points=points)


def _show(report: Report, verdict: Verdict | None, *, as_json: bool, points: bool) -> None:
    if as_json:
        typer.echo(json.dumps(texts.as_json(report, verdict), indent=2))
    else:
        fidelity_view.show(report, points=points)
    if verdict and not verdict.passed:
        console.show_error(KitError(str(verdict)))
        raise typer.Exit(1)


def _read(paths: list[Path] | None, hints: Hints) -> Read:
    return read_all(paths, hints) if paths else Read()


def _kept(where: Where) -> Read:
    """What the tuner has kept of a stack, of measurements and rehearsals."""
    file = rows_file(where.project, where.stack) if where.stack else None
    return Read(tuple(read_rows(file))) if file and file.exists() else Read()


def _subject(where: Where, rows: tuple[Row, ...], figures: Path | None, fitted_to: list[Path] | None) -> Subject:
    named = inputs.named_node(where.shape, where.gpu)
    if where.stack and where.model is None:
        if named:
            raise KitError("A stack says itself which GPUs it has.", inputs.STACK_OR_GPU)
        stack = config.load(where.project, where.stack)
        names, node = sorted({each.model for each in stack.models}), asking.known_shape(stack.gpu_pools[0].shape)
        release, engine = used_release(stack), stack.models[0].engine
    else:
        release, engine = None, config.Engine()
        names = sorted({where.model} if where.model else {row.model for row in rows})
        node = named or asking.known_shape(inputs.DEFAULT_SHAPE)
    if len(names) != 1:
        raise KitError("Which model is to be judged is not told.", "--model M: one that has latency figures.")
    model = asking.known_model(names[0])
    judged = fitted.figures_of(figures, model, node)
    if figures is None:
        published = published_points(model.name, node.gpu.product)
        kept = published.kept_rows() if published else []
        known = Known(judged, _accepted(kept), _set_aside(model.name, node.gpu.product))
    else:
        seen = reduce(add, (read_rows(path) for path in fitted_to or []), list[Row]())
        known = Known(judged, _accepted(seen) if fitted_to else None, _set_aside(model.name, node.gpu.product))
    return Subject(model, node, known, started_with(release, model, engine) if release else AS_VLLM)


def _set_aside(model: str, gpu: str) -> tuple[Row, ...]:
    """Published points that are not what they seem."""
    published = published_points(model, gpu)
    kept = published.kept_rows() if published else []
    return tuple(row for row in (published.rows() if published else []) if row not in kept)


def _accepted(rows: list[Row]) -> tuple[Row, ...]:
    return import_rows.inspected(rows).accepted


def _report(
    subject: Subject, rows: tuple[Row, ...], rehearsed: tuple[Row, ...], policy: Policy, *, own: bool
) -> Report:
    published = published_points(subject.model.name, subject.node.gpu.product)
    points = published.rows() if published else []
    runs = [
        *(Run(row=row) for row in points),
        *published_runs(subject.model.name, subject.node.gpu.product),
        *(Run(row=row, policy=policy, window=None) for row in rows if row.basis is not Basis.CALIBRATED),
    ]
    simulated = [*rehearsed, *(row for row in rows if row.basis is Basis.CALIBRATED)]
    runs = list(dict.fromkeys(runs))
    progress = console.progress()
    progress.step(f"simulating {len(runs)} measured loads")
    held = held_against(subject, runs, simulated, import_rows.inspected([run.row for run in runs]), progress)
    named = ", ".join(sorted(subject.known.images)) or "of no one image"
    whose = "the kit's own latency figures" if own else "the latency figures given"
    stated = statements(subject.model.name, subject.node.gpu.product, progress) if own else ()
    told = f"{whose} ({named})"
    return Report(subject.model.name, subject.node.gpu.product, told, held.cases, held.omitted, stated)


def _write(report: Report, files: Files) -> None:
    for path, text in ((files.markdown, texts.markdown), (files.html, pages.html), (files.lines, texts.json_lines)):
        if path is not None:
            make_folder(path.parent)
            write_whole(path, text(report))
            console.errors().print(f"report  {path}", markup=False, soft_wrap=True)
