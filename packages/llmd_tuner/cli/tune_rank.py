"""Commands `llmd-oke tune rank`, `plot` and `apply`: the deployment that serves a workload best, and its stack file."""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_base.row import Basis
from llmd_bench.files import read_rows, write_rows, write_whole
from llmd_oke import config, planning
from llmd_oke.catalogue import Shape
from llmd_oke.cli import console, options
from llmd_oke.cli.options import with_option_groups
from llmd_oke.cli.tables import FittingTable, open_table
from llmd_oke.config import yaml_files
from rich.markup import escape
from rich.table import Table

from llmd_tuner import charts, ranking, stack_file_edit
from llmd_tuner.cli.tune_options import (
    ModelOptions,
    SearchContext,
    SearchOptions,
    announce,
    model_index,
    search_context,
)
from llmd_tuner.confidence import shortened
from llmd_tuner.experiments.records import applied_file, keep_applied
from llmd_tuner.ranking import (
    Loser,
    Ranking,
    SimulatedFinalist,
    Swing,
    deployment_name,
    forecast_row,
    name_with_basis,
    spreads_of,
    unmeasured_kinds,
)
from llmd_tuner.search import Candidate, frontier_of
from llmd_tuner.stack_file_edit import StackFileChange, thresholds

MAX_FRONTIER = 8

MAX_LOSERS = 12
"""Maximum number of kinds of servers for which the terminal shows why they lost; `--json` has all."""

_ALIKE = 0.01
"""Share by which loads that servers carry may differ and count as equal."""


@with_option_groups
def rank(
    where: ModelOptions,
    search: SearchOptions,
    simulate: Annotated[
        int,
        typer.Option("--simulate", help="Check so many of the first by event simulation, 120 s each.", min=0, max=50),
    ] = 0,
    as_json: options.Json = False,
    rows: Annotated[
        Path | None, typer.Option(help="Write the first as rows, to stand beside measurements.", dir_okay=False)
    ] = None,
) -> None:
    """Rank all deployments of some GPUs: the best, what comes next, why the others lost, and how sure that is.

    Ends with exit code 1 where nothing meets the targets; the nearest misses are shown then, and what would have to
    change.
    """
    context = search_context(where, search)
    announce(context)
    result = ranking.rank(context.question)
    finalists = _looks(context, result, simulate)
    frontier = frontier_of(context.question)
    if rows is not None:  # of the deployments that have a steady state
        about = context.model.name, context.node.gpu.product, context.question, context.confidence, context.started
        steady = [deployment for deployment in result.first if math.isfinite(deployment.e2e_s)]
        write_rows([forecast_row(*about, deployment) for deployment in steady], rows)
    if as_json:
        console.show_json(ranking_json(context, result, frontier, finalists))
    else:
        show_ranking(context, result, frontier, finalists)
    if result.best is None:
        raise typer.Exit(1)


def _looks(context: SearchContext, result: ranking.Ranking, most: int) -> list[SimulatedFinalist]:
    if not most:
        return []
    progress = console.progress()
    progress.step(f"simulating {most} deployments")
    finalists: list[SimulatedFinalist] = []
    first = [deployment for deployment in result.search.deployments(most) if deployment.requests_per_s > 1e-3]
    for finalist in ranking.simulate_finalists(context.question, context.model, context.node, first):
        finalists.append(finalist)
        progress.detail(ranking.deployment_name(finalist.deployment))
    return finalists


def show_ranking(
    context: SearchContext, result: Ranking, frontier: Sequence[Candidate], finalists: Sequence[SimulatedFinalist]
) -> None:
    """Print a ranking of deployments, with the simulations of the best ones."""
    output = console.output()
    output.print(_headline(context, result), soft_wrap=True)
    what = "no forecasts" if context.confidence.basis is Basis.BOUND else "forecasts"
    output.print(f"[dim]{what}: {escape(context.confidence.sentence)}[/]", soft_wrap=True)
    for difference in context.confidence.conditions:
        output.print(f"[dim]not as measured: {escape(difference)}[/]", soft_wrap=True)
    output.print(f"[dim]assumed: {escape(_assumed(context))}[/]", soft_wrap=True)
    for text in (*_unmeasured(context, result), *_host_memory(context, result)):
        output.print(f"[dim]bound: {escape(text)}[/]", soft_wrap=True)
    output.print()
    columns = ("deployment", "GPUs", "most qps", "TTFT ms", "ITL ms", "TPSU", "TPSG", "$/1M")
    table = _table(columns, "of limit")
    for deployment in result.first:
        colour = "green" if deployment.feasible else "red"
        basis = ", a bound" if deployment.bound else ""
        limit = f"[{colour}]{escape(deployment.binding)} {deployment.ratio:.0%}{basis}[/]"
        table.add_row(*_cells(deployment), limit)
    output.print(FittingTable(table))
    for title, table in _parts(context, result, frontier, finalists):
        output.print(f"\n[bold]{escape(title)}[/]")
        output.print(FittingTable(table) if table.columns[0].header else table)


