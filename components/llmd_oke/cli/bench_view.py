"""Display of `llmd-oke bench`: one line while a stage runs, then a table of all stages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from llmd_base.errors import KitError
from llmd_base.records import document
from llmd_base.row import Basis, Quantiles
from llmd_bench.load.records import classify
from llmd_bench.load.stages import Live, StageResult
from llmd_bench.rows import quantiles_ms
from rich.live import Live as LiveDisplay
from rich.markup import escape
from rich.table import Table

from llmd_oke.cli import console

PLAIN_INTERVAL_S = 10.0
"""Seconds between two lines of progress if standard error isn't a terminal."""


class BenchProgressView:
    """Display of a load's progress: a table that is updated in place on a terminal, otherwise a line every
    ten seconds.
    """

    def __init__(self) -> None:
        self._display = LiveDisplay(console=console.errors(), auto_refresh=False, transient=True)
        self._is_terminal = console.errors().is_terminal
        self._progress = console.progress()
        self._said_s = -math.inf
        self._stage = -1

    def __enter__(self) -> "BenchProgressView":
        if self._is_terminal:
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def __call__(self, live: Live) -> None:
        """Show the present state of the run."""
        if self._is_terminal:
            fields = (f"[dim]{name}[/] {text}" for name, text in _live_fields(live))
            table = Table.grid(padding=(0, 3))
            table.add_row(f"[bold]{escape(live.label)}[/]", *fields)
            self._display.update(table, refresh=True)
            return
        if live.stage != self._stage:
            self._stage, self._said_s = live.stage, -math.inf
            self._progress.step(f"stage {live.stage + 1} of {live.stages}: {live.label}")
        if live.elapsed_s - self._said_s >= PLAIN_INTERVAL_S:
            self._said_s = live.elapsed_s
            self._progress.detail(", ".join(f"{name} {text}" for name, text in _live_fields(live)))


def _live_fields(live: Live) -> Iterator[tuple[str, str]]:
    yield "at", f"{live.elapsed_s:.0f} s"
    yield "requests", f"{live.ended}/{live.planned}" if live.planned is not None else f"{live.ended}"
    if live.offered_requests_per_s is not None:
        yield "offered", f"{live.offered_requests_per_s:g}/s"
    yield "achieved", f"{live.achieved_requests_per_s:.1f}/s"
    yield "tokens", f"{live.output_tokens_per_s:.0f}/s"
    yield "in flight", f"{live.in_flight}"
    yield "failed", f"{live.failures}"


def table(results: Sequence[StageResult], basis: Basis) -> Table:
    """Return the table of all stages of a load; latencies are means and 99th percentiles in milliseconds."""
    stages = Table(title=f"[bold]{basis}[/]; latencies in ms, mean and p99", box=None, title_justify="left")
    for column in ("load", "requests", "failed", "req/s", "tok/s", "TTFT", "p99", "ITL", "p99", "E2E", "p99"):
        stages.add_column(column, justify="left" if column == "load" else "right", no_wrap=column != "load")
    for result in results:
        good = [record for record in result.counted if record.succeeded]
        stages.add_row(
            escape(result.stage.name),
            f"{len(result.counted)}",
            f"{sum(not record.succeeded for record in result.counted)}",
            f"{result.requests_per_s:.2f}",
            f"{result.output_tokens_per_s:.0f}",
            *_two(quantiles_ms(record.ttft_s for record in good)),
            *_two(quantiles_ms(gap for record in good for gap in record.gaps_s)),
            *_two(quantiles_ms(record.latency_s for record in good)),
        )
    return stages


def _two(quantiles: Quantiles) -> tuple[str, str]:
    return (
        "-" if quantiles.mean is None else f"{quantiles.mean:.1f}",
        "-" if quantiles.p99 is None else f"{quantiles.p99:.1f}",
    )


def remarks(results: Sequence[StageResult]) -> Iterator[str]:
    """Yield remarks about the stages of a load: failures with an example of each kind, requests that aren't counted,
    and problems of the load generator.
    """
    for result in results:
        name = result.stage.name
        if result.second_try_because:
            yield f"{name}: measured at the second try; the first: {result.second_try_because}"
        if len(result.counted) != len(result.records):
            outside = len(result.records) - len(result.counted)
            yield f"{name}: {outside} of {len(result.records)} requests don't count ({result.window.rule})"
        yield from (f"{name}: {failure}" for failure in classify(result.records))
        if result.health.spoiled:
            yield f"{name}: {result.health.spoiled}"


def show_unmeasured(stages: Sequence[str]) -> None:
    """Show the stages of a load without a valid measurement, each with the reason."""
    if stages:
        remedy = (
            "Requests were kept, rows were not. Has this machine time to spare, the model time to answer, and do its"
            " servers run on?"
        )
        console.show_error(KitError(f"No measurement: {'; '.join(stages)}", remedy))


def summary(result: StageResult) -> dict[str, Any]:
    """Return the results of one stage of a load as plain data for JSON."""
    good = [record for record in result.counted if record.succeeded]
    return document(
        "load requests planned interrupted shortfall started window achieved_requests_per_s output_tokens_per_s"
        " concurrency",
        result,
        load=result.stage.name,
        requests=len(result.counted),
        started=result.started.isoformat(timespec="milliseconds") if result.started else None,
        window=document("begin_s end_s rule", result.window),
        achieved_requests_per_s=result.requests_per_s,
        ttft_ms=quantiles_ms(record.ttft_s for record in good).model_dump(),
        tpot_ms=quantiles_ms(record.tpot_s for record in good).model_dump(),
        itl_ms=quantiles_ms(gap for record in good for gap in record.gaps_s).model_dump(),
        e2e_ms=quantiles_ms(record.latency_s for record in good).model_dump(),
        failures=[vars(failure) for failure in classify(result.records)],
        generator=asdict(result.health),
    )
