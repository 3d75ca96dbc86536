from pathlib import Path

import pytest
from experiments_for_tests import CLOSED, OPEN, experiment, project, small_model
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import config, planning
from llmd_oke.values import read_yaml
from llmd_rehearsal import deployer as rehearsed
from llmd_tuner.experiments import deployer, preparation
from llmd_tuner.experiments.preparation import RunOptions, forecast_of, pack
from stack_files import created_cluster


def names(made: preparation.Experiment) -> list[str]:
    return [item.object_name for item in made.deployments]


def test_deployments_that_fit_the_gpus_together_are_in_one_round_and_others_in_two(tmp_path: Path):
    made = experiment(tmp_path, RunOptions(gpus=4, rehearsed=True))
    assert [[item.object_name for item in group] for group in made.rounds(names(made))] == [names(made)]
    made = experiment(tmp_path, RunOptions(gpus=2, rehearsed=True))
    assert [len(group) for group in made.rounds(names(made))] == [1, 1]


def test_an_experiment_on_real_nodes_may_use_only_gpus_that_the_stack_leaves_free(tmp_path: Path):
    with pytest.raises(InvalidStack) as refused:
        experiment(tmp_path, RunOptions(), deployments=[{"topology": "agg-tp1-8r"}])
    (problem,) = refused.value.problems
    assert problem.path == "deployments[0].topology"
    assert "leave 7" in problem.why


def test_an_experiment_on_a_stack_without_free_gpus_is_refused_with_a_remedy(tmp_path: Path):
    experiment(tmp_path, RunOptions())
    own = small_model("agg-tp1-8r")
    with pytest.raises(KitError) as error:
        preparation.prepare(project(tmp_path, models=[own]), str(tmp_path / "tiny.yaml"), "s", RunOptions())
    assert "--gpus" in (error.value.remedy or "")


def test_invalid_topologies_of_an_experiment_are_reported_by_field_of_its_recipe(tmp_path: Path):
    with pytest.raises(InvalidStack) as refused:
        experiment(tmp_path, deployments=[{"topology": "agg-tp3-1r"}, {"topology": "1p-tp2-1d-tp1"}])
    assert [problem.path for problem in refused.value.problems] == [
        "deployments[0].topology",
        "deployments[1].topology",
    ]
    assert refused.value.verdict == "the recipe can't be run"


def test_an_experiment_can_be_limited_to_some_of_its_deployments(tmp_path: Path):
    made = experiment(tmp_path, RunOptions(rehearsed=True, only=("agg-tp1-2r",)))
    assert names(made) == ["agg-tp1-2r"]
    with pytest.raises(KitError, match="no deployment other"):
        experiment(tmp_path, RunOptions(rehearsed=True, only=("other",)))


def test_an_experiments_stack_serves_its_models_in_its_own_namespace(tmp_path: Path):
    made = experiment(tmp_path, RunOptions())
    models = [made.recipe.model_of(item) for item in made.deployments]
    plan = planning.plan(config.validate(deployer.derive(made.base, "s", models)))
    assert (plan.layer, plan.namespace) == ("serving", "llm-d-experiment")
    assert plan.cluster == made.base.cluster
    assert [model.name for model in plan.models] == names(made)


def test_an_experiments_stack_requires_accuracy_with_settings_that_change_answers(tmp_path: Path):
    made = experiment(tmp_path, deployments=[{"topology": "agg-tp2-1r"}])
    base = made.base.model_copy(update={"override": config.stack.Override(quick_reduce="INT4")})
    models = [made.recipe.model_of(item) for item in made.deployments]
    plan = planning.plan(config.validate(deployer.derive(base, "s", models)))
    assert (plan.smoke.where, plan.models[0].min_accuracy) == ("client", 0.95)


def test_an_experiment_on_a_created_cluster_deploys_a_separate_serving_stack(tmp_path: Path):
    made = experiment(tmp_path)
    cluster = config.CreateCluster.model_validate(created_cluster(), by_alias=True)
    derived = deployer.derive(made.base.model_copy(update={"cluster": cluster}), "s", [])
    assert derived["clusterStack"] == "organization/llmd-oke/s"
    assert "cluster" not in derived


