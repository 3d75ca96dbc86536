"""`llmd-oke bench` from pods in the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from llmd_oke import planning
from llmd_oke.cli import bench_target, bench_view, console
from llmd_oke.cli.bench_wanted import Timing, Wanted
from llmd_oke.cli.manifests import as_yaml
from llmd_oke.cli.results import show_rejected
from llmd_oke.cli.smoke import circumstances
from llmd_oke.cli.tables import Fitting
from llmd_oke.errors import KitError

if TYPE_CHECKING:
    from llmd_oke.experiments.deployed.kept_loads import Kept
    from llmd_oke.experiments.deployed.load import Asked
    from llmd_oke.results.row import Quantiles, Row


@dataclass(frozen=True)
class Pods:
    """Who sends the load; with `dry_run` nobody does, and the manifests are printed."""

    parallelism: int
    processes: int
    tool: Literal["own", "inference-perf"]
    dry_run: bool


def run(
    project: Path, stack: str, model: str | None, wanted: Wanted, timing: Timing, pods: Pods, reports: Path | None
) -> None:
    """Load a model of a stack from pods, keep the result in the stack's reports and show it.

    Raises:
        KitError: the load can't be run, or the Job fails.
    """
    from llmd_oke.experiments.deployed import kept_loads, load  # noqa: PLC0415 - not needed by other commands

    plan = planning.plan_stack_file(project, stack)
    chosen = bench_target.choose(plan.models, model)
    how = circumstances(timing.time_scale, timing.simulated, ())
    asked = _asked(wanted, timing, pods)
    if pods.dry_run:
        typer.echo(as_yaml(load.manifests(plan, chosen, asked, pods.tool)))
        return
    send = load.with_tool if pods.tool == "inference-perf" else load.in_cluster
    folder = kept_loads.new_folder(reports or project / "reports", stack)
    keeping = kept_loads.Keeping(folder, kept_loads.hints(plan, chosen, how))
    kept = send(plan, chosen, asked, keeping, console.progress())
    _show(kept, folder)
    bench_view.show_unmeasured(kept.unmeasured)
    if kept.interrupted:
        raise typer.Exit(console.INTERRUPTED)
    if kept.unmeasured or not any((row.requests or 0) > row.failures for row in kept.found.rows):
        raise typer.Exit(1)


def _show(kept: "Kept", folder: Path) -> None:
    rows = kept.found.rows
    show_rejected(kept.found.rejected)
    console.output().print(Fitting(_table(rows)))
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        console.output().print(f"note: {note}", markup=False)
    console.output().print(f"report  {folder}", soft_wrap=True)


def _asked(wanted: Wanted, timing: Timing, pods: Pods) -> "Asked":
    from llmd_oke.experiments.deployed.load import Asked  # noqa: PLC0415 - not needed by other commands

    if wanted.prefix or wanted.conversations or wanted.rest_s or wanted.limit_s:
        remedy = "Leave out --prefix, --conversations, --rest and --limit, or --in-cluster and --tool."
        raise KitError("Pods send single requests, one stage after the other.", remedy)
    return Asked(
        shapes=wanted.shapes,
        requests=wanted.requests,
        duration_s=wanted.duration_s,
        input_tokens=wanted.input_tokens,
        output_tokens=wanted.output_tokens,
        parallelism=pods.parallelism,
        processes=pods.processes,
        trim=wanted.trim,
        seed=wanted.seed,
        time_scale=timing.time_scale,
        request_timeout_s=timing.request_timeout_s,
    )


def _table(rows: Sequence["Row"]) -> Table:
    from llmd_oke.results.loads import pace  # noqa: PLC0415 - not needed by other commands

    numbers = ", ".join(sorted({row.basis.value for row in rows})) or "no"
    title = f"Latencies in ms (p50, TTFT also p95), rates per second of model time; {numbers} numbers"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("load", "sent", "failed", "req/s", "tokens/s", "TTFT", "p95", "TPOT", "E2E"):
        table.add_column(column, justify="left" if column == "load" else "right", no_wrap=True)
    for row in rows:
        rates = (_figure(row.achieved_requests_per_s), _figure(row.output_tokens_per_s))
        latencies = (_at(row.ttft_ms, "p50"), _at(row.ttft_ms, "p95"), _at(row.tpot_ms, "p50"), _at(row.e2e_ms, "p50"))
        table.add_row(pace(row), str(row.requests or 0), str(row.failures), *rates, *latencies)
    return table


def _at(quantiles: "Quantiles", name: str) -> str:
    return _figure(getattr(quantiles, name))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