def ranking_json(
    context: SearchContext, result: Ranking, frontier: Sequence[Candidate], finalists: Sequence[SimulatedFinalist]
) -> dict[str, Any]:
    """Return a ranking as the object of `--json`. Figures of deployments are forecasts, whose basis (`calibrated` or
    `bound`) the key `confidence` names.
    """
    question, trust = context.question, context.confidence
    return {
        "model": context.model.name,
        "shape": context.node.name if isinstance(context.node, Shape) else None,
        "gpu": context.node.gpu.product,
        **document(
            "workload targets gpus",
            question.hardware,
            workload=str(question.workload),
            targets=asdict(question.targets),
        ),
        "confidence": {**asdict(trust), "basis": trust.basis.value},
        "scored": result.search.size,
        "best": result.best and _plain(result.best),
        "first": [_plain(item) for item in result.first],
        "lost": [document("deployment why", item, deployment=_plain(item.deployment)) for item in result.losers],
        "sensitivity": [
            document("input factor winner changes", swing, input=swing.name, winner=winner)
            for swing in result.swings
            for winner in [swing.winner and document("topology copies", swing.winner)]
        ],
        "remedies": list(result.remedies),
        "prompt_ms": _prompt_ms(context, result),
        "frontier": [_plain(item) for item in frontier],
        "simulated": [
            {"deployment": deployment_name(item.deployment), **item.row.model_dump(mode="json")} for item in finalists
        ],
    }


def _headline(context: SearchContext, result: Ranking) -> str:
    question = context.question
    question_text = f"{context.model.name}, {question.workload}, {question.hardware.gpus} GPUs ({context.node.name})"
    targets = f", {question.targets}" if str(question.targets) else ""
    bound = context.confidence.basis is Basis.BOUND or (result.best is not None and result.best.bound)
    best = "best as far as bounds tell" if bound else "best"
    verdict = (
        f"{best}: {deployment_name(result.best)}" if result.best else "nothing meets the targets; the nearest misses"
    )
    return f"[bold]{escape(verdict)}[/]\n{escape(question_text + targets)}, {result.search.size} deployments scored"


def _assumed(context: SearchContext) -> str:
    factors = context.question.model.factors
    share = context.question.headroom
    block_size = context.question.room.block_size
    descriptors = context.question.model.descriptors(round(context.question.workload.input_tokens), block_size)
    priced = (
        "" if context.question.hardware.price_usd_per_hour else f"; no $, as OCI lists no price of {context.node.name}"
    )
    return (
        f"KV transfer at {factors.transfer_efficiency:.0%} of a port's rate, {descriptors:,} descriptors of "
        f"{factors.transfer_descriptor_s * 1e6:.1f} us each for a prompt in blocks of {block_size}; at most "
        f"{share.prefill_share:.0%} of prefill's and {share.decode_share:.0%} of decode's rate used; random arrivals, "
        f"router profile {context.question.profile}{priced}"
    )


