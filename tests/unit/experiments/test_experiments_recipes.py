"""Recipes: their shape, their rules, those that the kit has."""

from typing import Any

import pytest
from experiments_for_tests import CLOSED, OPEN, recipe, recipe_object
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.values import names
from llmd_tuner.experiments import recipes
from llmd_tuner.experiments.recipes import DECODE_BENCH, stages


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(InvalidStack) as refused:
        recipe(**changes)
    return {problem.path: problem.accepted for problem in refused.value.problems}


@pytest.mark.parametrize("name", names("recipes"))
def test_each_experiment_recipe_of_the_kit_can_be_loaded(name: str):
    assert recipes.load(name).deployments


def test_the_guide_and_pareto_recipes_have_the_published_deployments_and_loads():
    guide = recipes.load("guide")
    assert [(item.object_name, item.gpus) for item in guide.deployments] == [
        ("disagg-8p-tp1-2d-tp4", 16),
        ("agg-tp1-16r", 16),
    ]
    (stage,) = stages(guide, guide.deployments[0])
    assert (stage.requests, stage.level, stage.input_tokens, stage.output_tokens) == (5400, 45, 5000, 250)
    assert guide.model_of(guide.deployments[1]).router.mode == "none"
    pareto = recipes.load("pareto")
    assert [item.gpus for item in pareto.deployments] == [1, 2, 4, 8, 3, 4, 5]
    assert len(stages(pareto, pareto.deployments[0])) == 20


def test_load_stages_repeat_for_each_seed_with_a_request_for_each_user_at_least():
    many = recipe(loads=[{**CLOSED, "concurrencies": [2, 400]}])
    assert [stage.requests for stage in stages(many, many.deployments[0], most_requests=4)] == [4, 400]
    seeded = recipe(seeds=[1, 2])
    result = [stage.name for stage in stages(seeded, seeded.deployments[0])]
    assert result == ["users-c2-s1", "users-c2-s2", "users-c4-s1", "users-c4-s2"]


def test_all_structural_problems_of_an_experiment_recipe_are_reported_at_once():
    result = problems(deployments=[{"topology": "1p", "routr": {}}], loads=[{**CLOSED, "requests": 0}], gpu=1)
    assert result["deployments[0].topology"].startswith("{x}p-tp{p}-{y}d-tp{d}")
    assert result["deployments[0].routr"].startswith("router?")
    assert result["loads[0].requests"] == "at least 1"
    assert result["gpu"].startswith("gpus?")


def test_all_semantic_problems_of_an_experiment_recipe_are_reported_at_once():
    result = problems(
        deployments=[
            {"topology": "agg-tp1-1r", "loads": ["nothing"]},
            {"topology": "agg-tp1-1r"},
            {"topology": "1p-tp1-1d-tp1", "subject": "decode-only"},
            {"topology": "agg-tp2-1r", "subject": "prefill-only"},
        ],
        baseline="none",
        loads=[{**CLOSED, "requestsPerS": [1.0]}, {**OPEN, "durationS": None} | {"name": "users"}],
    )
    assert set(result) == {
        "baseline",
        "deployments[0].loads[0]",
        "deployments[1].name",
        "deployments[2].topology",
        "deployments[3].loads",
        "loads[0].requestsPerS",
        "loads[1].name",
        "loads[1].durationS",
    }


def test_missing_keys_of_a_load_are_named_and_unknown_ones_told_with_similar_ones():
    assert "loads[0].concurrencies" in problems(loads=[{key: CLOSED[key] for key in CLOSED if key != "concurrencies"}])
    assert "outputTokens" in problems(loads=[{**CLOSED, "outputToken": 3}])["loads[0].outputToken"]


def test_the_error_for_an_unknown_experiment_recipe_lists_the_existing_ones():
    with pytest.raises(KitError) as error:
        recipes.load("gide")
    assert "guide, pareto, scale-out" in (error.value.remedy or "")


def test_decode_only_servers_get_prefilled_prompts_and_have_no_router():
    alone = recipe(deployments=[{"topology": "agg-tp2-1r", "subject": "decode-only", "engine": {"extraArgs": ["--x"]}}])
    model = alone.model_of(alone.deployments[0])
    assert model.engine.extra_args == ("--x", DECODE_BENCH)
    assert model.router.mode == "none"
    assert model.object_name == "agg-tp2-1r-decode"


def test_an_experiments_model_is_planned_for_the_longest_prompts_and_answers():
    both = recipe(loads=[CLOSED, {**OPEN, "outputTokens": 900}])
    workload = both.model_of(both.deployments[0]).workload
    assert (workload.input_tokens, workload.output_tokens) == (1024, 900)


def test_an_experiment_recipe_is_read_back_as_stored_or_from_a_parsed_object():
    written = recipes.load("guide").model_dump_json()
    assert recipes.Recipe.model_validate_json(written) == recipes.load("guide")
    assert recipes.validate(recipe_object())
