"""Stages of load, run one after the other by worker processes, with live rates and the load generator's own health.

stages = sweep(PoissonRate, (10, 20, 40), duration_s=120)
results = asyncio.run(run_stages(target, stages, Workload(Fixed(4096), Fixed(256)), limit_s=600))
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from time import perf_counter

from llmd_base.errors import InvalidStack, Problem

from llmd_bench.deployment import Stability
from llmd_bench.load.completions import CompletionsTarget, address_of
from llmd_bench.load.processes import (
    STOP_GRACE_S,
    Begin,
    Counts,
    NotReady,
    ProcessSettings,
    ProcessStage,
    SectionResult,
    WorkerGroup,
)
from llmd_bench.load.records import (
    NOTHING_TRIMMED,
    Health,
    MeasuredWindow,
    RequestRecord,
    Trim,
    delay_of,
    percentile,
    spoiled_reason,
    window_of,
)
from llmd_bench.load.sending import WHOLE, Share
from llmd_bench.load.workload import (
    ClosedLoop,
    ConstantRate,
    Fixed,
    Length,
    LoadShape,
    PoissonRate,
    RequestWorkload,
    Trace,
)


@dataclass(frozen=True)
class LoadStage:
    """One stage of load. It ends after `requests` requests or after `duration_s` simulated seconds (wall seconds / time
    scale), whichever comes first. A trace has its own end; all other shapes need one of the two limits.
    """

    shape: LoadShape
    requests: int | None = None
    duration_s: float | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """Label of the stage; the text of its shape if it has no label."""
        return self.label or str(self.shape)


@dataclass(frozen=True)
class StageResult:
    """Result of a stage of load. Times are simulated seconds (wall seconds / time scale) except in `health`, `started`
    and `wall_s`.

    Attributes:
        stage: the stage.
        records: records of all sent requests by index, also of those outside of the window.
        health: health of the load generator.
        window: part of the stage that counts in its figures.
        planned: number of requests to send; None if the duration ends a closed loop, or if the number is too large to
            count.
        started: start by the wall clock; None if the stage didn't start.
        wall_s: duration in wall time.
        interrupted: whether the run was ended before the stage was complete.
        shortfall: reason why the stage isn't the requested load; None if it is. A stage with a shortfall is no
            measurement: its requests may be shown but never become a row.
        second_try_because: shortfall of a first attempt, whose requests aren't in `records`; None if there was one
            attempt.
    """

    stage: LoadStage
    records: tuple[RequestRecord, ...] = field(repr=False)
    health: Health
    window: MeasuredWindow
    planned: int | None = None
    started: datetime | None = None
    wall_s: float = 0.0
    interrupted: bool = False
    shortfall: str | None = None
    second_try_because: str | None = None

    @cached_property
    def counted(self) -> tuple[RequestRecord, ...]:
        """Requests that were sent in the window, whose latencies count."""
        return tuple(record for record in self.records if self.window.has(record))

    @property
    def requests_per_s(self) -> float:
        """Rate of complete answers that ended in the window, per second."""
        return _rate(self.window.ended(self.records), self.window)

    @property
    def output_tokens_per_s(self) -> float:
        """Rate of output tokens that arrived in the window, per second."""
        return _rate(self.window.tokens(self.records), self.window)

    @property
    def concurrency(self) -> float:
        """Mean number of requests in flight in the window."""
        return self.window.in_flight(self.records)


def mark_restarts(result: StageResult, stable: Stability) -> StageResult:
    """Return the result of a stage, with a shortfall (a reason why the stage is no measurement) if model servers
    restarted during the stage.
    """
    return replace(result, shortfall=result.shortfall or str(stable)) if stable.restarted else result


def unmeasured(results: Iterable[StageResult]) -> list[str]:
    """Return the names of the stages that are no measurement, each with the reason (`shortfall`)."""
    return [f"{result.stage.name}: {result.shortfall}" for result in results if result.shortfall]


def sweep(
    shape: Callable[[float], LoadShape],
    values: Iterable[float],
    *,
    requests: int | None = None,
    duration_s: float | None = None,
) -> list[LoadStage]:
    """Return one stage for each value, for example for each rate: `sweep(PoissonRate, (1, 5, 10), duration_s=120)`."""
    return [LoadStage(shape(value), requests, duration_s) for value in values]


@dataclass(frozen=True)
class StageConditions:
    """Conditions under which stages run.

    Attributes:
        time_scale: wall seconds per simulated second, for simulated servers that run on another clock.
        trim: parts of each stage that don't count.
        rest_s: wall seconds between two stages.
        request_timeout_s: wall seconds after which a request times out.
        share: part of every stage that this program sends, while other programs send the rest.
        start_at: function that is awaited once this program is ready to send, and returns the start of the first stage
            in seconds since the Unix epoch, so that several programs start together.
    """

    time_scale: float = 1.0
    trim: Trim = NOTHING_TRIMMED
    rest_s: float = 0.0
    request_timeout_s: float = 300.0
    share: Share = WHOLE
    start_at: Callable[[], Awaitable[float]] | None = None


DEFAULT_CONDITIONS = StageConditions()
"""Conditions of a load that this program sends alone, immediately, in real time."""


def _rate(amount: float, window: MeasuredWindow) -> float:
    return amount / window.duration_s if window.duration_s else 0.0


VERDICT = "the load can't be sent"

MAX_REQUESTS_PER_S = 10_000.0
"""Maximum rate in requests per second and process: more than a process can send, so that a typing error doesn't run for
hours.
"""


def check(stages: Sequence[LoadStage], workload: RequestWorkload, processes: int) -> None:
    """Check stages and workload; `processes` is the total number of processes of all generators.

    Raises:
        InvalidStack: at least one is invalid; contains all problems.
    """
    problems = [
        *(
            problem
            for number, stage in enumerate(stages)
            for problem in _of_stage(f"stages[{number}]", stage, workload, processes)
        ),
        *_of_length("input_tokens", workload.input_tokens),
        *_of_length("output_tokens", workload.output_tokens),
    ]
    prefix, conversations = workload.prefix, workload.conversations
    if prefix and min(prefix.groups, prefix.tokens) < 1:
        problems.append(Problem("prefix", prefix, "at least 1 group and 1 token", "there would be no prefix"))
    if conversations and min(conversations.at_a_time, conversations.turns) < 1:
        accepted, why = "at least 1 at a time and 1 turn", "nothing would be said"
        problems.append(Problem("conversations", conversations, accepted, why))
    if processes < 1:
        problems.append(Problem("processes", processes, "at least 1", "someone has to send"))
    if problems:
        raise InvalidStack(problems, VERDICT)


def _of_stage(path: str, stage: LoadStage, workload: RequestWorkload, processes: int) -> Iterator[Problem]:
    if not isinstance(stage.shape, Trace) and stage.requests is None and stage.duration_s is None:
        yield Problem(path, str(stage.shape), "requests, duration, or both", "it would never end")
    for name, value in (("requests", stage.requests), ("duration_s", stage.duration_s)):
        if value is not None and value <= 0:
            yield Problem(f"{path}.{name}", value, "more than 0", "nothing would be sent")
    yield from _of_shape(f"{path}.shape", stage.shape, MAX_REQUESTS_PER_S * max(processes, 1))
    conversations = workload.conversations
    if conversations and isinstance(stage.shape, ClosedLoop) and stage.shape.concurrency > conversations.at_a_time:
        yield Problem(
            "conversations.at_a_time",
            conversations.at_a_time,
            f"at least {stage.shape.concurrency}",
            f"{stage.shape.concurrency} users would wait for each other's turns",
        )


def _of_shape(path: str, shape: LoadShape, most_per_s: float) -> Iterator[Problem]:
    if isinstance(shape, ClosedLoop):
        if shape.concurrency < 1:
            yield Problem(path, str(shape), "at least 1 user", "nothing would be sent")
    elif isinstance(shape, Trace):
        if not shape.entries:
            yield Problem(path, str(shape), "a trace with requests", "nothing would be sent")
    elif not 0 < shape.requests_per_s < float("inf"):
        yield Problem(path, str(shape), "a rate above 0", "nothing would be sent")
    elif shape.requests_per_s > most_per_s:
        why = f"a process of the generator can't send more than {MAX_REQUESTS_PER_S:g} requests/s"
        yield Problem(path, str(shape), f"at most {most_per_s:g} requests/s, or more processes", why)


def _of_length(path: str, length: Length) -> Iterator[Problem]:
    if isinstance(length, Fixed):
        if length.tokens < 1:
            yield Problem(path, length.tokens, "at least 1 token", "vLLM refuses an empty prompt or answer")
        return
    if length.mean <= 0 or length.stddev < 0 or not 1 <= length.least <= length.most:
        yield Problem(
            path, str(length), "a mean above 0, a deviation of at least 0, 1 <= least <= most", "no such lengths"
        )


@dataclass(frozen=True)
class Live:
    """State of a running stage of load. Rates are per simulated second (wall seconds / time scale) since the last
    state; achieved rates count successful requests. `planned` is None if the number of requests is unknown,
    `offered_requests_per_s` unless the stage has a constant or Poisson rate.
    """

    stage: int
    stages: int
    label: str
    elapsed_s: float
    planned: int | None
    sent: int
    ended: int
    failures: int
    in_flight: int
    offered_requests_per_s: float | None
    achieved_requests_per_s: float
    output_tokens_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.label}: {self.elapsed_s:.0f} s, {self.ended} ended, {self.in_flight} in flight, "
            f"{self.failures} failed, {self.achieved_requests_per_s:.1f} requests/s"
        )


class Meter:
    """Meter of a running stage, which turns growing numbers of requests and tokens into rates since its last
    reading.
    """

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self._looked_s = perf_counter()
        self._ended = 0
        self._tokens = 0

    def rates(self, counts: Counts, ended: int) -> tuple[float, float]:
        """Return the rates of ended requests and of output tokens since the last call, per simulated second (wall
        seconds / time scale).
        """
        now_s = perf_counter()
        passed_s = max(now_s - self._looked_s, 1e-3) / self._time_scale
        rates = (ended - self._ended) / passed_s, max(counts.tokens - self._tokens, 0) / passed_s
        self._looked_s, self._ended, self._tokens = now_s, ended, counts.tokens
        return rates


def generator_health(records: Sequence[RequestRecord], shape: LoadShape, findings: SectionResult) -> Health:
    """Return the load generator's health in a stage; times of `records` are in wall time."""
    is_open = not isinstance(shape, ClosedLoop)
    health = Health(
        slip_ms=delay_of([record.slip_s for record in records if record.slip_s is not None]),
        loop_lag_ms=delay_of(findings.lags_s),
        cpu_share=tuple(findings.cpu_share),
        offered_requests_per_s=_events_per_s([record.due_s or 0.0 for record in records]) if is_open else None,
        sent_requests_per_s=_events_per_s([record.started_s for record in records]) if is_open else None,
        abandoned=findings.abandoned,
    )
    ttfts_ms = sorted(1000 * record.ttft_s for record in records if record.ttft_s is not None)
    reasons = [*findings.lost, spoiled_reason(health, percentile(ttfts_ms, 50) if ttfts_ms else None)]
    return replace(health, spoiled="; ".join(reason for reason in reasons if reason) or None)