def _unmeasured(context: SearchContext, result: Ranking) -> Iterator[str]:
    """Tell what is a bound of servers with ranks, whole experts or several nodes, as far as any are shown."""
    question = context.question
    shown = [*result.first, *(item.deployment for item in _losers(result)[0])]
    spreads = {spread for deployment in shown for spread in spreads_of(deployment, question)}
    if any(spread.data_parallel_size > 1 for spread in spreads):
        yield (
            "ranks hand tokens to all GPUs' experts and back in each layer, inside nodes at "
            f"{question.model.factors.all_reduce_efficiency:.0%} of their links' rate and between nodes of their ports'"
        )
    if any(spread.expert_parallel for spread in spreads):
        imbalance = question.model.factors.expert_imbalance
        yield f"where GPUs have whole experts, all wait for the busiest, with {imbalance:g} times the mean's tokens"
    if names := sorted({str(spread) for spread in spreads if question.is_bound(spread)}):
        yield f"nothing is measured of {shortened(names)}: such deployments come behind those that were measured"


def _prompt_ms(context: SearchContext, result: Ranking) -> dict[str, float]:
    """Times in milliseconds in which a server of the best deployment has a whole prompt out of its node's memory, out
    of its node's disks, and computed.
    """
    shown, question = result.best or result.first[0], context.question
    server = question.model.server(spreads_of(shown, question)[0])
    tokens = round(question.workload.input_tokens)
    loaded_s = server.host_load_s(tokens)
    seconds = {
        "from_host_memory": loaded_s,
        "from_disks": loaded_s + server.disk_read_s(tokens),
        "computed": server.prefill_s(tokens),
    }
    return {name: value * 1000 for name, value in seconds.items()}


def _host_memory(context: SearchContext, result: Ranking) -> Iterator[str]:
    """Tell whether KV cache in the nodes' memory pays, where a stack has it or it is asked for: times of a whole
    prompt, and what servers carry with and without it.
    """
    question, share = context.question, context.question.workload.host_hit_share
    if not share and context.kv_cache.host_memory_gib is None:
        return
    prompt_ms = _prompt_ms(context, result)
    load_ms, prefill_ms = prompt_ms["from_host_memory"], prompt_ms["computed"]
    loaded = f"a prompt of {question.workload.input_tokens:.0f} tokens is loaded from the node's memory"
    text = f"{loaded} in {load_ms:.0f} ms, and computed in {prefill_ms:.0f}"
    if not share:
        pays = "pays where prompts come back" if load_ms < prefill_ms else "never pays"
        yield f"{text}: it {pays}; --host-hits ranks with a share of prompts from there"
    else:
        alone = replace(question, workload=replace(question.workload, host_hit_share=0.0))
        yield f"{text}; {_pays(result.best, ranking.rank(alone, sensitivity=False).best, share)}"
    if context.kv_cache.disk_gib:
        yield _disks(question.model.hardware.disk_bytes_per_s / 1e9, prompt_ms)


def _disks(rate_gb_per_s: float, prompt_ms: Mapping[str, float]) -> str:
    """Tell how long a prompt takes from the nodes' disks, and how fast a server writes to them."""
    read_ms, computed_ms = prompt_ms["from_disks"], prompt_ms["computed"]
    written_gb_per_s = rate_gb_per_s * (read_ms - prompt_ms["from_host_memory"]) / computed_ms
    return (
        f"the same prompt is read from the node's disks in {read_ms:.0f} ms,"
        f" {'sooner' if read_ms < computed_ms else 'later'} than it is computed, if they read {rate_gb_per_s:g} GB/s,"
        " the least of accepted nodes, for one server at a time; a server that computes prompts without a pause writes"
        f" {written_gb_per_s:.1f} GB/s to them"
    )


def _pays(kept: Candidate | None, alone: Candidate | None, share: float) -> str:
    """Compare the best deployments with and without a share of prompts from the nodes' memory, which costs nothing:
    nodes are rented whole.
    """
    if kept is None:
        return "nothing meets the targets with it" + ("" if alone else " or without it")
    if alone is None:
        return f"with {share:.0%} of prompt tokens from there it pays: without it nothing meets the targets"
    fewer, more = alone.gpus_reserved - kept.gpus_reserved, kept.capacity_per_s / alone.capacity_per_s - 1
    sooner_ms = (alone.ttft_s - kept.ttft_s) * 1000
    pays = fewer > 0 or (fewer == 0 and (more > _ALIKE or sooner_ms > 0))
    return (
        f"with {share:.0%} of prompt tokens from there it {'pays' if pays else 'does not pay'}: without it the best is "
        f"{deployment_name(alone)}, for {alone.capacity_per_s:.1f} instead of {kept.capacity_per_s:.1f} requests/s at "
        f"most on {alone.gpus_reserved} instead of {kept.gpus_reserved} GPUs, TTFT {alone.ttft_s * 1000:.0f} instead"
        f" of {kept.ttft_s * 1000:.0f} ms"
    )


