"""Answers of simulated servers to `/render`, held to vLLM's own class of such requests."""

import pytest
from llmd_rehearsal.vllm.answers import rendered
from llmd_rehearsal.vllm.requests import RequestLimits, chat, completion
from real_vllm_for_tests import answered

pytestmark = pytest.mark.rehearsal

COMPLETION = {"model": "m", "prompt": ["hello there", "good morning"], "max_tokens": 3, "cache_salt": "x"}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello there"}],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": False},
}


@pytest.mark.parametrize(
    ("version", "since_0_30"), [("0.26.0", False), ("0.30.0", True)], ids=["real-0.26", "real-0.30"]
)
def test_rendered_prompts_are_requests_as_vllm_itself_writes_them(version: str, since_0_30: bool) -> None:
    limits = RequestLimits(("m",), 4096, 0, since_0_30=since_0_30)
    ours = [
        rendered(generation, choice, body, 4096, since_0_30=since_0_30)
        for generation, body in ((completion(COMPLETION, limits), COMPLETION), (chat(CHAT, limits), CHAT))
        for choice in generation.choices
    ]
    assert len(ours) == 3
    assert answered("rendered_request.py", ours, version) == ours
