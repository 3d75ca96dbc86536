import asyncio
import gc
import multiprocessing
import os
import time

import pytest
from fake_deployment import Answer
from llmd_base.errors import InvalidStack
from llmd_bench.load import processes
from llmd_bench.load import stages as load_stages
from llmd_bench.load.processes import WorkerGroup
from llmd_bench.load.records import Failure, Trim
from llmd_bench.load.sending import Share
from llmd_bench.load.stages import LoadStage, StageConditions, run_stages, sweep
from llmd_bench.load.workload import (
    ClosedLoop,
    ConstantRate,
    Conversations,
    Fixed,
    PoissonRate,
    RequestWorkload,
    Trace,
    TraceEntry,
    arrivals_s,
)

SHORT = RequestWorkload(Fixed(16), Fixed(5))


async def run(deployment, *stages, workload=SHORT, limit_s=20, **options):
    return await run_stages(deployment.target, stages, workload, limit_s=limit_s, **options)


@pytest.mark.parametrize(
    ("shape", "processes"),
    [(ClosedLoop(2), 1), (ClosedLoop(4), 3), (ConstantRate(200), 3), (PoissonRate(200), 3)],
    ids=str,
)
async def test_each_request_of_a_load_stage_is_sent_once_and_has_a_record(deployment, shape, processes):
    (result,) = await run(deployment, LoadStage(shape, requests=11), processes=processes)
    assert [record.index for record in result.records] == list(range(11))
    assert all(record.succeeded and record.output_tokens == 5 for record in result.records)
    assert (result.planned, result.interrupted, len(result.health.cpu_share)) == (11, False, processes)
    assert len({body["prompt"] for body in deployment.requests}) == 11
    assert not multiprocessing.active_children()


async def test_load_processes_of_a_stage_follow_one_schedule_of_arrivals(deployment):
    shape = PoissonRate(100, seed=5)
    (result,) = await run(deployment, LoadStage(shape, requests=8), processes=2)
    due = [record.due_s for record in result.records]
    assert due == pytest.approx([at for at, _ in zip(arrivals_s(shape), range(8), strict=False)], abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "indexes"), [(ConstantRate(500), [[0, 2, 4], [1, 3]]), (ClosedLoop(2), [[0, 2, 4], [1, 3], []])]
)
async def test_each_load_generator_sends_its_share_of_requests_or_users(deployment, shape, indexes):
    parts = [StageConditions(share=Share(index, len(indexes))) for index in range(len(indexes))]
    results = [await run(deployment, LoadStage(shape, requests=5), conditions=part) for part in parts]
    assert [[record.index for record in result.records] for (result,) in results] == indexes
    assert [(result.planned, result.shortfall) for (result,) in results] == [(len(own), None) for own in indexes]


async def test_an_open_loop_of_a_duration_has_a_known_number_of_requests_unless_very_long(deployment):
    (result,) = await run(deployment, LoadStage(ConstantRate(100), duration_s=0.1))
    assert (len(result.records), result.planned) == (10, 10)
    (long,) = await run(deployment, LoadStage(ConstantRate(10), duration_s=1e9), limit_s=0.3)
    assert long.planned is None


async def test_stages_of_a_sweep_have_different_prompts(deployment):
    results = await run(deployment, *sweep(ConstantRate, (100, 200), requests=3))
    assert [result.stage.name for result in results] == ["constant:100", "constant:200"]
    assert len({body["prompt"] for body in deployment.requests}) == 6


async def test_a_trace_gives_times_and_lengths_of_requests(deployment):
    trace = Trace((TraceEntry(0.0, 8, 2), TraceEntry(0.05, 24)))
    (result,) = await run(deployment, LoadStage(trace))
    assert [(record.input_tokens, record.output_tokens) for record in result.records] == [(8, 2), (24, 5)]
    assert [record.due_s for record in result.records] == pytest.approx([0, 0.05])


async def test_a_load_stages_times_are_divided_by_the_time_scale(deployment):
    tenfold = StageConditions(time_scale=0.1)
    (result,) = await run(deployment, LoadStage(ConstantRate(10), requests=3), conditions=tenfold)
    assert [record.due_s for record in result.records] == pytest.approx([0, 0.1, 0.2])


