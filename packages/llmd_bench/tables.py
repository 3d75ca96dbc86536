"""Output of a smoke benchmark on a terminal, legible at 80 columns."""

from collections.abc import Iterator

from llmd_base.metrics import LATENCIES
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmd_bench.evidence import RemotePrefill
from llmd_bench.performance import Performance, Statistics
from llmd_bench.smoke import SmokeResult
from llmd_bench.smoke_request import Check

_COLUMNS = ("mean", "p50", "p90", "p95", "p99")


def render(result: SmokeResult) -> RenderableType:
    """Return headline, latencies, throughput, remote prefill, checks and remarks of a smoke benchmark for output by
    rich.
    """
    return Group(*_parts(result))


def _parts(result: SmokeResult) -> Iterator[RenderableType]:
    yield _headline(result)
    yield latency_table(result.performance)
    yield throughput_table(result.performance)
    if result.remote_prefill is not None:
        yield remote_prefill_table(result.remote_prefill)
    for answer in result.other_apis:
        yield Text(answer.sentence, style="" if answer.error is None else "red")
    if result.verdict.checks:
        yield checks_table(result.verdict.checks)
    for note in result.notes:
        yield Text(f"note: {note}", style="magenta")


def _headline(result: SmokeResult) -> Text:
    plan = result.plan
    numbers = f"{plan.basis} numbers"
    scale = "" if plan.time_scale == 1 else f", model time (wall time / {plan.time_scale:g})"
    simulated = f"; simulated: {', '.join(plan.simulated)}" if plan.simulated else ""
    return Text.assemble(
        (f"{plan.model} {plan.topology.name}", "bold"),
        f", {plan.topology.gpus} GPUs: {plan.requests} requests of {plan.input_tokens}/{plan.output_tokens} tokens, "
        f"{plan.concurrency} at a time; {numbers}{scale}{simulated}",
    )


def latency_table(performance: Performance) -> Table:
    """Return the table of a smoke benchmark's latencies in milliseconds."""
    table = Table(title="Latency (ms)", title_justify="left", expand=False)
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for latency in LATENCIES:
        statistics: Statistics | None = getattr(performance, latency.key)
        values: list[float | None] = [getattr(statistics, column, None) for column in _COLUMNS]
        cells = ["-" if value is None else f"{1000 * value:,.1f}" for value in values]
        table.add_row(f"{latency.title:<6}{latency.meaning}", *cells)
    return table


def throughput_table(performance: Performance) -> Table:
    """Return the table of a smoke benchmark's throughput: in total, per GPU and per user."""
    table = Table(title="Throughput", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    decode = "-" if performance.tpsu_decode is None else f"{performance.tpsu_decode:,.1f}"
    table.add_row("output", f"{performance.output_tokens_per_s:,.1f}", "tokens/s")
    table.add_row("input + output", f"{performance.total_tokens_per_s:,.1f}", "tokens/s")
    table.add_row("requests", f"{performance.requests_per_s:,.2f}", f"/s, {performance.duration_s:.1f} s in all")
    table.add_row("TPSG", f"{performance.tpsg:,.1f}", f"output tokens/s/GPU, {performance.gpus} GPUs")
    table.add_row("TPSU", f"{performance.tpsu:,.1f}", f"output tokens/s/user, {performance.users:g} users")
    table.add_row("TPSU decode", decode, "output tokens/s/user after the first token")
    return table


def remote_prefill_table(proof: RemotePrefill) -> Table:
    """Return the table of the shares of remote prefill by the counters of endpoint picker, prefill servers and decode
    servers.
    """
    share = "unknown" if proof.share is None else f"{proof.share:.1%}"
    table = Table(title=f"Remote prefill: {share} of {proof.requests} prompts", title_justify="left")
    table.add_column("says")
    table.add_column("share", justify="right")
    table.add_column("because")
    counters = proof.counters
    rows = (
        ("endpoint picker", proof.by_epp, ("router remote decisions", "router decisions")),
        ("prefill servers", proof.by_prefill, ("prefill prompt tokens", "prefill requests")),
        ("decode servers", proof.by_decode, ("decode received tokens", "decode transfers", "decode cached tokens")),
    )
    for party, share, names in rows:
        because = ", ".join(f"{name.split(' ', 1)[1]} {_count(counters[name].value)}" for name in names)
        table.add_row(party, "-" if share is None else f"{share:.1%}", because)
    table.add_row("failed prefills", _count(proof.failed_prefills), "chosen by the endpoint picker, not finished")
    for note in proof.notes:
        table.add_row("", "", Text(note, style="magenta"))
    return table


def checks_table(checks: tuple[Check, ...]) -> Table:
    """Return the table of a smoke benchmark's checks, with limits and measured values."""
    table = Table(title="Checks", title_justify="left")
    for column in ("", "check"):
        table.add_column(column, no_wrap=True)
    for column in ("limit", "result"):
        table.add_column(column, max_width=14, overflow="fold")
    table.add_column("evidence", min_width=18)
    for check in checks:
        mark = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        sign = "<=" if check.bound == "at most" else ">="
        limit = f"{sign} {_value(check.limit, check.units)}"
        measured = "unknown" if check.value is None else _value(check.value, check.units)
        table.add_row(mark, check.name, limit, measured, escape(check.evidence))
    return table


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _value(value: float, units: str) -> str:
    match units:
        case "share":
            return f"{value:.1%}"
        case "requests" | "servers":
            return f"{value:.0f}"
        case _:
            return f"{value:,.1f} {units}"
