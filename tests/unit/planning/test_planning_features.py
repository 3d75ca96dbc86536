from typing import Any

import pytest
from llmd_oke import catalogue
from stack_files import model, plan, problems

QWEN = {"model": "qwen3-32b"}
MODELS = [known for name in catalogue.model_names() if (known := catalogue.model(name))]


def arguments(engine: dict[str, Any] | None = None, **changes: Any) -> tuple[str, ...]:
    planned = plan(model("1p-tp2-1d-tp2", engine=engine or {}, **{**QWEN, **changes}))
    (of_both,) = {role.settings.feature_arguments for role in planned.models[0].units[0].roles}
    return of_both


def test_servers_enable_all_features_that_the_catalogue_has_for_their_model():
    assert arguments() == (
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        "--reasoning-parser=qwen3",
    )


def test_a_stack_file_can_choose_among_the_features_of_a_model():
    assert arguments({"features": ["reasoning"]}) == ("--reasoning-parser=qwen3",)
    assert arguments({"features": []}) == ()


def test_a_model_without_optional_features_is_served_without_feature_arguments():
    assert arguments(model="mixtral-8x22b") == ()


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