async def test_the_prompt_of_a_conversations_turn_begins_with_earlier_prompts_and_answers(deployment):
    workload = RequestWorkload(Fixed(16), Fixed(2), conversations=Conversations(at_a_time=1, turns=3))
    await run(deployment, LoadStage(ClosedLoop(1), requests=4), workload=workload)
    first, second, third, other = (body["prompt"] for body in deployment.requests)
    assert second.startswith(f"{first} tok tok ")
    assert third.startswith(f"{second} tok tok ")
    assert not other.startswith(first)


async def test_a_conversations_turn_waits_for_an_earlier_answer_without_counting_as_late(deployment):
    deployment.script = lambda number: Answer(hang=number == 0)
    deployment.release_at = 2
    workload = RequestWorkload(Fixed(8), Fixed(1), conversations=Conversations(at_a_time=1, turns=2))
    (result,) = await run(deployment, LoadStage(ConstantRate(2), requests=3), workload=workload)
    assert result.records[1].started_s > result.records[2].started_s
    assert result.records[1].slip_s < 0.25


async def test_a_conversations_turns_are_sent_by_one_process(deployment):
    workload = RequestWorkload(Fixed(8), Fixed(1), conversations=Conversations(at_a_time=3, turns=2))
    (result,) = await run(deployment, LoadStage(ClosedLoop(3), requests=6), workload=workload, processes=2)
    assert [record.succeeded for record in result.records] == [True] * 6
    assert sum(" tok" in body["prompt"] for body in deployment.requests) == 3


async def test_failed_requests_of_a_load_stage_have_records_too(deployment):
    deployment.script = lambda number: Answer(status=503 if number % 2 else 200)
    (result,) = await run(deployment, LoadStage(ClosedLoop(1), requests=4))
    assert [record.failure for record in result.records] == [None, Failure.STATUS] * 2


async def test_the_time_limit_of_a_load_ends_all_its_stages(deployment):
    deployment.script = lambda _: Answer(hang=True)
    results = await run(deployment, *sweep(ClosedLoop, (1, 2), requests=3), limit_s=1)
    assert [[record.failure for record in result.records] for result in results] == [[Failure.TIMEOUT]]


async def test_cancelling_a_load_keeps_its_measurements(deployment):
    deployment.script = lambda number: Answer(hang=number >= 2)
    ended = asyncio.Event()

    def on_records(_, records):
        if any(record.index == 1 for record in records):
            ended.set()

    stages = [LoadStage(ClosedLoop(1), requests=5), LoadStage(ClosedLoop(1), requests=5)]
    running = asyncio.create_task(run(deployment, *stages, on_records=on_records))
    await ended.wait()
    running.cancel()
    (result,) = await running
    assert [record.index for record in result.records] == [0, 1]
    assert (result.interrupted, result.health.abandoned) == (True, 1)
    assert result.shortfall == "interrupted with 1 requests in flight; 3 of 5 requests were not sent"


def killing(index, times):
    """End the only process once request `index` has ended, so many times."""
    left = iter(range(times))

    def on_records(_, records):
        if any(record.index == index for record in records) and next(left, None) is not None:
            (child,) = multiprocessing.active_children()
            child.kill()

    return on_records


async def test_a_load_stage_whose_process_dies_is_repeated_with_other_prompts(deployment):
    deployment.script = lambda number: Answer(hang=number == 4)
    (result,) = await run(deployment, LoadStage(ClosedLoop(1), requests=6), on_records=killing(3, times=1))
    assert [record.index for record in result.records] == list(range(6))
    assert result.shortfall is None
    assert result.second_try_because.startswith("process 1 ended with code -9; 2 of 6 requests were not sent")
    assert len({body["prompt"] for body in deployment.requests}) == 5 + 6


async def test_a_load_stage_whose_process_dies_twice_is_incomplete_and_keeps_records(deployment):
    deployment.script = lambda number: Answer(hang=number in {4, 9})
    (result,) = await run(deployment, LoadStage(ClosedLoop(1), requests=6), on_records=killing(3, times=2))
    assert [record.index for record in result.records] == [0, 1, 2, 3]
    assert "process 1 ended with code -9" in result.health.spoiled
    assert "2 of 6 requests were not sent" in result.shortfall


