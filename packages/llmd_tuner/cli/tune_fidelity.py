"""Commands `llmd-oke tune fidelity` and `findings`: errors of the simulation against measurements and
published claims.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import add, itemgetter
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError
from llmd_base.records import collected
from llmd_base.row import Basis, Row
from llmd_bench.files import Hints, ReadResults, make_folder, read_rows, write_whole
from llmd_bench.readers import read_all
from llmd_oke import config
from llmd_oke.cli import console, options
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.results import Hint, parse_hints, show_rejected
from llmd_oke.cli.tables import FittingTable, open_table
from llmd_oke.planning.conditions import VLLM_DEFAULTS, deployed_conditions
from llmd_oke.planning.releases import used_release
from rich.markup import escape
from rich.table import Table

from llmd_tuner import fidelity_report, search_inputs
from llmd_tuner.cli.tune_options import DEFAULT_SHAPE, STACK_OR_GPU, ModelOptions, figures_of, named_node
from llmd_tuner.experiments.records import rows_file
from llmd_tuner.fidelity import FidelityContext, KnownFigures, PublishedRun, compare, published_runs, statements
from llmd_tuner.fidelity_report import Report, verdict_of
from llmd_tuner.measurements import published_points
from llmd_tuner.published_claims import CheckVerdict, ClaimOutcome, check_claims, published_claims
from llmd_tuner.row_filters import inspect_by_model
from llmd_tuner.simulation.deployment import Policy

_COLOURS: dict[CheckVerdict, str] = {"hit": "green", "known miss": "magenta", "miss": "red", "unexpected hit": "red"}

_SHORT_UNITS = {"requests/s": "qps", "of prefill capacity": "of capacity"}

Results = Annotated[
    list[Path] | None, typer.Argument(help="Results of any tool that `tune import` reads.", exists=True)
]


@dataclass(frozen=True)
class FidelityModelOptions(ModelOptions):
    """Options that name the model and the nodes whose latency figures are judged."""

    stack: Annotated[
        str | None,
        typer.Option("--stack", "-s", help="Take model and shape from this stack, and what the tuner kept of it."),
    ] = None


@dataclass(frozen=True)
class ReportFiles:
    """Paths of the files that a fidelity report is written to in addition to the terminal."""

    markdown: Annotated[Path | None, typer.Option(help="Write the report to this file.", dir_okay=False)] = None
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.", dir_okay=False)] = None
    lines: Annotated[
        Path | None, typer.Option(help="Write every figure to this file, as JSON Lines.", dir_okay=False)
    ] = None


@with_option_groups
def fidelity(
    where: FidelityModelOptions,
    files: ReportFiles,
    results: Results = None,
    rehearsed: Annotated[
        list[Path] | None,
        typer.Option("--rehearsed", help="Results of a rehearsal, such as its run folder; several times.", exists=True),
    ] = None,
    hint: Hint = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Latency figures of `tune fit`; the kit's own if left out.", dir_okay=False),
    ] = None,
    fitted_to: Annotated[
        list[Path] | None,
        typer.Option("--fitted-to", help="Rows that --figures were fitted to; several times.", dir_okay=False),
    ] = None,
    policy: Annotated[
        Policy, typer.Option("--policy", help="How the router of your results picks servers; random: a plain Service.")
    ] = "queue",
    max_error: Annotated[
        float | None,
        typer.Option("--max-error", help="End with exit code 1 where a mean error is above so many percent.", min=0),
    ] = None,
    points: Annotated[
        bool, typer.Option("--points", help="Show every load, not only the errors of each metric.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Compare simulated measurements with published ones and your own, load by load.

    The event simulation gets the load of each measurement; a rehearsal's results under that load are shown beside it.
    Measurements that the latency figures were fitted to, others, and those of another GPU or image are kept apart.
    """
    hints = parse_hints(hint or ())
    results_read = _read(results, hints)
    if where.stack and (kept := rows_file(where.project, where.stack)).exists():
        results_read += ReadResults(tuple(read_rows(kept)))
    rehearsal = _read(rehearsed, replace(parse_hints(()), basis=Basis.CALIBRATED))
    show_rejected((*results_read.rejected, *rehearsal.rejected))
    subject = _subject(where, results_read.rows, figures, fitted_to)
    report = _report(subject, results_read.rows, rehearsal.rows, policy, own=figures is None)
    _write(report, files)
    verdict = None if max_error is None else verdict_of(report, max_error / 100)
    if as_json:
        console.show_json(fidelity_report.as_json(report, verdict))
    else:
        show_report(report, points=points)
    if verdict and not verdict.passed:
        console.show_error(KitError(str(verdict)))
        raise typer.Exit(1)


def _read(paths: list[Path] | None, hints: Hints) -> ReadResults:
    return read_all(paths, hints) if paths else ReadResults()


def _subject(
    where: ModelOptions, rows: tuple[Row, ...], figures: Path | None, fitted_to: list[Path] | None
) -> FidelityContext:
    named = named_node(where.shape, where.gpu)
    if where.stack and where.model is None:
        if named:
            raise KitError("A stack says itself which GPUs it has.", STACK_OR_GPU)
        stack = config.load(where.project, where.stack)
        names, node = (
            sorted({entry.model for entry in stack.models}),
            search_inputs.known_shape(stack.gpu_pools[0].shape),
        )
        release, engine = used_release(stack), stack.models[0].engine
    else:
        release, engine = None, config.Engine()
        names = sorted({where.model} if where.model else {row.model for row in rows})
        node = named or search_inputs.known_shape(DEFAULT_SHAPE)
    if len(names) != 1:
        raise KitError("Which model is to be judged is not told.", "--model M: one that has latency figures.")
    model = search_inputs.known_model(names[0])
    judged = figures_of(figures, model, node)
    if figures is None:
        published = published_points(model.name, node.gpu.product)
        rows_kept = published.kept_rows() if published else []
        known = KnownFigures(judged, _accepted(rows_kept), _set_aside(model.name, node.gpu.product))
    else:
        seen = reduce(add, (read_rows(path) for path in fitted_to or []), list[Row]())
        known = KnownFigures(judged, _accepted(seen) if fitted_to else None, _set_aside(model.name, node.gpu.product))
    return FidelityContext(
        model, node, known, deployed_conditions(release, model, engine) if release else VLLM_DEFAULTS
    )


