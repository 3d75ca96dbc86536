"""Stages of load, run one after the other by processes of their own, with live rates and the generator's own health.

stages = sweep(PoissonRate, (10, 20, 40), duration_s=120)
results = asyncio.run(run_stages(target, stages, Workload(Fixed(4096), Fixed(256)), limit_s=600))
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.addresses import address_of
from llmd_oke.bench.generator.crews import STOP_GRACE_S, Crew, Findings
from llmd_oke.bench.generator.examination import examine
from llmd_oke.bench.generator.workers import Assignment, Begin, Section
from llmd_oke.bench.load.checks import check
from llmd_oke.bench.load.live import Live, Meter
from llmd_oke.bench.load.stage import AS_IT_IS, Conditions, Stage, StageResult
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.records.windows import window_of
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, PoissonRate
from llmd_oke.bench.workload.workloads import Workload

LEAD_S = 0.05
"""Between the order to begin and the common start, for all processes to get ready."""

LIVE_INTERVAL_S = 1.0

MOST_COUNTED = 1_000_000
"""Requests of an open loop that are counted beforehand, which takes up to half a second."""


OnProgress = Callable[[Live], None]
OnRecords = Callable[[int, Sequence[RequestRecord]], None]


async def run_stages(
    target: Target,
    stages: Sequence[Stage],
    workload: Workload,
    *,
    limit_s: float,
    processes: int = 1,
    on_progress: OnProgress | None = None,
    on_records: OnRecords | None = None,
    conditions: Conditions = AS_IT_IS,
) -> list[StageResult]:
    """Run `stages` one after the other with `processes` generator processes, and tell what they came to.

    A request that fails is a record. `on_progress` is told of a stage about once a second; `on_records` gets the number
    of a stage and requests of it that have ended, in model time, so that they can be written down at once. After
    `limit_s` of wall time, from the start on, no request is started and those in flight end as timed out.

    When the task is cancelled (Ctrl-C under `asyncio.run`), this returns what was measured until then; the last result
    is marked as interrupted.

    Raises:
        Refused: a stage or the workload can't be run; carries everything that is wrong.
        KitError: the target's URL is none.
    """
    address_of(target)
    check(stages, workload, processes * conditions.share.count)
    assignment = Assignment(target, workload, conditions.share, conditions.request_timeout_s)
    results: list[StageResult] = []
    async with Crew(assignment, processes) as crew:
        deadline_s = perf_counter() + _until_start_s(conditions) + limit_s
        for number, stage in enumerate(stages):
            run = _StageRun(crew, stage, number, len(stages), conditions, on_progress, on_records)
            results.append(await run.run(deadline_s))
            if results[-1].interrupted or perf_counter() >= deadline_s or not await _rest(conditions, number, stages):
                break
    return results


def _until_start_s(conditions: Conditions) -> float:
    return max(0.0, conditions.start_at_s - time.time()) if conditions.start_at_s is not None else 0.0


async def _rest(conditions: Conditions, number: int, stages: Sequence[Stage]) -> bool:
    """Wait before the next stage; False if that was interrupted."""
    if number + 1 < len(stages) and conditions.rest_s:
        try:
            await asyncio.sleep(conditions.rest_s)
        except asyncio.CancelledError:
            _go_on_after_cancel()
            return False
    return True


def _go_on_after_cancel() -> None:
    task = asyncio.current_task()
    if task:
        task.uncancel()


class _StageRun:
    """One stage on its way."""

    def __init__(
        self,
        crew: Crew,
        stage: Stage,
        number: int,
        count: int,
        conditions: Conditions,
        on_progress: OnProgress | None,
        on_records: OnRecords | None,
    ) -> None:
        self._crew = crew
        self._stage = stage
        self._number = number
        self._count = count
        self._conditions = conditions
        self._on_progress = on_progress
        self._on_records = on_records
        duration_s = None if stage.duration_s is None else stage.duration_s * conditions.time_scale
        self._section = Section(number, stage.shape, stage.requests, duration_s, conditions.time_scale)
        self._planned = self._plan()
        self._ended = self._failures = 0
        self._start_s = 0.0
        self._meter = Meter(conditions.time_scale)

    async def run(self, deadline_s: float) -> StageResult:
        self._start_s = self._choose_start_s()
        started = datetime.fromtimestamp(time.time() + self._start_s - perf_counter(), UTC)
        findings = self._crew.begin(Begin(self._section, self._start_s, deadline_s), self._note)
        live = asyncio.create_task(self._show())
        interrupted = False
        try:
            await self._crew.finish(deadline_s - perf_counter() + STOP_GRACE_S)
        except asyncio.CancelledError:
            _go_on_after_cancel()
            interrupted = True
            self._crew.stop()
            await self._crew.finish(STOP_GRACE_S)
        finally:
            live.cancel()
        self._look()
        return self._conclude(findings, started, interrupted=interrupted)

    def _plan(self) -> int | None:
        stage = self._stage
        if isinstance(stage.shape, ClosedLoop):
            return stage.requests if stage.duration_s is None else None
        moments = sum(1 for _ in islice(self._section.moments_s(), MOST_COUNTED + 1))
        return self._conditions.share.of(moments) if moments <= MOST_COUNTED else None

    def _choose_start_s(self) -> float:
        wait_s = 0.0 if self._number else _until_start_s(self._conditions)
        return perf_counter() + max(LEAD_S, wait_s)

    def _note(self, records: Sequence[RequestRecord]) -> None:
        self._ended += len(records)
        self._failures += sum(not record.succeeded for record in records)
        if self._on_records and records:
            scale = self._conditions.time_scale
            self._on_records(self._number, [record.in_model_time(scale) for record in records])

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(LIVE_INTERVAL_S)
            self._look()

    def _look(self) -> None:
        if not self._on_progress:
            return
        counts, shape = self._crew.counts, self._stage.shape
        achieved, tokens = self._meter.rates(counts, self._ended - self._failures)
        self._on_progress(
            Live(
                stage=self._number,
                stages=self._count,
                label=self._stage.name,
                elapsed_s=max(perf_counter() - self._start_s, 0.0) / self._conditions.time_scale,
                planned=self._planned,
                sent=counts.sent,
                ended=self._ended,
                failures=self._failures,
                in_flight=counts.in_flight,
                offered_requests_per_s=shape.requests_per_s if isinstance(shape, ConstantRate | PoissonRate) else None,
                achieved_requests_per_s=achieved,
                output_tokens_per_s=tokens,
            )
        )

    def _conclude(self, findings: Findings, started: datetime, *, interrupted: bool) -> StageResult:
        wall = sorted(findings.records, key=lambda record: record.index)
        records = tuple(record.in_model_time(self._conditions.time_scale) for record in wall)
        return StageResult(
            stage=self._stage,
            records=records,
            health=examine(wall, self._stage.shape, findings),
            window=window_of(records, self._stage.shape, self._conditions.trim),
            planned=self._planned,
            started=started,
            wall_s=max((record.ended_s for record in wall), default=0.0),
            interrupted=interrupted,
        )
