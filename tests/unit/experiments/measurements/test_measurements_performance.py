"""What a stage comes to, as a whole and in its steady state."""

from dataclasses import replace

import pytest
from experiments_for_tests import CLOSED, OPEN, recipe
from llmd_oke.bench.load import stages
from llmd_oke.bench.load.stage import StageResult
from llmd_oke.bench.records.health import Health
from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.bench.records.windows import Trim, window_of
from llmd_oke.experiments.measurements import performance
from llmd_oke.experiments.measurements.measuring import answered_per_s, came_per_s
from llmd_oke.experiments.recipes import schedule


def request(index: int, started_s: float, latency_s: float = 1.0, failure: Failure | None = None) -> RequestRecord:
    times = () if failure else tuple(latency_s * share for share in (0.25, 0.5, 0.75, 1.0))
    return RequestRecord(index, started_s, latency_s, times, 64, len(times), failure=failure)


def found(stage: schedule.Stage, records: list[RequestRecord]) -> StageResult:
    window = window_of(records, stage.shape, Trim(busy=stage.steady_state))
    return StageResult(stages.Stage(stage.shape, stage.requests), tuple(records), Health(), window)


def closed_stage(*, steady_state: bool) -> schedule.Stage:
    one = recipe(loads=[{**CLOSED, "concurrencies": [2], "steadyState": steady_state}])
    return schedule.stages(one, one.deployments[0])[0]


TWO_USERS = [request(0, 0.0), request(1, 0.5), request(2, 1.0), request(3, 1.5), request(4, 2.0, 3.0)]
"""From second 0.5 to 2.5 both are busy; then one of them waits for a long answer."""


def test_a_whole_stage_counts_from_its_first_request_to_its_last_answer():
    whole = performance.of_window(found(stage := closed_stage(steady_state=False), TWO_USERS), stage, gpus=2)
    assert whole.duration_s == pytest.approx(5.0)
    assert whole.output_tokens_per_s == pytest.approx(20 / 5)


def test_in_the_steady_state_only_what_came_while_all_users_were_busy_counts():
    steady = performance.of_window(found(stage := closed_stage(steady_state=True), TWO_USERS), stage, gpus=2)
    assert steady.duration_s == pytest.approx(2.0)
    assert steady.output_tokens_per_s > 5
    assert steady.tpsg == steady.output_tokens_per_s / 2
    assert steady.users == 2


def test_failures_of_the_whole_stage_are_told_in_the_steady_state_too():
    records = [request(9, 0.0, 0.1, Failure.STATUS), *TWO_USERS]
    steady = performance.of_window(found(stage := closed_stage(steady_state=True), records), stage, gpus=2)
    assert (steady.requests, steady.failures) == (6, 1)


def test_a_stage_in_which_not_all_users_were_ever_busy_counts_as_a_whole():
    steady = performance.of_window(found(stage := closed_stage(steady_state=True), TWO_USERS[:1]), stage, gpus=2)
    assert steady.requests == 1


def test_the_answered_rate_is_not_held_down_by_the_last_answer():
    one = recipe(loads=[OPEN])
    stage = schedule.stages(one, one.deployments[0])[0]
    steady = found(stage, [request(i, i / 2, 3.0) for i in range(8)])
    assert answered_per_s(steady) == pytest.approx(2.0)


def test_a_growing_queue_holds_the_answered_rate_down():
    one = recipe(loads=[OPEN])
    stage = schedule.stages(one, one.deployments[0])[0]
    assert answered_per_s(found(stage, [request(i, i / 2, 1.0 + i) for i in range(8)])) < 1.6


def test_arrivals_are_counted_as_they_came():
    one = recipe(loads=[OPEN])
    stage = schedule.stages(one, one.deployments[0])[0]
    came = [replace(request(i, i / 1.6), due_s=i / 1.6) for i in range(8)]
    assert came_per_s(found(stage, came)) == pytest.approx(1.6)