def _set_aside(model: str, gpu: str) -> tuple[Row, ...]:
    """Return the published points that are not what they seem."""
    published = published_points(model, gpu)
    rows = published.kept_rows() if published else []
    return tuple(row for row in (published.rows() if published else []) if row not in rows)


def _accepted(rows: list[Row]) -> tuple[Row, ...]:
    return inspect_by_model(rows).accepted


def _report(
    subject: FidelityContext, rows: tuple[Row, ...], rehearsed: tuple[Row, ...], policy: Policy, *, own: bool
) -> Report:
    published = published_points(subject.model.name, subject.node.gpu.product)
    points = published.rows() if published else []
    runs = [
        *(PublishedRun(row=row) for row in points),
        *published_runs(subject.model.name, subject.node.gpu.product),
        *(PublishedRun(row=row, policy=policy, window=None) for row in rows if row.basis is not Basis.CALIBRATED),
    ]
    simulated = [*rehearsed, *(row for row in rows if row.basis is Basis.CALIBRATED)]
    runs = list(dict.fromkeys(runs))
    progress = console.progress()
    progress.step(f"simulating {len(runs)} measured loads")
    held = compare(subject, runs, simulated, inspect_by_model([run.row for run in runs]), progress)
    named = ", ".join(sorted(subject.known.images)) or "of no one image"
    whose = "the kit's own latency figures" if own else "the latency figures given"
    stated = statements(subject.model.name, subject.node.gpu.product, progress) if own else ()
    figures = f"{whose} ({named})"
    return Report(subject.model.name, subject.node.gpu.product, figures, held.cases, held.omitted, stated)


def _write(report: Report, files: ReportFiles) -> None:
    for path, text in (
        (files.markdown, fidelity_report.markdown),
        (files.html, fidelity_report.html),
        (files.lines, fidelity_report.json_lines),
    ):
        if path is not None:
            make_folder(path.parent)
            write_whole(path, text(report))
            console.tell(f"report  {path}")


def show_report(report: Report, *, points: bool) -> None:
    """Print the errors of a fidelity report by group of measurements, by servers and by metric; with `points`, those of
    each load too.
    """
    output = console.output()
    output.print(escape(fidelity_report.about(report)))
    for group in report.groups:
        output.print(f"\n[bold]{escape(group.title)}[/]  {escape(fidelity_report.heading(group))}")
        for item in group.circumstances:
            output.print(f"[dim]{escape(item)}[/]", soft_wrap=True)
        output.print(FittingTable(_table(fidelity_report.SUMMARY, fidelity_report.summary(group), left=(0, 1, 6))))
        for errors in group.metrics if points else ():
            output.print(
                "",
                FittingTable(_table(fidelity_report.point_columns(group, errors), fidelity_report.points(errors))),
                sep="\n",
            )
    if report.statements:
        output.print("\n[bold]published statements[/]")
        for text, lines in groupby(fidelity_report.statement_lines(report), itemgetter(0)):
            output.print(escape(text))
            for _, at, published, simulated, outside in lines:
                output.print(escape(f"  at {at}: {published}, simulated {simulated}: {outside}"))
    for item in report.omitted:
        output.print(f"[dim]not compared {escape(str(item))}[/]", soft_wrap=True)


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if place in left else "right", overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def findings(as_json: options.Json = False) -> None:
    """Compare the event simulation with published claims: hits, and misses with their reasons.

    Takes some seconds. Ends with exit code 1 if a claim is missed that is not a known miss, or the other way round.
    """
    outcomes = check_claims(published_claims().claims, console.progress())
    if as_json:
        keys = ("finding", "statement", "source", "at", "unit", "basis", "predicted", "accepted", "verdict", "why")
        shown = [
            collected("outcome", keys, (outcome.claim, outcome), {"finding": outcome.claim.name})
            for outcome in outcomes
        ]
        console.show_json(shown)
    else:
        console.output().print(FittingTable(_outcome_table(outcomes)))
        counts = Counter(outcome.verdict for outcome in outcomes)
        console.output().print(f"\n{', '.join(f'{verdict}: {count}' for verdict, count in counts.items())}")
        for why in dict.fromkeys(outcome.why for outcome in outcomes if outcome.why):
            names = ", ".join(dict.fromkeys(outcome.claim.name for outcome in outcomes if outcome.why == why))
            console.show_line(f"known miss of {names}: {why}")
    if any(outcome.verdict in {"miss", "unexpected hit"} for outcome in outcomes):
        raise typer.Exit(1)


def _outcome_table(outcomes: list[ClaimOutcome]) -> Table:
    table = open_table("finding", "at", "predicted", "accepted", "basis", "verdict", right={"at"})
    for outcome in outcomes:
        colour = _COLOURS[outcome.verdict]
        cells = (
            outcome.claim.name,
            f"{outcome.at:g} {_SHORT_UNITS.get(outcome.unit, outcome.unit)}",
            outcome.predicted,
            outcome.accepted,
            outcome.basis.value,
        )
        table.add_row(*map(escape, cells), f"[{colour}]{outcome.verdict}[/]")
    return table
