from typing import Any

import pytest
from llmd_oke import catalogue
from stack_files import model, plan, problems

MODELS = [known for name in catalogue.model_names() if (known := catalogue.model(name))]


@pytest.mark.parametrize(
    ("name", "engine", "expected"),
    [
        ("qwen3-32b", {}, ("--enable-auto-tool-choice", "--tool-call-parser=hermes", "--reasoning-parser=qwen3")),
        ("qwen3-32b", {"features": ["reasoning"]}, ("--reasoning-parser=qwen3",)),
        ("qwen3-32b", {"features": []}, ()),
        ("mixtral-8x22b", {}, ()),
    ],
    ids=["all by default", "one", "none", "a model without features"],
)
def test_servers_enable_all_features_of_their_model_or_those_of_the_stack_file(
    name: str, engine: dict[str, Any], expected: tuple[str, ...]
):
    roles = plan(model("1p-tp2-1d-tp2", model=name, engine=engine)).models[0].units[0].roles
    assert {role.settings.feature_arguments for role in roles} == {expected}


@pytest.mark.parametrize(
    ("name", "features", "refused", "accepted"),
    [
        ("mixtral-8x22b", ["tool-calling"], 0, "nothing"),
        ("gpt-oss-120b", ["tool-calling", "reasoning"], 1, "tool-calling"),
        ("gpt-oss-120b", ["tools"], 0, "'tool-calling' or 'reasoning'"),
    ],
    ids=["a model without features", "a feature that the model lacks", "an unknown feature"],
)
def test_a_feature_that_the_catalogue_lacks_for_the_model_is_refused(
    name: str, features: list[str], refused: int, accepted: str
):
    (problem,) = problems(model("agg-tp8-1r", model=name, engine={"features": features}))
    assert (problem.path, problem.accepted) == (f"models[0].engine.features[{refused}]", accepted)


def test_tool_calling_is_enabled_exactly_if_a_tool_call_parser_is_given():
    for known in (known for known in MODELS if known.features):
        given = known.feature_arguments(["tool-calling"])
        parses = any(word.startswith("--tool-call-parser=") for word in given)
        assert ("--enable-auto-tool-choice" in given) == parses, known.name