class Gate:
    """A gate that processes of the generator meet, across forks: `wait` holds the first so many, until it is opened."""

    def __init__(self, holds=1000):
        context = multiprocessing.get_context("fork")
        self.open, self._came, self._holds = context.Event(), context.Value("i", 0), holds

    def wait(self):
        with self._came.get_lock():
            self._came.value += 1
            number = self._came.value
        if number <= self._holds:
            self.open.wait(60)


async def test_a_load_stage_begins_once_all_its_load_processes_are_ready(deployment, monkeypatch):
    gate, begins = Gate(), []
    collect, begin = gc.collect, WorkerGroup.begin
    monkeypatch.setattr(processes.gc, "collect", lambda: (gate.wait(), collect()))
    monkeypatch.setattr(WorkerGroup, "begin", lambda *given: begins.append(gate.open.is_set()) or begin(*given))
    stages = [LoadStage(ConstantRate(100), requests=2), LoadStage(ConstantRate(100), requests=2)]

    def open_later(_, records):
        if records:
            asyncio.get_running_loop().call_later(0.3, gate.open.set)

    results = await run(deployment, *stages, processes=2, on_records=open_later)
    assert begins == [False, True]
    assert [len(result.records) for result in results] == [2, 2]


async def test_a_load_process_that_is_not_ready_in_time_is_replaced(deployment, monkeypatch):
    gate = Gate(holds=1)
    work = processes.work
    monkeypatch.setattr(processes, "work", lambda *given: (gate.wait(), work(*given)))
    monkeypatch.setattr(processes, "READY_LIMIT_S", 3.0)
    (result,) = await run(deployment, LoadStage(ClosedLoop(2), requests=6), processes=2)
    assert (len(result.records), result.shortfall) == (6, None)
    assert "of the load generator did not get ready within 3 s" in result.second_try_because


async def test_a_load_stage_whose_process_is_never_ready_sends_nothing_and_says_why(deployment, monkeypatch):
    monkeypatch.setattr(processes, "work", lambda *_: Gate().wait())
    monkeypatch.setattr(processes, "READY_LIMIT_S", 0.1)
    (result,) = await run(deployment, LoadStage(PoissonRate(100), requests=40))
    assert "process 1 of the load generator did not get ready within 0.1 s" in result.shortfall
    assert "40 of 40 requests were not sent" in result.shortfall
    assert not deployment.requests


async def test_a_load_stage_whose_process_exits_at_once_reports_its_exit_code(deployment, monkeypatch):
    monkeypatch.setattr(processes, "work", lambda *_: os._exit(3))
    (result,) = await run(deployment, LoadStage(ClosedLoop(1), requests=4))
    assert result.shortfall.startswith("process 1 ended with code 3 before it could send anything")


@pytest.mark.parametrize(("ends", "least"), [({"requests": 7}, 7), ({"duration_s": 0.3}, 2)])
async def test_a_load_with_more_processes_than_users_still_sends_every_request(deployment, ends, least):
    """The machine decides how many requests a time has room for."""
    (result,) = await run(deployment, LoadStage(ClosedLoop(2), **ends), processes=3)
    assert result.shortfall is None
    assert [record.index for record in result.records][:least] == list(range(least))


@pytest.mark.parametrize(
    ("stage", "options", "shortfall"),
    [
        (LoadStage(ClosedLoop(1), duration_s=60), {"limit_s": 0.3}, "the time limit came before its end"),
        (LoadStage(ClosedLoop(1), requests=9), {"limit_s": 0.5}, "2 of 9 requests were not sent within the time limit"),
        (
            LoadStage(ConstantRate(100), requests=3),
            {"conditions": StageConditions(trim=Trim(warmup_s=60))},
            "nothing was sent in what counts (without the first 60 s)",
        ),
    ],
    ids=["ended early", "not all were sent", "nothing after the warm-up"],
)
async def test_an_incomplete_load_stage_is_reported_with_the_reason(deployment, stage, options, shortfall):
    deployment.script = lambda number: Answer(hang=number > 5)  # beyond two tries of three requests
    (result,) = await run(deployment, stage, **options)
    assert result.shortfall == shortfall