def test_an_experiments_stack_file_keeps_other_config_and_is_removed_at_the_end(tmp_path: Path):
    project(tmp_path)
    written = read_yaml(deployer.write(tmp_path, "s", {"layer": "serving"}))
    assert written["encryptionsalt"] == "v1:salt"
    assert written["config"] == {"llmd-oke:stack": {"layer": "serving"}, "llmd-oke:other": "kept"}
    deployer.remove(tmp_path, "s")
    assert config.stacks(tmp_path) == ["s"]


def test_an_open_loop_takes_its_duration_for_each_rate_after_a_measured_deployment(tmp_path: Path):
    made = experiment(tmp_path, RunOptions(gpus=4), loads=[{**OPEN, "durationS": 600.0}])
    (only,) = forecast_of(made, names(made), {}).rounds
    assert only.bench.seconds == pytest.approx(2 * 600, rel=0.1)
    assert only.deploy.basis == "assumed"
    (only,) = forecast_of(made, names(made), {"deploy": 77.0}).rounds
    assert (only.deploy.seconds, only.deploy.basis) == (77.0, "measured")


def test_experiments_cost_their_gpus_for_their_time_and_rehearsed_ones_only_time(tmp_path: Path):
    forecast = forecast_of(made := experiment(tmp_path, RunOptions(gpus=4)), names(made), {})
    assert forecast.price_usd == pytest.approx(4 * forecast.seconds / 3600 * 6.0)
    quick = experiment(tmp_path, RunOptions(gpus=4, rehearsed=True, time_scale=1.0))
    slow = experiment(tmp_path, RunOptions(gpus=4, rehearsed=True, time_scale=10.0))
    ratio = [forecast_of(item, names(item), {}).rounds[0].bench.seconds for item in (slow, quick)]
    assert ratio[0] == pytest.approx(10 * ratio[1])
    assert forecast_of(quick, names(quick), {}).price_usd == 0


def test_one_closed_loop_on_fewer_servers_is_forecast_to_take_longer(tmp_path: Path):
    loads = [{**CLOSED, "concurrencies": [512], "requests": 1024}]
    small = experiment(tmp_path, RunOptions(gpus=4), loads=loads)
    large = experiment(tmp_path, RunOptions(gpus=4), loads=loads, deployments=[{"topology": "agg-tp1-4r"}])
    seconds = [forecast_of(item, names(item)[-1:], {}).rounds[0].bench.seconds for item in (small, large)]
    assert seconds[0] > 1.2 * seconds[1]


def test_rehearsals_alone_simulate_heavier_load_more_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def time_scale(asked: RunOptions, rate: float, tokens: int = 8) -> float:
        loads = [{**OPEN, "requestsPerS": [rate], "outputTokens": tokens}]
        return experiment(tmp_path, asked, loads=loads).settings.time_scale

    monkeypatch.setattr(rehearsed, "processors", lambda: 2.0)
    on_simulated = RunOptions(gpus=4, rehearsed=True)
    assert time_scale(on_simulated, 1.0, 256) == 1.0 < time_scale(on_simulated, 100.0, 256)
    assert time_scale(RunOptions(gpus=4), 1000.0) == 1.0


def test_deployments_are_packed_largest_first_into_rounds_that_can_run_together():
    assert pack([1, 2, 4, 8, 3, 4, 5], int, 16, lambda _: True) == [[8, 5, 3], [4, 4, 2, 1]]
    assert pack([4, 4], int, 16, lambda some: len(some) < 2) == [[4], [4]]


@given(st.lists(st.integers(1, 16), max_size=20))
def test_each_deployment_is_in_one_experiment_round_and_none_exceeds_the_gpus(sizes: list[int]):
    groups = pack(sizes, int, 16, lambda _: True)
    assert sorted(size for group in groups for size in group) == sorted(sizes)
    assert all(sum(group) <= 16 for group in groups)
