import asyncio
import multiprocessing
import time

import pytest
from fake_deployment import Answer
from llmd_oke.bench.generator.driving import Share
from llmd_oke.bench.load.stage import Conditions, Stage, sweep
from llmd_oke.bench.load.stages import run_stages
from llmd_oke.bench.records.request import Failure
from llmd_oke.bench.records.windows import Trim
from llmd_oke.bench.workload.lengths import Fixed
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, PoissonRate, Trace, TraceEntry, arrivals_s
from llmd_oke.bench.workload.workloads import Conversations, SharedPrefix, Workload
from llmd_oke.errors import Refused

SHORT = Workload(Fixed(16), Fixed(5))


async def run(deployment, *stages, workload=SHORT, limit_s=20, **options):
    return await run_stages(deployment.target, stages, workload, limit_s=limit_s, **options)


async def test_every_request_of_a_stage_has_a_record(deployment):
    (result,) = await run(deployment, Stage(ClosedLoop(2), requests=7))
    assert [record.index for record in result.records] == list(range(7))
    assert all(record.succeeded and record.output_tokens == 5 for record in result.records)
    assert (result.planned, result.interrupted) == (7, False)


@pytest.mark.parametrize("shape", [ClosedLoop(4), ConstantRate(200), PoissonRate(200)])
async def test_processes_share_a_stage_exactly(deployment, shape):
    (result,) = await run(deployment, Stage(shape, requests=11), processes=3)
    assert [record.index for record in result.records] == list(range(11))
    assert len({body["prompt"] for body in deployment.requests}) == 11
    assert len(result.health.cpu_share) == 3


async def test_processes_keep_one_schedule(deployment):
    shape = PoissonRate(100, seed=5)
    (result,) = await run(deployment, Stage(shape, requests=8), processes=2)
    due = [record.due_s for record in result.records]
    assert due == pytest.approx([at for at, _ in zip(arrivals_s(shape), range(8), strict=False)], abs=1e-6)


async def test_programs_can_share_a_stage(deployment):
    parts = [Conditions(share=Share(index, 2)) for index in (0, 1)]
    results = [await run(deployment, Stage(ConstantRate(500), requests=5), conditions=part) for part in parts]
    assert [[record.index for record in result.records] for (result,) in results] == [[0, 2, 4], [1, 3]]


async def test_a_stage_may_end_by_time(deployment):
    (result,) = await run(deployment, Stage(ConstantRate(100), duration_s=0.1))
    assert (len(result.records), result.planned) == (10, 10)


async def test_a_closed_loop_may_end_by_time(deployment):
    (result,) = await run(deployment, Stage(ClosedLoop(1), duration_s=0.5))
    assert result.records
    assert max(record.started_s for record in result.records) < 1


async def test_stages_of_a_sweep_have_different_prompts(deployment):
    results = await run(deployment, *sweep(ConstantRate, (100, 200), requests=3))
    assert [result.stage.name for result in results] == ["constant:100", "constant:200"]
    assert len({body["prompt"] for body in deployment.requests}) == 6


async def test_a_trace_gives_times_and_lengths(deployment):
    trace = Trace((TraceEntry(0.0, 8, 2), TraceEntry(0.05, 24)))
    (result,) = await run(deployment, Stage(trace))
    assert [(record.input_tokens, record.output_tokens) for record in result.records] == [(8, 2), (24, 5)]
    assert [record.due_s for record in result.records] == pytest.approx([0, 0.05])


async def test_results_are_in_model_time(deployment):
    (result,) = await run(deployment, Stage(ConstantRate(10), requests=3), conditions=Conditions(time_scale=0.1))
    assert [record.due_s for record in result.records] == pytest.approx([0, 0.1, 0.2])


async def test_requests_share_a_prefix_where_they_should(deployment):
    workload = Workload(Fixed(16), Fixed(1), prefix=SharedPrefix(groups=1, tokens=32))
    await run(deployment, Stage(ClosedLoop(1), requests=3), workload=workload)
    prompts = [body["prompt"] for body in deployment.requests]
    assert len({prompt[: 4 * 32] for prompt in prompts}) == 1
    assert len({prompt[4 * 32 :] for prompt in prompts}) == 3


async def test_a_turn_has_what_was_said_before(deployment):
    workload = Workload(Fixed(16), Fixed(2), conversations=Conversations(at_a_time=1, turns=3))
    await run(deployment, Stage(ClosedLoop(1), requests=4), workload=workload)
    first, second, third, other = (body["prompt"] for body in deployment.requests)
    assert second.startswith(f"{first} tok tok ")
    assert third.startswith(f"{second} tok tok ")
    assert not other.startswith(first)


async def test_a_turn_waits_for_the_answer_before_it_and_that_is_no_slip(deployment):
    deployment.script = lambda number: Answer(hang=number == 0)
    deployment.release_at = 2
    workload = Workload(Fixed(8), Fixed(1), conversations=Conversations(at_a_time=1, turns=2))
    (result,) = await run(deployment, Stage(ConstantRate(2), requests=3), workload=workload)
    assert result.records[1].started_s > result.records[2].started_s
    assert result.records[1].slip_s < 0.25


async def test_processes_keep_the_turns_of_a_conversation_together(deployment):
    workload = Workload(Fixed(8), Fixed(1), conversations=Conversations(at_a_time=3, turns=2))
    (result,) = await run(deployment, Stage(ClosedLoop(3), requests=6), workload=workload, processes=2)
    assert [record.succeeded for record in result.records] == [True] * 6
    assert sum(" tok" in body["prompt"] for body in deployment.requests) == 3


