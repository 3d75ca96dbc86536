"""What a simulated model reads, and what a damaged KV cache makes of it."""

import pytest
from llmd_oke.bench.evals.builtin import builtin_set
from llmd_oke.bench.evals.grading import right
from llmd_oke.bench.evals.items import builtin_items
from llmd_oke.rehearsal.vllm.reading import misread, read
from test_vllm_handover import NIXL, hand_over


@pytest.mark.parametrize("item", builtin_items(builtin_set()), ids=lambda item: item.id)
def test_every_question_of_the_kits_own_set_is_answered_rightly_and_misread_wrongly(item):
    answer = read(f"<|user|>{item.prompt}")
    assert right(item, answer)
    assert not right(item, misread(answer))


def test_another_prompt_is_not_read():
    assert read("Write a poem about the number 7 + 5") is None


@pytest.mark.parametrize(("percent", "corrupted"), [("0", False), ("100", True)])
def test_the_planted_fault_damages_what_is_pulled(serve, clock, percent, corrupted):
    prefill = serve("--kv-transfer-config", NIXL, host="10.244.0.2")
    fault = {"LLMD_OKE_REHEARSED_CORRUPT_KV_PERCENT": percent}
    decode = serve("--kv-transfer-config", NIXL, host="10.244.0.3", environment=fault)
    request, _ = hand_over(clock, prefill, decode)
    assert request.sequence.corrupted is corrupted