def _cells(deployment: Candidate) -> list[str]:
    """Return a deployment and its load; `GPUs` are those in use and those of whole nodes, `most` what targets allow."""
    return [
        _short(deployment),
        f"{deployment.gpus}/{deployment.gpus_reserved}",
        f"{deployment.capacity_per_s:.1f}",
        _number(deployment.ttft_s * 1000, 0),
        _number(deployment.itl_s * 1000, 1),
        _number(deployment.tpsu or None, 1),
        _number(deployment.tpsg if deployment.tpsu else None, 0),
        _number(deployment.usd_per_million_output_tokens, 2),
    ]


def _parts(
    context: SearchContext, result: Ranking, frontier: Sequence[Candidate], finalists: Sequence[SimulatedFinalist]
) -> Iterator[tuple[str, Table]]:
    if result.remedies:
        yield "what would have to change, one of these", _grid([escape(remedy)] for remedy in result.remedies)
    if finalists:
        yield "by event simulation, at the same load", _simulated(finalists)
    losers, left = _losers(result)
    rows = [[_short(item.deployment), f"[dim]{escape(item.why)}[/]"] for item in losers]
    yield "why others lost", _grid([*rows, *([[f"[dim]and {left} more kinds[/]"]] if left else [])])
    if result.swings:
        yield "with each input 10 % lower or higher", _sensitivity(result.swings)
    table = _table(("  TPSU", "TPSG", "qps", "TTFT ms", "ITL ms"), "deployment")
    for deployment in frontier[:: max(1, math.ceil(len(frontier) / MAX_FRONTIER))]:
        cells = (f"{deployment.tpsu:.1f}", f"{deployment.tpsg:.0f}", f"{deployment.requests_per_s:.1f}")
        latencies = (_number(deployment.ttft_s * 1000, 0), _number(deployment.itl_s * 1000, 1))
        table.add_row(*cells, *latencies, _short(deployment))
    yield f"frontier without targets  ({context.confidence.tag})", table


def _losers(result: Ranking) -> tuple[list[Loser], int]:
    """Return the first losers and the first of them that is a bound beside others, and how many more there are."""
    first = result.losers[:MAX_LOSERS]
    bound = next((item for item in result.losers if item.deployment.bound), None)
    shown = [*first, *([bound] if bound is not None and bound not in first else [])]
    return shown, len(result.losers) - len(shown)


def _grid(rows: Iterable[Sequence[str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row("", *row)
    return table


def _sensitivity(swings: Sequence[Swing]) -> Table:
    changed = [swing for swing in swings if swing.changes]
    rows: list[Sequence[str]] = []
    for swing in changed:
        winner = name_with_basis(swing.winner) if swing.winner else "nothing meets the targets"
        rows.append((f"{swing.name} {swing.factor - 1:+.0%}", winner))
    if unchanged := sorted({swing.name for swing in swings} - {swing.name for swing in changed}):
        rows.append(("[dim]the same wins[/]", f"[dim]{', '.join(unchanged)}[/]"))
    return _grid(rows)


def _simulated(finalists: Sequence[SimulatedFinalist]) -> Table:
    table = _table(("deployment", "TTFT ms", "forecast x", "p99", "ITL ms", "forecast x", "p99"), "sent")
    for finalist in finalists:
        row = finalist.row
        table.add_row(
            _short(finalist.deployment),
            _number(row.ttft_ms.mean, 0),
            _number(finalist.ttft_ratio, 2),
            _number(row.ttft_ms.p99, 0),
            _number(row.tpot_ms.mean, 1),
            _number(finalist.itl_ratio, 2),
            _number(row.itl_ms.p99, 1),
            str(row.requests),
        )
    return table


def _table(columns: Sequence[str], last: str) -> Table:
    table = open_table(*columns, right={*columns} - {"deployment"}, no_wrap=True)
    table.add_column(escape(last))
    return table


def _short(deployment: Candidate) -> str:
    return deployment.topology if deployment.copies == 1 else f"{deployment.copies} x {deployment.topology}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _plain(deployment: Candidate) -> dict[str, Any]:
    """Return a deployment as plain data, with None for infinity and NaN, which JSON lacks."""
    keys = (*asdict(deployment), "tpsu", "tpsg", "meets_targets")
    values = document(" ".join(keys), deployment, meets_targets=deployment.feasible).items()
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values}


@with_option_groups
def plot(
    where: ModelOptions,
    search: SearchOptions,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the picture to this file.", dir_okay=False)] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the picture to this file.", dir_okay=False)
    ] = None,
    rows: Annotated[list[Path] | None, typer.Option(help="Measured rows to show beside the forecasts.")] = None,
) -> None:
    """Plot output tokens/s for each GPU against tokens/s for each user: the Pareto frontier of all forecast
    deployments, the deployments that rank best, and the targets.

    Writes self-contained SVG and HTML files where they are named, and draws in the terminal otherwise.
    """
    context = search_context(where, search)
    announce(context)
    result = ranking.rank(context.question, sensitivity=False)
    measured = [row for path in rows or [] for row in read_rows(path)]
    shown = charts.picture(context.model.name, context.question, context.confidence, result, measured)
    for path, draw in ((svg, charts.svg), (html, charts.html)):
        if path is not None:
            write_whole(path, draw(shown))
            console.tell(f"plot  {path}")
    if svg is None and html is None:
        size = shutil.get_terminal_size()
        console.output().print(charts.text(shown, min(size.columns, 110), min(size.lines, 40)), markup=False)


