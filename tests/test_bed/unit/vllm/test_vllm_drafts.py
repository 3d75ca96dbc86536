"""Speculative decoding of a simulated server: steps of several tokens, their counters, memory and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from llmd_oke.catalogue import model, shape
from llmd_rehearsal.vllm.command import ACCEPTED_PERCENT, DraftSettings
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.startup import ContainerFiles, cache_size, read_draft
from prometheus_client.parser import text_string_to_metric_families
from vllm_for_tests import REPOSITORY, events, post, read_flags, refusal

EAGLE3 = '--speculative-config={"method": "eagle3", "model": "nvidia/draft", "num_speculative_tokens": 4}'
HALF_ACCEPTED = {ACCEPTED_PERCENT: "50"}


def counters(metrics: ServerMetrics) -> dict[str, float]:
    samples = (sample for family in text_string_to_metric_families(metrics.text()) for sample in family.samples)
    drafts = (sample for sample in samples if "spec_decode" in sample.name)
    found = {f"{sample.name} {sample.labels.get('position', '')}".strip(): sample.value for sample in drafts}
    return {name.removeprefix("vllm:spec_decode_num_"): value for name, value in found.items()}


def draft_of(*flags: str, **environment: str) -> DraftSettings:
    draft = read_flags(*flags, environment=environment).draft
    assert draft is not None
    return draft


def test_a_step_yields_one_token_and_the_accepted_drafts_which_metrics_count(serve, clock):
    server = serve(EAGLE3, environment=HALF_ACCEPTED)
    request = server.request(16, 13)
    clock.run()
    # the first of the prefill, then 1 + 2 of each of four steps
    assert len(request.times) == 5
    assert request.sequence.generated == 13
    assert server.metrics.generation_tokens == 13
    assert counters(server.metrics) == {
        "drafts_total": 4,
        "draft_tokens_total": 16,
        "accepted_tokens_total": 8,
        "accepted_tokens_per_pos_total 0": 4,
        "accepted_tokens_per_pos_total 1": 4,
        "accepted_tokens_per_pos_total 2": 0,
        "accepted_tokens_per_pos_total 3": 0,
    }


def test_steps_with_drafts_are_longer_but_tokens_faster_and_only_they_are_counted(serve, clock):
    plain, drafting = serve(), serve(EAGLE3, environment=HALF_ACCEPTED)
    slow, fast = plain.request(16, 13), drafting.request(16, 13)
    clock.run()
    assert fast.gaps[0] > slow.gaps[0]
    assert fast.times[-1] - fast.times[0] < slow.times[-1] - slow.times[0]
    assert counters(plain.metrics) == {}
    assert fast.gaps[0] == pytest.approx(drafting.latency.server(1).checked_step_s(1, 16, 4))


def test_the_last_step_of_speculative_decoding_yields_no_more_tokens_than_requested(serve, clock):
    server = serve(EAGLE3, environment={ACCEPTED_PERCENT: "100"})
    request = server.request(16, 3)
    clock.run()
    assert request.sequence.generated == 3
    assert len(request.times) == 2


@pytest.mark.parametrize("percent", [0, 25, 60, 99, 100])
def test_over_many_drafts_the_share_of_accepted_tokens_is_the_configured_share(percent: int):
    draft = draft_of(EAGLE3, **{ACCEPTED_PERCENT: str(percent)})
    accepted = [draft.accepted(count) for count in range(1000)]
    assert sum(accepted) == 1000 * 4 * percent // 100
    assert max(accepted) - min(accepted) <= 1


def test_a_draft_models_weights_and_kv_cache_take_memory_from_the_targets_kv_cache():
    chosen, nodes = model("gpt-oss-120b"), shape("BM.GPU.MI300X.8")
    plain, drafting = (cache_size(read_flags(*flags), chosen, nodes) for flags in ([], [EAGLE3]))
    assert plain.available_gib_per_gpu - drafting.available_gib_per_gpu == pytest.approx(2.7)
    assert drafting.bytes_per_token - plain.bytes_per_token == 16384


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"method": "mtp"}', "num_speculative_tokens"),
        ('{"method": "mtp", "num_speculative_tokens": 0}', "greater than 0"),
        ('{"method": "eagle3", "num_speculative_tokens": 2}', "without speculative model"),
        ('{"method": "ngram", "num_speculative_tokens": 2}', "ngram"),
        ("[1]", "not an object"),
    ],
)
def test_a_server_does_not_start_with_speculative_settings_that_vllm_refuses(config: str, words: str):
    assert words in refusal("--speculative-config", config).text


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp"])
def test_older_names_of_the_multi_token_prediction_method_are_accepted(method: str):
    draft = draft_of(f"--speculative-config.method={method}", "--speculative-config.num_speculative_tokens", "2")
    assert (draft.method, draft.tokens) == ("mtp", 2)


def test_an_offline_server_does_not_start_if_its_draft_is_missing_in_the_model_cache(tmp_path):
    with pytest.raises(StartRefusal, match="snapshot folder"):
        read_draft(draft_of(EAGLE3), {"HF_HOME": "/model-cache"}, ContainerFiles({"/model-cache": str(tmp_path)}))


def test_without_chunked_prefill_the_token_budget_defaults_to_the_longest_sequence():
    flags = ("--no-enable-chunked-prefill", "--max-model-len=32768")
    assert read_flags(*flags).max_num_batched_tokens == 32768
    assert read_flags(*flags, "--max-num-batched-tokens=8192").max_num_batched_tokens == 8192


async def test_with_drafts_a_stream_has_one_event_for_each_step_and_the_same_text(start_api: Callable[..., Any]):
    client = await start_api(EAGLE3, environment=HALF_ACCEPTED)
    body = {"model": REPOSITORY, "prompt": "hello", "max_tokens": 13, "ignore_eos": True}
    _, whole = await post(client, "/v1/completions", body)
    streamed = await events(client, "/v1/completions", body)
    texts = [choice["text"] for event in streamed for choice in event["choices"]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert len([text for text in texts if text]) == 5
    assert whole["usage"]["completion_tokens"] == 13