async def test_failures_are_records(deployment):
    deployment.script = lambda number: Answer(status=503 if number % 2 else 200)
    (result,) = await run(deployment, Stage(ClosedLoop(1), requests=4))
    assert [record.failure for record in result.records] == [None, Failure.STATUS] * 2


async def test_the_limit_ends_all_stages(deployment):
    deployment.script = lambda _: Answer(hang=True)
    results = await run(deployment, *sweep(ClosedLoop, (1, 2), requests=3), limit_s=1)
    assert [[record.failure for record in result.records] for result in results] == [[Failure.TIMEOUT]]


async def test_cancelling_keeps_what_was_measured(deployment):
    deployment.script = lambda number: Answer(hang=number >= 2)
    ended = asyncio.Event()

    def on_records(_, records):
        if any(record.index == 1 for record in records):
            ended.set()

    stages = [Stage(ClosedLoop(1), requests=5), Stage(ClosedLoop(1), requests=5)]
    running = asyncio.create_task(run(deployment, *stages, on_records=on_records))
    await ended.wait()
    running.cancel()
    (result,) = await running
    assert [record.index for record in result.records] == [0, 1]
    assert (result.interrupted, result.health.abandoned) == (True, 1)


async def test_a_process_that_dies_spoils_the_stage_and_loses_no_other_requests(deployment):
    deployment.script = lambda number: Answer(hang=number >= 4)

    def on_records(_, records):
        if any(record.index == 3 for record in records):
            (child,) = multiprocessing.active_children()
            child.kill()

    (result,) = await run(deployment, Stage(ClosedLoop(1), requests=6), on_records=on_records)
    assert [record.index for record in result.records] == [0, 1, 2, 3]
    assert "process 1 ended with code -9" in result.health.spoiled


async def test_requests_are_told_as_they_end(deployment):
    told = []
    stages = sweep(ClosedLoop, (1, 2), requests=2)
    await run(
        deployment, *stages, on_records=lambda stage, records: told.extend((stage, each.index) for each in records)
    )
    assert sorted(told) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_a_listener_that_fails_ends_the_run(deployment):
    def on_records(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await run(deployment, Stage(ClosedLoop(1), requests=2), on_records=on_records)


async def test_no_process_stays(deployment):
    await run(deployment, Stage(ClosedLoop(1), requests=1), processes=2)
    assert not multiprocessing.active_children()


async def test_the_last_look_at_a_stage_has_everything(deployment):
    looks = []
    await run(deployment, Stage(ConstantRate(100), requests=5), on_progress=looks.append)
    last = looks[-1]
    assert (last.planned, last.sent, last.ended, last.failures, last.in_flight) == (5, 5, 5, 0, 0)
    assert last.offered_requests_per_s == 100


async def test_a_run_can_begin_at_a_given_moment(deployment):
    start_s = time.time() + 2
    (result,) = await run(deployment, Stage(ClosedLoop(1), requests=1), conditions=Conditions(start_at_s=start_s))
    assert result.started.timestamp() == pytest.approx(start_s, abs=0.1)


async def test_the_limit_begins_at_the_start(deployment):
    later = Conditions(start_at_s=time.time() + 1.0)
    (result,) = await run(deployment, Stage(ClosedLoop(1), requests=1), conditions=later, limit_s=0.8)
    assert [record.succeeded for record in result.records] == [True]


async def test_trimming_is_told(deployment):
    trim = Conditions(trim=Trim(head_share=0.2, tail_share=0.2))
    (result,) = await run(deployment, Stage(ConstantRate(100), requests=11), conditions=trim)
    assert len(result.counted) < 11
    assert result.window.rule == "without the first 20% of the time, without the last 20% of the time"


async def test_no_request_is_started_after_the_limit_by_a_generator_that_is_late(deployment):
    (result,) = await run(deployment, Stage(ConstantRate(10_000), duration_s=0.4), limit_s=0.5)
    assert result.planned == 4000
    assert max(record.started_s for record in result.records) < 1


async def test_more_requests_than_can_be_counted_soon_are_not_counted(deployment):
    (result,) = await run(deployment, Stage(ConstantRate(10), duration_s=1e9), limit_s=0.3)
    assert result.planned is None


async def test_a_rate_that_no_process_can_send_is_refused(deployment):
    with pytest.raises(Refused) as refused:
        await run(deployment, Stage(ConstantRate(1e9), duration_s=1), processes=2)
    assert [problem.accepted for problem in refused.value.problems] == ["at most 20000 requests/s, or more processes"]


async def test_all_that_is_wrong_is_told_before_anything_is_sent(deployment):
    stages = [Stage(ConstantRate(5)), Stage(ClosedLoop(0), requests=0), Stage(Trace(()))]
    with pytest.raises(Refused) as refused:
        await run(deployment, *stages, workload=Workload(Fixed(0), Fixed(1)), processes=0)
    assert [problem.path for problem in refused.value.problems] == [
        "stages[0]",
        "stages[1].requests",
        "stages[1].shape",
        "stages[2].shape",
        "input_tokens",
        "processes",
    ]
    assert not deployment.requests


async def test_a_load_that_is_refused_is_not_called_a_stack(deployment):
    with pytest.raises(Refused) as refused:
        await run(deployment, Stage(ClosedLoop(0), requests=1))
    assert refused.value.verdict == "the load can't be sent"