def _events_per_s(moments_s: Sequence[float]) -> float | None:
    """Return the rate of events at the given times; None for fewer than two different times."""
    if not moments_s or max(moments_s) == min(moments_s):
        return None
    return (len(moments_s) - 1) / (max(moments_s) - min(moments_s))


LEAD_S = 0.05
"""Seconds between the message to begin and the common start, long enough for all processes to read the message, for
which they wait.
"""

LIVE_INTERVAL_S = 1.0

MAX_COUNTED = 1_000_000
"""Maximum number of requests of an open loop that are counted in advance, which takes up to half a second."""

OnProgress = Callable[[Live], None]
OnRecords = Callable[[int, Sequence[RequestRecord]], None]


async def run_stages(
    target: CompletionsTarget,
    stages: Sequence[LoadStage],
    workload: RequestWorkload,
    *,
    limit_s: float,
    processes: int = 1,
    on_progress: OnProgress | None = None,
    on_records: OnRecords | None = None,
    conditions: StageConditions = DEFAULT_CONDITIONS,
) -> list[StageResult]:
    """Run `stages` one after the other with `processes` worker processes, and return their results.

    A failed request is a record. A stage that isn't sent completely, for example because a process died, is repeated
    once with other prompts, unless other programs send a share of it; a second shortfall is part of its result. After
    `limit_s` of wall time since the start no request is started and requests in flight end as timed out; later stages
    have no result.

    When the task is cancelled (Ctrl-C under `asyncio.run`), the function returns what was measured so far, with the
    last result marked as interrupted.

    Args:
        target: address, model and API.
        stages: the stages.
        workload: prompts and lengths.
        limit_s: limit of the whole run in seconds of wall time.
        processes: number of worker processes.
        on_progress: function that is called about once a second with the state of the running stage.
        on_records: function that is called with the number of the stage and the records of ended requests, with times
            in simulated seconds (wall seconds / time scale); records of a first attempt are included, so that all can
            be saved immediately.
        conditions: conditions under which the stages run.

    Raises:
        InvalidStack: a stage or the workload is invalid; contains all problems.
        KitError: the target's URL is invalid.
    """
    address_of(target)
    check(stages, workload, processes * conditions.share.count)
    assignment = ProcessSettings(target, workload, conditions.share, conditions.request_timeout_s)
    results: list[StageResult] = []
    async with WorkerGroup(assignment, processes) as workers:
        begin_s = await _common_start_s(workers, conditions)
        deadline_s = (perf_counter() if begin_s is None else begin_s) + limit_s

        def stage_run(number: int) -> _StageRun:
            return _StageRun(workers, stages[number], number, len(stages), conditions, on_progress, on_records)

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