async def test_a_load_stage_interrupted_before_its_start_has_no_records(deployment, monkeypatch):
    monkeypatch.setattr(load_stages, "LIVE_INTERVAL_S", 1000.0)
    ended = asyncio.Event()
    two, rest = sweep(ClosedLoop, (1, 2), requests=1), StageConditions(rest_s=1000.0)
    running = asyncio.create_task(run(deployment, *two, conditions=rest, on_progress=lambda _: ended.set()))
    await ended.wait()
    running.cancel()
    first, second = await running
    assert (first.shortfall, second.records, second.interrupted) == (None, (), True)
    assert second.shortfall == "interrupted; 1 of 1 requests were not sent"


async def test_the_callback_for_request_records_gets_each_request_with_its_load_stage(deployment):
    told = []

    def on_records(stage, records):
        told.extend((stage, record.index) for record in records)

    await run(deployment, *sweep(ClosedLoop, (1, 2), requests=2), on_records=on_records)
    assert sorted(told) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_an_exception_in_the_callback_for_request_records_ends_the_load(deployment):
    def on_records(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await run(deployment, LoadStage(ClosedLoop(1), requests=2), on_records=on_records)


async def test_the_last_progress_report_of_a_load_stage_counts_all_requests(deployment):
    looks = []
    await run(deployment, LoadStage(ConstantRate(100), requests=5), on_progress=looks.append)
    last = looks[-1]
    assert (last.planned, last.sent, last.ended, last.failures, last.in_flight) == (5, 5, 5, 0, 0)
    assert last.offered_requests_per_s == 100


async def test_the_common_start_time_is_requested_once_all_load_processes_are_ready(deployment, monkeypatch):
    gate, asked = Gate(), []
    work = processes.work
    monkeypatch.setattr(processes, "work", lambda *given: (gate.wait(), work(*given)))

    async def tell():
        asked.append(gate.open.is_set())
        return time.time()

    asyncio.get_running_loop().call_later(0.3, gate.open.set)
    await run(deployment, LoadStage(ClosedLoop(1), requests=1), conditions=StageConditions(start_at=tell))
    assert asked == [True]


async def test_a_load_begins_at_the_requested_start_time_and_its_time_limit_with_it(deployment):
    start_s = time.time() + 2

    async def tell():
        return start_s

    together = StageConditions(start_at=tell)
    (result,) = await run(deployment, LoadStage(ClosedLoop(1), requests=1), conditions=together, limit_s=1.5)
    assert result.started.timestamp() == pytest.approx(start_s, abs=0.1)
    assert [record.succeeded for record in result.records] == [True]


async def test_a_trimmed_load_stage_states_which_shares_of_its_time_were_left_out(deployment):
    trim = StageConditions(trim=Trim(head_share=0.2, tail_share=0.2))
    (result,) = await run(deployment, LoadStage(ConstantRate(100), requests=11), conditions=trim)
    assert len(result.counted) < 11
    assert result.window.rule == "without the first 20% of the time, without the last 20% of the time"


async def test_a_load_generator_that_lags_starts_no_request_after_the_time_limit(deployment):
    (result,) = await run(deployment, LoadStage(ConstantRate(10_000), duration_s=0.4), limit_s=0.5)
    assert result.planned == 4000
    assert max(record.started_s for record in result.records) < 1


async def test_a_rate_beyond_what_a_process_can_send_is_refused(deployment):
    with pytest.raises(InvalidStack) as refused:
        await run(deployment, LoadStage(ConstantRate(1e9), duration_s=1), processes=2)
    assert [problem.accepted for problem in refused.value.problems] == ["at most 20000 requests/s, or more processes"]


async def test_all_invalid_load_stages_are_reported_before_any_request_is_sent(deployment):
    stages = [LoadStage(ConstantRate(5)), LoadStage(ClosedLoop(0), requests=0), LoadStage(Trace(()))]
    with pytest.raises(InvalidStack) as refused:
        await run(deployment, *stages, workload=RequestWorkload(Fixed(0), Fixed(1)), processes=0)
    assert [problem.path for problem in refused.value.problems] == [
        "stages[0]",
        "stages[1].requests",
        "stages[1].shape",
        "stages[2].shape",
        "input_tokens",
        "processes",
    ]
    assert refused.value.verdict == "the load can't be sent"
    assert not deployment.requests
