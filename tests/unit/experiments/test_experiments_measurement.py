import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import CLOSED, OPEN, experiment, recipe
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_bench.deployment import Parallelism, ReportedServers, ReportedTopology, ServerPod
from llmd_bench.evals import BuiltinResult
from llmd_bench.load import processes, stages
from llmd_bench.load.records import Failure, Health, RequestRecord, Trim, window_of
from llmd_bench.load.stages import StageResult
from llmd_bench.smoke import SmokePlan
from llmd_bench.smoke_request import SmokeLimits
from llmd_tuner.experiments import measurement, recipes, runs
from llmd_tuner.experiments.measurement import answered_per_s, came_per_s
from llmd_tuner.experiments.preparation import RunOptions
from llmd_tuner.experiments.runs import FAILURE_FILE, DeploymentRun, RunFolder

DEPLOYMENT = "agg-tp1-2r"
LOADS = [
    {**CLOSED, "concurrencies": [2], "requests": 2, "inputTokens": 64, "outputTokens": 4},
    {**OPEN, "requestsPerS": [0.5], "durationS": 2000.0, "outputTokens": 4},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).parents[3] / "dev" / "exact_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


@pytest.fixture
def assignment(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> DeploymentRun:
    made = experiment(tmp_path, RunOptions(gpus=2, rehearsed=True, only=(DEPLOYMENT,)), loads=LOADS)
    folder = runs.new_run(made.project, made.name, made.recipe, made.settings, [DEPLOYMENT])
    topology = ReportedTopology(DEPLOYMENT, (ReportedServers("aggregated", 2, Parallelism(1), image="vllm:1"),))
    plan = SmokePlan(url, "model", topology, 64, 4)
    monkeypatch.setattr(measurement, "base_plan", lambda _: plan)
    return DeploymentRun(
        project=made.project,
        stack="s-experiment",
        folder=folder.path,
        recipe=made.name,
        deployment=DEPLOYMENT,
        subject="end-to-end",
        limits_s={stage.name: 600.0 for stage in folder.left(DEPLOYMENT)},
        router="llm-d-0.9.0",
    )


class Interrupting(SilentProgress):
    """A user who presses Ctrl-C once the second stage runs."""

    pressed = False

    def detail(self, text: str) -> None:
        if not self.pressed and text.startswith("rate") and " requests" in text:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_load_stage_leaves_no_result(assignment: DeploymentRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measurement, "INTERVAL_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        measurement.measure(assignment, Interrupting())
    folder = RunFolder(assignment.folder)
    assert [stage.name for stage in folder.left(DEPLOYMENT)] == ["rate-r0.5-s0"]
    assert [row.origin.file for row in folder.gather()] == [f"{DEPLOYMENT}/users-c2-s0/row.json"]


def test_a_load_stage_without_any_sent_request_is_an_error_with_its_cause(
    assignment: DeploymentRun, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "work", lambda *_: sys.exit(3))
    file = assignment.folder / DEPLOYMENT / "assignment.json"
    file.parent.mkdir()
    file.write_text(assignment.model_dump_json())
    assert measurement.measure_file(file, SilentProgress()) == 1
    cause: dict[str, Any] = json.loads(file.with_name(FAILURE_FILE).read_text())
    assert f"{DEPLOYMENT} was not measured under users-c2-s0: process 1 ended with code 3" in cause["cause"]
    assert "the first try: process 1 ended with code 3" in cause["cause"]
    assert "The same command tries it again" in cause["cause"]
    assert len(RunFolder(assignment.folder).left(DEPLOYMENT)) == 2


def test_a_deployment_with_wrong_answers_is_not_measured(assignment: DeploymentRun, monkeypatch: pytest.MonkeyPatch):
    async def evaluated(*_: object) -> BuiltinResult:
        return BuiltinResult("set", datetime.now(UTC), 1.0, "1" * 9 + "0", 0, ("sum-9: '41'",))

    plan = replace(measurement.base_plan(assignment), thresholds=SmokeLimits(min_accuracy=0.95))
    monkeypatch.setattr(measurement, "base_plan", lambda _: plan)
    monkeypatch.setattr(measurement, "evaluate", evaluated)
    with pytest.raises(KitError, match=r"agg-tp1-2r answers wrongly \(accuracy 90.0%, at least 95.0%.*sum-9"):
        measurement.measure(assignment, SilentProgress())
    assert RunFolder(assignment.folder).gather() == []


def test_a_load_stage_with_a_restarted_server_is_an_error(assignment: DeploymentRun, monkeypatch: pytest.MonkeyPatch):
    counted = iter(range(9))
    plan = replace(
        measurement.base_plan(assignment), servers=lambda: (ServerPod("aggregated", "server-0", next(counted)),)
    )
    monkeypatch.setattr(measurement, "base_plan", lambda _: plan)
    cause = r"1 model server restarted during the run.*server-0 \(1 time\)"
    with pytest.raises(KitError, match=f"under users-c2-s0: {cause}"):
        measurement.measure(assignment, SilentProgress())
    assert len(RunFolder(assignment.folder).left(DEPLOYMENT)) == 2


def request(index: int, started_s: float, latency_s: float = 1.0, failure: Failure | None = None) -> RequestRecord:
    times = () if failure else tuple(latency_s * share for share in (0.25, 0.5, 0.75, 1.0))
    return RequestRecord(index, started_s, latency_s, times, 64, len(times), failure=failure)


def measured(stage: recipes.RecipeStage, records: list[RequestRecord]) -> StageResult:
    window = window_of(records, stage.shape, Trim(busy=stage.steady_state))
    return StageResult(stages.LoadStage(stage.shape, stage.requests), tuple(records), Health(), window)


def stage_of(**load: object) -> recipes.RecipeStage:
    one = recipe(loads=[load])
    return recipes.stages(one, one.deployments[0])[0]


def of_two_users(records: list[RequestRecord], *, steady_state: bool) -> Any:
    """Return what is measured of two users on two GPUs, as a whole or in the steady state."""
    stage = stage_of(**{**CLOSED, "concurrencies": [2], "steadyState": steady_state})
    return measurement.of_window(measured(stage, records), stage, gpus=2)


TWO_USERS = [request(0, 0.0), request(1, 0.5), request(2, 1.0), request(3, 1.5), request(4, 2.0, 3.0)]
"""From second 0.5 to 2.5 both are busy; then one of them waits for a long answer."""


def test_a_load_stage_is_measured_from_first_request_to_last_answer():
    whole = of_two_users(TWO_USERS, steady_state=False)
    assert whole.duration_s == pytest.approx(5.0)
    assert whole.output_tokens_per_s == pytest.approx(20 / 5)


def test_the_steady_state_of_a_closed_loop_is_the_time_with_all_users_busy_if_any():
    steady = of_two_users(TWO_USERS, steady_state=True)
    assert steady.duration_s == pytest.approx(2.0)
    assert steady.output_tokens_per_s > 5
    assert steady.tpsg == steady.output_tokens_per_s / 2
    assert steady.users == 2
    assert of_two_users(TWO_USERS[:1], steady_state=True).requests == 1


def test_failures_before_the_steady_state_of_a_load_stage_are_reported_too():
    steady = of_two_users([request(9, 0.0, 0.1, Failure.STATUS), *TWO_USERS], steady_state=True)
    assert (steady.requests, steady.failures) == (6, 1)


def test_a_growing_queue_lowers_the_answered_request_rate_and_last_answers_do_not():
    stage = stage_of(**OPEN)
    steady = measured(stage, [request(i, i / 2, 3.0) for i in range(8)])
    assert answered_per_s(steady) == pytest.approx(2.0)
    assert answered_per_s(measured(stage, [request(i, i / 2, 1.0 + i) for i in range(8)])) < 1.6


def test_the_arrival_rate_of_a_load_stage_is_computed_from_its_actual_arrivals():
    came = [replace(request(i, i / 1.6), due_s=i / 1.6) for i in range(8)]
    assert came_per_s(measured(stage_of(**OPEN), came)) == pytest.approx(1.6)