@with_option_groups
def apply(
    stack: options.Stack,
    project: options.Project = options.HERE,
    *,
    search: SearchOptions,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Add `scaling` with thresholds where the stack file has none.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference and write nothing.")] = False,
) -> None:
    """Rank as `tune rank` does, and write topology, copies and maxNumSeqs of the best into the stack file.

    Where the model has `scaling`, its thresholds follow: what a server carries within the targets, less a reserve.
    Comments and order of the file stay. A model of a file that the stack builds on (`base`) stays as it is there; what
    differs is written into the stack's own file. What comes out is planned before it is written, and refused with all
    problems where it can't be deployed. The forecast is kept, to be verified.
    """
    context = search_context(ModelOptions(project, stack), search)
    if not context.confidence.measured:  # bounds tell what hardware can't exceed, and nothing of what servers do
        message = f"Nothing is measured of {context.model.name} on {context.node.gpu.product}: there are only bounds."
        raise KitError(message, "Measure (`llmd-oke tune run`), or give --figures of `llmd-oke tune fit`.")
    announce(context)
    best = ranking.rank(context.question, sensitivity=False).best
    if best is None:
        raise KitError("Nothing meets the targets.", "`llmd-oke tune rank` shows what would have to change.")
    if kinds := unmeasured_kinds(best, context.question):
        message = (
            f"No servers that were measured meet the targets; {deployment_name(best)} would, as far as bounds tell."
        )
        raise KitError(message, f"Measure: `llmd-oke tune run {' '.join(f'--size {kind}' for kind in kinds)}`.")
    models = config.load(project, stack).models
    index = model_index([model.object_name for model in models], search.name)
    path = config.stack_file(project, stack)
    before = path.read_text(encoding="utf-8")
    role_thresholds = thresholds(context.question, best, context.confidence.tag)
    choice = StackFileChange(best.topology, best.copies, best.max_num_seqs, role_thresholds, add_scaling=scaling)
    after = stack_file_edit.apply_change(before, index, choice, project)
    planning.plan_object(config.effective_object(config.stack_object(yaml_files.plain(after)), project).value)
    console.show_line(f"{ranking.deployment_name(best)}: {context.confidence.sentence}")
    difference = yaml_files.difference(before, after, str(path))
    console.show_line(difference or "nothing changes")
    if dry_run:
        return
    about = context.model.name, context.node.gpu.product, context.question, context.confidence, context.started
    forecast = forecast_row(*about, best)
    forecast_file = applied_file(project, stack)
    keep_applied(forecast_file, models[index].object_name, forecast, str(context.question.targets))
    if difference:
        write_whole(path, after)
    console.tell(f"forecast  {forecast_file}, for `tune verify` once it is deployed")
