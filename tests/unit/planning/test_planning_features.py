from typing import Any

import pytest
from llmd_oke import catalogue
from stack_files import model, plan, problems

QWEN = {"model": "qwen3-32b"}
MODELS = [known for name in catalogue.model_names() if (known := catalogue.model(name))]


def arguments(engine: dict[str, Any] | None = None, **changes: Any) -> tuple[str, ...]:
    planned = plan(model("1p-tp2-1d-tp2", engine=engine or {}, **{**QWEN, **changes}))
    roles = {role.settings.feature_arguments for role in planned.models[0].units[0].roles}
    (of_both,) = roles
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


def test_a_feature_that_the_catalogue_lacks_for_the_model_is_refused():
    (problem,) = problems(model("agg-tp8-1r", model="mixtral-8x22b", engine={"features": ["tool-calling"]}))
    assert (problem.path, problem.value) == ("models[0].engine.features[0]", "tool-calling")
    assert problem.accepted == "nothing"
    (problem,) = problems(model("agg-tp8-1r", engine={"features": ["tool-calling", "reasoning"]}))
    assert (problem.path, problem.accepted) == ("models[0].engine.features[1]", "tool-calling")


def test_the_error_for_an_unknown_model_feature_lists_the_known_ones():
    (problem,) = problems(model("agg-tp8-1r", engine={"features": ["tools"]}))
    assert problem.path == "models[0].engine.features[0]"
    assert "tool-calling" in problem.accepted


@pytest.mark.parametrize("known", [known for known in MODELS if known.features], ids=lambda known: known.name)
def test_tool_calling_is_enabled_exactly_if_a_tool_call_parser_is_given(known: catalogue.CatalogueModel):
    given = known.feature_arguments(["tool-calling"])
    assert ("--enable-auto-tool-choice" in given) == any(word.startswith("--tool-call-parser=") for word in given)
