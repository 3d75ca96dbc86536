"""A ranking, for people and as JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from llmd_oke.catalogue import Shape
from llmd_oke.cli import console
from llmd_oke.cli.tables import Fitting
from llmd_oke.cli.tune.inputs import Inputs
from llmd_oke.results.row import Basis
from llmd_oke.tuning.answers.ranking import Ranking, Swing, named
from llmd_oke.tuning.answers.second_look import SecondLook
from llmd_oke.tuning.search.deployments import Deployment

MOST_FRONTIER = 8


def show(known: Inputs, found: Ranking, frontier: Sequence[Deployment], looks: Sequence[SecondLook]) -> None:
    """Prints a ranking."""
    output = console.output()
    output.print(_headline(known, found), soft_wrap=True)
    what = "no forecasts" if known.confidence.basis is Basis.BOUND else "forecasts"
    output.print(f"[dim]{what}: {escape(known.confidence.sentence)}[/]", soft_wrap=True)
    for difference in known.confidence.conditions:
        output.print(f"[dim]not as measured: {escape(difference)}[/]", soft_wrap=True)
    output.print(f"[dim]assumed: {escape(_assumed(known))}[/]\n", soft_wrap=True)
    output.print(Fitting(_first(found)))
    for title, table in _parts(known, found, frontier, looks):
        output.print(f"\n[bold]{escape(title)}[/]")
        output.print(Fitting(table) if table.columns[0].header else table)


def as_json(
    known: Inputs, found: Ranking, frontier: Sequence[Deployment], looks: Sequence[SecondLook]
) -> dict[str, Any]:
    """A ranking as plain data. Every figure of a deployment is a forecast of the basis that `confidence` names."""
    question, trust = known.question, known.confidence
    return {
        "model": known.model.name,
        "shape": known.node.name if isinstance(known.node, Shape) else None,
        "gpu": known.node.gpu.product,
        "workload": str(question.workload),
        "targets": asdict(question.targets),
        "gpus": question.hardware.gpus,
        "confidence": {**asdict(trust), "basis": trust.basis.value},
        "scored": found.search.size,
        "best": found.best and _plain(found.best),
        "first": [_plain(each) for each in found.first],
        "lost": [{"deployment": _plain(each.deployment), "why": each.why} for each in found.losers],
        "sensitivity": [_plain_swing(swing) for swing in found.swings],
        "remedies": list(found.remedies),
        "frontier": [_plain(each) for each in frontier],
        "simulated": [{"deployment": named(each.deployment), **each.row.model_dump(mode="json")} for each in looks],
    }


def _headline(known: Inputs, found: Ranking) -> str:
    question = known.question
    asked = f"{known.model.name}, {question.workload}, {question.hardware.gpus} GPUs ({known.node.name})"
    targets = f", {question.targets}" if str(question.targets) else ""
    best = "best as far as bounds tell" if known.confidence.basis is Basis.BOUND else "best"
    verdict = f"{best}: {named(found.best)}" if found.best else "nothing meets the targets; the nearest misses"
    return f"[bold]{escape(verdict)}[/]\n{escape(asked + targets)}, {found.search.size} deployments scored"


def _assumed(known: Inputs) -> str:
    factors = known.question.model.factors
    share = known.question.headroom
    block_size = known.question.room.block_size
    descriptors = known.question.model.descriptors(round(known.question.workload.input_tokens), block_size)
    priced = "" if known.question.hardware.price_usd_per_hour else f"; no $, as OCI lists no price of {known.node.name}"
    return (
        f"KV transfer at {factors.transfer_efficiency:.0%} of a port's rate, {descriptors:,} descriptors of "
        f"{factors.transfer_descriptor_s * 1e6:.1f} us each for a prompt in blocks of {block_size}; at most "
        f"{share.prefill_share:.0%} of prefill's and {share.decode_share:.0%} of decode's rate used; random arrivals, "
        f"router profile {known.question.profile}{priced}"
    )


def _first(found: Ranking) -> Table:
    """At the load that is asked for; `GPUs` are those in use and those of whole nodes, `most` is what targets allow."""
    columns = ("deployment", "GPUs", "most qps", "TTFT ms", "ITL ms", "TPSU", "TPSG", "$/1M")
    table = _table(columns, "of limit")
    for each in found.first:
        table.add_row(*_cells(each), _limit(each))
    return table


def _cells(each: Deployment) -> list[str]:
    return [
        _short(each),
        f"{each.gpus}/{each.gpus_reserved}",
        f"{each.capacity_per_s:.1f}",
        _number(each.ttft_s * 1000, 0),
        _number(each.itl_s * 1000, 1),
        _number(each.tpsu or None, 1),
        _number(each.tpsg if each.tpsu else None, 0),
        _number(each.usd_per_million_output_tokens, 2),
    ]


def _parts(
    known: Inputs, found: Ranking, frontier: Sequence[Deployment], looks: Sequence[SecondLook]
) -> Iterator[tuple[str, Table]]:
    if found.remedies:
        yield "what would have to change, one of these", _lines(found.remedies)
    if looks:
        yield "by event simulation, at the same load", _simulated(looks)
    yield "why others lost", _lost(found)
    if found.swings:
        yield "with each input 10 % lower or higher", _sensitivity(found.swings)
    yield f"frontier without targets  ({known.confidence.tag})", _frontier(frontier)


def _lines(lines: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for line in lines:
        table.add_row("", escape(line))
    return table


def _lost(found: Ranking) -> Table:
    table = Table.grid(padding=(0, 2))
    for loser in found.losers:
        table.add_row("", _short(loser.deployment), f"[dim]{escape(loser.why)}[/]")
    return table


def _sensitivity(swings: Sequence[Swing]) -> Table:
    changed = [swing for swing in swings if swing.changes]
    table = Table.grid(padding=(0, 2))
    for swing in changed:
        winner = named(swing.winner) if swing.winner else "nothing meets the targets"
        table.add_row("", f"{swing.name} {swing.factor - 1:+.0%}", winner)
    kept = sorted({swing.name for swing in swings} - {swing.name for swing in changed})
    if kept:
        table.add_row("", "[dim]the same wins[/]", f"[dim]{', '.join(kept)}[/]")
    return table


def _simulated(looks: Sequence[SecondLook]) -> Table:
    table = _table(("deployment", "TTFT ms", "forecast x", "p99", "ITL ms", "forecast x", "p99"), "sent")
    for look in looks:
        row = look.row
        table.add_row(
            _short(look.deployment),
            _number(row.ttft_ms.mean, 0),
            _number(look.ttft_ratio, 2),
            _number(row.ttft_ms.p99, 0),
            _number(row.tpot_ms.mean, 1),
            _number(look.itl_ratio, 2),
            _number(row.itl_ms.p99, 1),
            str(row.requests),
        )
    return table


def _frontier(frontier: Sequence[Deployment]) -> Table:
    table = _table(("  TPSU", "TPSG", "qps", "TTFT ms", "ITL ms"), "deployment")
    step = max(1, math.ceil(len(frontier) / MOST_FRONTIER))
    for each in frontier[::step]:
        cells = (f"{each.tpsu:.1f}", f"{each.tpsg:.0f}", f"{each.requests_per_s:.1f}")
        latencies = (_number(each.ttft_s * 1000, 0), _number(each.itl_s * 1000, 1))
        table.add_row(*cells, *latencies, _short(each))
    return table


def _table(columns: Sequence[str], last: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if column == "deployment" and index == 0 else "right", no_wrap=True)
    table.add_column(escape(last))
    return table


def _limit(each: Deployment) -> str:
    colour = "green" if each.feasible else "red"
    return f"[{colour}]{escape(each.binding)} {each.ratio:.0%}[/]"


def _short(each: Deployment) -> str:
    return each.topology if each.copies == 1 else f"{each.copies} x {each.topology}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _plain(each: Deployment) -> dict[str, Any]:
    derived = {"tpsu": each.tpsu, "tpsg": each.tpsg, "meets_targets": each.feasible}
    return {key: _finite(value) for key, value in {**asdict(each), **derived}.items()}


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain_swing(swing: Swing) -> dict[str, Any]:
    winner = swing.winner and {"topology": swing.winner.topology, "copies": swing.winner.copies}
    return {"input": swing.name, "factor": swing.factor, "winner": winner, "changes": swing.changes}
