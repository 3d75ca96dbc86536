"""Stages of load, run one after the other by processes of their own, with live rates and the generator's own health.

stages = sweep(PoissonRate, (10, 20, 40), duration_s=120)
results = asyncio.run(run_stages(target, stages, Workload(Fixed(4096), Fixed(256)), limit_s=600))
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.addresses import address_of
from llmd_oke.bench.generator.crews import STOP_GRACE_S, Crew, Findings, NotReady
from llmd_oke.bench.generator.driving import WHOLE, Share
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
"""Between the order to begin and the common start: all processes wait for it, so that it is all that they have to read.
"""

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

    A request that fails is a record. A stage of which not all was sent, for example because a process of the generator
    ended, is run once more with other prompts, unless others send a share of it; if that falls short too, its result
    says so. `on_progress` is told of a stage about once a second; `on_records` gets the number of a stage and requests
    of it that have ended, in model time, so that they can be written down at once, those of a first try included. After
    `limit_s` of wall time, from the start on, no request is started and those in flight end as timed out; stages after
    that have no result.

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
        deadline_s, begin_s = perf_counter() + limit_s, None
        if conditions.start_at:
            with contextlib.suppress(NotReady):  # the first stage says so
                await crew.get_ready()
            start_at_s = await conditions.start_at()
            begin_s = perf_counter() + max(start_at_s - time.time(), 0.0)
            deadline_s = begin_s + limit_s

        def stage_run(number: int) -> _StageRun:
            return _StageRun(crew, stages[number], number, len(stages), conditions, on_progress, on_records)

        for number in range(len(stages)):
            first = stage_run(number)
            result = await first.run(str(number), None if number else begin_s, deadline_s)
            if result.shortfall and not (result.interrupted or first.out_of_time) and conditions.share == WHOLE:
                again = await stage_run(number).run(f"{number} again", None, deadline_s)
                result = replace(again, second_try_because=result.shortfall)
            results.append(result)
            if result.interrupted or perf_counter() >= deadline_s:
                break
    return results


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
        self._section = Section("", stage.shape, stage.requests, duration_s, conditions.time_scale)
        self._last_due_s = duration_s or 0.0
        self._planned = self._plan()
        self.out_of_time = False
        """Whether the run's limit came before the stage's end, once that has been run."""
        self._ended = self._failures = 0
        self._start_s = 0.0
        self._meter = Meter(conditions.time_scale)

    async def run(self, label: str, start_s: float | None, deadline_s: float) -> StageResult:
        """Run it from `start_s` on, or as soon as all processes wait for it where that is later or None."""
        findings, started, interrupted = Findings(), None, False
        try:
            if self._number:
                await asyncio.sleep(self._conditions.rest_s)
            await self._crew.get_ready()
            self._start_s = max(perf_counter() + LEAD_S, start_s or 0.0)
            started = datetime.fromtimestamp(time.time() + self._start_s - perf_counter(), UTC)
            order = Begin(replace(self._section, label=label), self._start_s, deadline_s)
            findings = self._crew.begin(order, self._note)
            await self._watched(deadline_s - perf_counter() + STOP_GRACE_S)
        except NotReady as error:
            findings.lost.append(str(error))
        except asyncio.CancelledError:
            _go_on_after_cancel()
            interrupted = True
            self._crew.stop()
            await self._crew.finish(STOP_GRACE_S)
        self._look()
        self.out_of_time = deadline_s <= max(perf_counter(), self._start_s + self._last_due_s)
        return self._conclude(findings, started, interrupted=interrupted)

    async def _watched(self, limit_s: float) -> None:
        live = asyncio.create_task(self._show())
        try:
            await self._crew.finish(limit_s)
        finally:
            live.cancel()

    def _plan(self) -> int | None:
        """Requests that this program has to send; None where time ends them, or where they are too many to count."""
        stage, share = self._stage, self._conditions.share
        if isinstance(stage.shape, ClosedLoop):
            return _of_users(share, self._crew.processes, stage.shape.concurrency, stage)
        count = 0
        for count, moment_s in enumerate(islice(self._section.moments_s(), MOST_COUNTED + 1), 1):  # noqa: B007
            self._last_due_s = moment_s
        return share.of(count) if count <= MOST_COUNTED else None

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

    def _conclude(self, findings: Findings, started: datetime | None, *, interrupted: bool) -> StageResult:
        wall = sorted(findings.records, key=lambda record: record.index)
        records = tuple(record.in_model_time(self._conditions.time_scale) for record in wall)
        result = StageResult(
            stage=self._stage,
            records=records,
            health=examine(wall, self._stage.shape, findings),
            window=window_of(records, self._stage.shape, self._conditions.trim),
            planned=self._planned,
            started=started,
            wall_s=max((record.ended_s for record in wall), default=0.0),
            interrupted=interrupted,
        )
        return replace(result, shortfall="; ".join(self._short_of(result, findings)) or None)

    def _short_of(self, result: StageResult, findings: Findings) -> Iterator[str]:
        """Why the stage is not the load that was asked for."""
        yield from findings.lost
        if result.interrupted:
            in_flight = result.health.abandoned
            yield f"interrupted with {in_flight} requests in flight" if in_flight else "interrupted"
        sent, planned = len(result.records), self._planned
        if planned is not None and sent < planned:
            in_time = " within the time limit" if self.out_of_time else ""
            yield f"{planned - sent} of {planned} requests were not sent{in_time}"
        elif planned is None and self.out_of_time and sent != self._stage.requests:
            yield "the time limit came before its end"
        elif planned != 0 and not (result.counted and result.window.duration_s):
            yield f"nothing was sent in what counts ({result.window.rule})"


def _of_users(share: Share, processes: int, users: int, stage: Stage) -> int | None:
    """How many requests of a closed loop the processes of a share send: none where they are beyond the users."""
    senders = min(share.count * processes, users, stage.requests or users)
    parts = [share.part(number, processes).index for number in range(processes)]
    own = [Share(index, senders) for index in parts if index < senders]
    if not own:
        return 0
    if stage.requests is None or stage.duration_s is not None:
        return None
    return sum(one.of(stage.requests) for one in own)
