"""Speculative decoding of a simulated server: steps of several tokens, their counters, memory and what is refused."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import test_utils
from llmd_oke.catalogue import model, shape
from llmd_rehearsal.vllm.api import ServerApi
from llmd_rehearsal.vllm.clocks import WallClock
from llmd_rehearsal.vllm.command import ACCEPTED_PERCENT, DraftSettings, settings
from llmd_rehearsal.vllm.engine import SimulatedEngine
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.metrics import ServerMetrics
from llmd_rehearsal.vllm.nixl import TransferNetwork
from llmd_rehearsal.vllm.startup import ContainerFiles, cache_size, read_draft
from llmd_tuner.latency_models import latency_model
from prometheus_client.parser import text_string_to_metric_families

EAGLE3 = '--speculative-config={"method": "eagle3", "model": "nvidia/draft", "num_speculative_tokens": 4}'
REPOSITORY = "openai/gpt-oss-120b"


def counters(metrics: ServerMetrics) -> dict[str, float]:
    samples = (sample for family in text_string_to_metric_families(metrics.text()) for sample in family.samples)
    found: dict[str, float] = {}
    for sample in samples:
        if "spec_decode" in sample.name:
            position = sample.labels.get("position")
            found[sample.name.removeprefix("vllm:spec_decode_num_") + (f" {position}" if position else "")] = (
                sample.value
            )
    return found


def draft_of(*flags: str, **environment: str) -> DraftSettings:
    draft = settings(["vllm", "serve", REPOSITORY, *flags], environment).draft
    assert draft is not None
    return draft


def test_with_speculative_decoding_a_step_yields_one_token_and_the_accepted_ones(serve, clock):
    server = serve(EAGLE3, environment={ACCEPTED_PERCENT: "50"})
    request = server.request(16, 13)
    clock.run()
    # the first of the prefill, then 1 + 2 of each of four steps
    assert len(request.times) == 5
    assert request.sequence.generated == 13
    assert server.metrics.generation_tokens == 13


def test_with_speculative_decoding_a_step_takes_longer_but_a_token_less_time(serve, clock):
    plain, drafting = serve(), serve(EAGLE3, environment={ACCEPTED_PERCENT: "50"})
    slow, fast = plain.request(16, 13), drafting.request(16, 13)
    clock.run()
    assert fast.gaps[0] > slow.gaps[0]
    assert fast.times[-1] - fast.times[0] < slow.times[-1] - slow.times[0]
    assert fast.gaps[0] == pytest.approx(drafting.latency.server(1).checked_step_s(1, 16, 4))


def test_metrics_count_drafted_and_accepted_tokens_of_speculative_decoding(serve, clock):
    server = serve(EAGLE3, environment={ACCEPTED_PERCENT: "50"})
    server.request(16, 13)
    clock.run()
    assert counters(server.metrics) == {
        "drafts_total": 4,
        "draft_tokens_total": 16,
        "accepted_tokens_total": 8,
        "accepted_tokens_per_pos_total 0": 4,
        "accepted_tokens_per_pos_total 1": 4,
        "accepted_tokens_per_pos_total 2": 0,
        "accepted_tokens_per_pos_total 3": 0,
    }


def test_a_server_without_drafts_has_no_draft_counters(serve):
    assert counters(serve().metrics) == {}


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
    plain, drafting = (
        cache_size(settings(["vllm", "serve", REPOSITORY, *flags], {}), chosen, nodes) for flags in ([], [EAGLE3])
    )
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
    with pytest.raises(StartRefusal, match=words):
        settings(["vllm", "serve", REPOSITORY, "--speculative-config", config], {})


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp"])
def test_older_names_of_the_multi_token_prediction_method_are_accepted(method: str):
    draft = draft_of(f"--speculative-config.method={method}", "--speculative-config.num_speculative_tokens", "2")
    assert (draft.method, draft.tokens) == ("mtp", 2)


def test_an_offline_server_does_not_start_if_its_draft_is_missing_in_the_model_cache(tmp_path):
    with pytest.raises(StartRefusal, match="snapshot folder"):
        read_draft(draft_of(EAGLE3), {"HF_HOME": "/model-cache"}, ContainerFiles({"/model-cache": str(tmp_path)}))


def test_without_chunked_prefill_the_token_budget_defaults_to_the_longest_sequence():
    words = ["vllm", "serve", REPOSITORY, "--no-enable-chunked-prefill", "--max-model-len=32768"]
    assert settings(words, {}).max_num_batched_tokens == 32768
    assert settings([*words, "--max-num-batched-tokens=8192"], {}).max_num_batched_tokens == 8192


async def test_with_drafts_a_stream_has_one_event_for_each_step_and_the_same_text():
    chosen, nodes = model("gpt-oss-120b"), shape("BM.GPU.MI300X.8")
    clock = WallClock(asyncio.get_running_loop(), 0.01)
    options = settings(["vllm", "serve", REPOSITORY, EAGLE3], {ACCEPTED_PERCENT: "50"})
    latency = latency_model(chosen, nodes)
    metrics = ServerMetrics(REPOSITORY, {}, connector=False, lag=clock.lag, drafted=4)
    engine = SimulatedEngine(options, cache_size(options, chosen, nodes), latency, metrics, clock, TransferNetwork())
    api = ServerApi(options, [engine], "v0.26.0", 0, 0, print)
    async with test_utils.TestClient(test_utils.RawTestServer(api.handle, handler_cancellation=True)) as client:
        body: dict[str, Any] = {"model": REPOSITORY, "prompt": "hello", "max_tokens": 13, "ignore_eos": True}
        whole = await (await client.post("/v1/completions", json=body)).json()
        events = await (await client.post("/v1/completions", json={**body, "stream": True})).text()
    documents = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    texts = [choice["text"] for document in documents for choice in document["choices"]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert len([text for text in texts if text]) == 5
    assert whole["usage"]["completion_tokens"] == 13
