"""Runs: rounds, failures, interruption, going on."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import FakeDeployer, Measure, experiment, fill, measure_all
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_bench.files import read_rows
from llmd_tuner.experiments import runs
from llmd_tuner.experiments.preparation import Experiment, RunOptions
from llmd_tuner.experiments.runner import Runner
from llmd_tuner.experiments.runs import DeploymentRun, RunFolder, RunState

DISAGGREGATED, AGGREGATED = "disagg-1p-tp1-1d-tp1", "agg-tp1-2r"


def opened(made: Experiment) -> RunFolder:
    what = made.project, made.name, made.recipe, made.settings
    return runs.unfinished_run(*what) or runs.new_run(*what, [item.object_name for item in made.deployments])


def run(
    made: Experiment, measure: Measure = measure_all, broken: tuple[str, ...] = ()
) -> tuple[RunState, FakeDeployer, RunFolder]:
    folder = opened(made)
    deployer = FakeDeployer(folder, measure, broken)
    return Runner(made, folder, deployer, SilentProgress()).run(), deployer, folder


def fail_aggregated(deployment: str, folder: RunFolder) -> int:
    return 1 if deployment == AGGREGATED else measure_all(deployment, folder)


def stop_after_one(deployment: str, folder: RunFolder) -> int:
    fill(folder, deployment, folder.left(deployment)[0])
    raise KeyboardInterrupt


@pytest.fixture
def together(tmp_path: Path) -> Experiment:
    return experiment(tmp_path, RunOptions(gpus=4, rehearsed=True))


@pytest.fixture
def apart(tmp_path: Path) -> Experiment:
    return experiment(tmp_path, RunOptions(gpus=2, rehearsed=True))


def test_an_experiment_round_starts_together_is_measured_in_turn_and_stored(together: Experiment):
    state, deployer, folder = run(together)
    assert deployer.calls == [
        f"deploy {DISAGGREGATED} {AGGREGATED}",
        f"measure {DISAGGREGATED}",
        f"measure {AGGREGATED}",
        "teardown",
        "close",
    ]
    assert state.seconds.keys() == {"deploy", "teardown"}
    assignment = DeploymentRun.model_validate_json((folder.path / AGGREGATED / "assignment.json").read_text())
    assert assignment.simulated == ("vLLM",)
    assert assignment.stack == "s-experiment"
    assert assignment.limits_s.keys() == {"users-c2-s0", "users-c4-s0"}
    assert min(assignment.limits_s.values()) >= 600


def test_experiment_rounds_follow_each_other_and_become_rows_in_the_recipes_order(apart: Experiment):
    state, deployer, folder = run(apart)
    assert [call.split()[0] for call in deployer.calls] == ["deploy", "measure", "teardown"] * 2 + ["close"]
    assert state.ended
    assert [row.origin.file for row in read_rows(folder.rows_file)] == [
        f"{deployment}/users-c{users}-s0/row.json" for deployment in (DISAGGREGATED, AGGREGATED) for users in (2, 4)
    ]


def test_the_other_deployments_of_a_failed_experiment_round_are_measured_alone(together: Experiment):
    state, deployer, _ = run(together, broken=(DISAGGREGATED,))
    assert state.deployments[AGGREGATED].phase == "done"
    assert state.deployments[DISAGGREGATED].phase == "failed"
    assert "does not start" in (state.deployments[DISAGGREGATED].cause or "")
    assert deployer.calls[-4:] == [f"deploy {AGGREGATED}", f"measure {AGGREGATED}", "teardown", "close"]
    assert not state.ended


def test_a_failed_measurement_is_recorded_with_its_cause_and_alone_repeated(together: Experiment):
    state, _, _ = run(together, fail_aggregated)
    assert state.deployments[AGGREGATED].cause == "the measurement ended with exit code 1"
    assert state.deployments[DISAGGREGATED].phase == "done"
    state, deployer, _ = run(together)
    assert deployer.calls[0] == f"deploy {AGGREGATED}"
    assert state.ended


def test_an_interrupted_experiment_is_continued(apart: Experiment):
    with pytest.raises(KeyboardInterrupt):
        run(apart, stop_after_one)
    left: list[Any] = []

    def note(deployment: str, folder: RunFolder) -> int:
        left.append([stage.name for stage in folder.left(deployment)])
        return measure_all(deployment, folder)

    state, _, folder = run(apart, note)
    assert left == [["users-c4-s0"], ["users-c2-s0", "users-c4-s0"]]
    assert state.ended
    assert len(runs.runs_of(apart.project, "s", apart.name)) == 1
    assert len(folder.gather()) == 4


def test_an_interrupted_measurement_of_a_deployment_leaves_no_result(together: Experiment):
    folder = opened(together)
    stage = folder.left(AGGREGATED)[0]
    with contextlib.suppress(KeyboardInterrupt), folder.making(AGGREGATED, stage.name) as unfinished:
        (unfinished / "row.json").write_text("{")
        raise KeyboardInterrupt
    assert stage in folder.left(AGGREGATED)
    assert folder.gather() == []


def test_an_experiments_measurement_that_sent_no_request_is_an_error_with_its_file(together: Experiment):
    def measure_nothing(deployment: str, folder: RunFolder) -> int:
        fill(folder, deployment, folder.left(deployment)[0], requests=0)
        return 0

    with pytest.raises(KitError) as error:
        run(together, measure_nothing)
    file = opened(together).path / DISAGGREGATED / "users-c2-s0" / "row.json"
    assert error.value.message == f"{file} measured nothing: no request was sent (requests: 0)."
    assert f"Remove {file.parent}" in str(error.value.remedy)


def test_another_time_scale_starts_a_new_run_of_an_experiment(tmp_path: Path):
    opened(experiment(tmp_path, RunOptions(rehearsed=True, time_scale=1.0)))
    other = experiment(tmp_path, RunOptions(rehearsed=True, time_scale=2.0))
    assert runs.unfinished_run(tmp_path, other.name, other.recipe, other.settings) is None
