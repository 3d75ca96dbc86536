"""Answers of vLLM itself that count as right, and bytes of a prompt that are handed over."""

import pytest
from llmd_rehearsal.real_vllm.checked_model import Answer, ModelFacts

RIGHT = Answer(("a", "b"), {"a": -0.5, "c": -2.0}, 40)


def facts(*, exact: bool = True, window_tokens: int | None = None) -> ModelFacts:
    names = {"name": "m", "namespace": "llm-d", "service": "m", "repository": "acme/m", "apis": ("completions",)}
    sizes = {"block_size": 16, "full_block_bytes": 1000, "windowed_block_bytes": 10, "window_tokens": window_tokens}
    nothing = dict.fromkeys(("routers", "features", "groups", "metrics"), ())
    return ModelFacts(**names, **sizes, **nothing, policies_enforced=True, calls_by_schema=True, exact=exact)


@pytest.mark.parametrize(
    ("tokens", "first", "exact", "accepted"),
    [
        (("a", "b"), {"a": -0.5}, True, True),
        (("a", "x"), {"a": -0.5}, True, False),
        (("a", "x"), {"a": -0.55}, False, True),
        (("a", "b"), {"a": -0.7}, False, False),
        (("a", "b"), {"c": -0.5}, False, False),
    ],
)
def test_answers_by_transferred_cache_are_held_to_tokens_only_if_rounding_is_equal(
    tokens: tuple[str, ...], first: dict[str, float], exact: bool, accepted: bool
) -> None:
    assert facts(exact=exact).accepts(Answer(tokens, first, 40), RIGHT) is accepted


def test_a_prompts_transferred_bytes_count_the_blocks_that_a_window_keeps() -> None:
    assert facts().handed_over_bytes(40) == 3000
    assert facts(window_tokens=16).handed_over_bytes(160) == 10_000 + 1 * 10
    assert facts(window_tokens=16).handed_over_bytes(165) == 11_000 + 2 * 10