async def _common_start_s(workers: WorkerGroup, conditions: StageConditions) -> float | None:
    """Return the time, on the clock of `perf_counter`, at which several programs start together, once this one is
    ready; None if it starts alone.
    """
    if not conditions.start_at:
        return None
    with contextlib.suppress(NotReady):  # the first stage says so
        await workers.get_ready()
    start_at_s = await conditions.start_at()
    return perf_counter() + max(start_at_s - time.time(), 0.0)


class _StageRun:
    """Execution of one stage by the worker processes."""

    def __init__(
        self,
        workers: WorkerGroup,
        stage: LoadStage,
        number: int,
        count: int,
        conditions: StageConditions,
        on_progress: OnProgress | None,
        on_records: OnRecords | None,
    ) -> None:
        self._workers = workers
        self._stage = stage
        self._number = number
        self._count = count
        self._conditions = conditions
        self._on_progress = on_progress
        self._on_records = on_records
        duration_s = None if stage.duration_s is None else stage.duration_s * conditions.time_scale
        self._section = ProcessStage("", stage.shape, stage.requests, duration_s, conditions.time_scale)
        self._last_due_s = duration_s or 0.0
        self._planned = self._plan()
        self.out_of_time = False
        """True if the run's time limit ended the stage; valid after `run`."""
        self._ended = self._failures = 0
        self._start_s = 0.0
        self._meter = Meter(conditions.time_scale)

    async def run(self, label: str, start_s: float | None, deadline_s: float) -> StageResult:
        """Run the stage from `start_s` on (on the clock of `perf_counter`), or as soon as all processes are ready if
        that is later or `start_s` is None.
        """
        findings, started, interrupted = SectionResult(), None, False
        try:
            if self._number:
                await asyncio.sleep(self._conditions.rest_s)
            await self._workers.get_ready()
            self._start_s = max(perf_counter() + LEAD_S, start_s or 0.0)
            started = datetime.fromtimestamp(time.time() + self._start_s - perf_counter(), UTC)
            order = Begin(replace(self._section, label=label), self._start_s, deadline_s)
            findings = self._workers.begin(order, self._note)
            live = asyncio.create_task(self._show())
            try:
                await self._workers.finish(deadline_s - perf_counter() + STOP_GRACE_S)
            finally:
                live.cancel()
        except NotReady as error:
            findings.lost.append(str(error))
        except asyncio.CancelledError:
            if task := asyncio.current_task():
                task.uncancel()
            interrupted = True
            self._workers.stop()
            await self._workers.finish(STOP_GRACE_S)
        self._look()
        self.out_of_time = deadline_s <= max(perf_counter(), self._start_s + self._last_due_s)
        return self._conclude(findings, started, interrupted=interrupted)

    def _plan(self) -> int | None:
        """Return the number of requests that this program has to send; None if the duration ends a closed loop, or if
        an open loop has more than `MAX_COUNTED` requests.
        """
        stage, share = self._stage, self._conditions.share
        if isinstance(stage.shape, ClosedLoop):
            return _of_users(share, self._workers.processes, stage.shape.concurrency, stage)
        count = 0
        for count, moment_s in enumerate(islice(self._section.moments_s(), MAX_COUNTED + 1), 1):  # noqa: B007
            self._last_due_s = moment_s
        return share.of(count) if count <= MAX_COUNTED else None

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
        counts, shape = self._workers.counts, self._stage.shape
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

    def _conclude(self, findings: SectionResult, started: datetime | None, *, interrupted: bool) -> StageResult:
        wall = sorted(findings.records, key=lambda record: record.index)
        records = tuple(record.in_model_time(self._conditions.time_scale) for record in wall)
        result = StageResult(
            stage=self._stage,
            records=records,
            health=generator_health(wall, self._stage.shape, findings),
            window=window_of(records, self._stage.shape, self._conditions.trim),
            planned=self._planned,
            started=started,
            wall_s=max((record.ended_s for record in wall), default=0.0),
            interrupted=interrupted,
        )
        return replace(result, shortfall="; ".join(self._short_of(result, findings)) or None)

    def _short_of(self, result: StageResult, findings: SectionResult) -> Iterator[str]:
        """Yield the reasons why the stage isn't the requested load."""
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


def _of_users(share: Share, processes: int, users: int, stage: LoadStage) -> int | None:
    """Return the number of requests that the processes of a share send in a closed loop, 0 if other processes already
    send for all users; None if the duration ends the stage.
    """
    senders = min(share.count * processes, users, stage.requests or users)
    parts = [share.part(number, processes).index for number in range(processes)]
    own = [Share(index, senders) for index in parts if index < senders]
    if not own:
        return 0
    if stage.requests is None or stage.duration_s is not None:
        return None
    return sum(one.of(stage.requests) for one in own)
