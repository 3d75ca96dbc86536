"""Speculative decoding of vLLM itself on a processor, alone and in prefill and decode servers that hand over KV cache:
answers are the model's own, and drafts are counted.
"""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from hand_over_servers import BLOCK_TOKENS, Pair, Served, completion, transfer_flags
from llmd_base.progress import SilentProgress
from llmd_rehearsal.real_vllm import tiny_models
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from prometheus_client.parser import text_string_to_metric_families
from real_servers import CONTEXT, READY_S, TINY, server, wait_for
from real_vllm_for_tests import need_real_vllm
from tiny_drafts import eagle3_draft, with_predicting_layer

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

GLM = TinyModel("rehearsal/glm", "glm4_moe", CONTEXT)
LENGTHS = (151, 512, 543)
ANSWER_TOKENS = 32
DRAFT_LAYERS = 1
PROMPTS = [[*range(10, 60)], [*range(100, 250, 3)], [7] * 40, [*range(20, 30)] * 12]
TOKENS = 3
DRAFTING = "0.26.0"
"""The version that drafts on a processor without Triton."""

NOT_DRAFTING = "0.30.0"
"""The version whose engine ends at the first drafted request on a processor without Triton's own backend for
processors, which no package index has (vllm issue 58214: replacements of six kernels are put where nothing reads them).
"""

SHORTER = ("--max-model-len", "2048")
"""Context of a server whose draft has a KV cache too, in the room of one."""


@dataclass(frozen=True)
class Drafted:
    """A model with a draft: the tiny model, the folder of its files, and the argument that asks for the draft."""

    model: TinyModel
    files: Path
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A prefill and a decode server that draft, and a server of the same model that doesn't."""

    pair: Pair
    plain: Served

    @property
    def decode(self) -> Served:
        return self.pair.decode

    def counters(self) -> dict[str, float]:
        text = self.decode.client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            sample.name: sample.value
            for sample in samples
            if "spec_decode" in sample.name and not sample.name.endswith("_created") and "position" not in sample.labels
        }


def drafted(method: str, version: str, folder: Path) -> Drafted:
    """Write a tiny model and what drafts for it by a method."""
    vllm = need_real_vllm(version)
    model = TINY if method == "eagle3" else GLM
    files = tiny_models.ensure_files(vllm, model, SilentProgress())
    config: dict[str, object] = {"method": method, "num_speculative_tokens": TOKENS}
    if method == "eagle3":
        config["model"] = str(eagle3_draft(files, folder / "draft"))
    else:
        files = with_predicting_layer(files, folder / "model")
    return Drafted(model, files, ("--speculative-config", json.dumps(config)))


def text(served: Served, prompt: list[int], **more: object) -> str:
    answer = served.complete(prompt, ANSWER_TOKENS, **more).raise_for_status()
    return answer.json()["choices"][0]["text"]


@pytest.fixture(scope="module", params=["eagle3", "mtp"], ids=lambda method: f"real-{DRAFTING}-{method}")
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp(request.param)
    drafting = drafted(request.param, DRAFTING, folder)
    flags = {
        "prefill": (*drafting.flags, *transfer_flags(DRAFTING, "producer")),
        "decode": (*drafting.flags, *transfer_flags(DRAFTING, "consumer")),
        "plain": ("--block-size", f"{BLOCK_TOKENS}"),
    }
    with ExitStack() as exits:
        running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        for name, own in flags.items():
            place = server(
                need_real_vllm(DRAFTING), folder / name, *own, *SHORTER, model=drafting.model, files=drafting.files
            )
            running[name] = exits.enter_context(place)
        served: dict[str, Served] = {}
        for name, (url, process) in running.items():
            wait_for(f"{url}/health", folder / name / "log", process, READY_S)
            client = exits.enter_context(httpx2.Client(base_url=url, timeout=60))
            served[name] = Served(client, process.terminate, process.wait)
        layers = sum(drafting.model.layers_by_window) + DRAFT_LAYERS
        bytes_per_token = layers * drafting.model.layer_bytes_per_token
        pair = Pair(served["prefill"], served["decode"], bytes_per_token, 0, 0, BLOCK_TOKENS)
        yield Asked(pair, served["plain"])


def test_greedy_answers_with_a_draft_equal_those_without(asked: Asked) -> None:
    before = asked.counters()
    assert [text(asked.decode, prompt) for prompt in PROMPTS] == [text(asked.plain, prompt) for prompt in PROMPTS]
    after = asked.counters()
    drafts = after["vllm:spec_decode_num_drafts_total"] - before["vllm:spec_decode_num_drafts_total"]
    drafted = after["vllm:spec_decode_num_draft_tokens_total"] - before["vllm:spec_decode_num_draft_tokens_total"]
    assert drafts > 0
    assert drafted == drafts * TOKENS


@pytest.mark.parametrize("length", LENGTHS)
def test_a_pair_that_drafts_answers_as_one_server_without_a_draft(asked: Asked, length: int) -> None:
    prompt = random.Random(length).choices(range(10, 300), k=length)  # noqa: S311 - tokens, no secrets
    drafts = asked.counters()["vllm:spec_decode_num_drafts_total"]
    assert text(asked.decode, prompt, kv_transfer_params=asked.pair.prefilled(prompt)) == text(asked.plain, prompt)
    assert asked.counters()["vllm:spec_decode_num_drafts_total"] > drafts


@pytest.mark.parametrize("length", LENGTHS)
def test_a_pair_that_drafts_hands_over_the_kv_cache_of_the_draft_too(asked: Asked, length: int) -> None:
    prompt = random.Random(length + 1).choices(range(10, 300), k=length)  # noqa: S311 - tokens, no secrets
    assert asked.pair.pulled_bytes(prompt) == asked.pair.bytes_of_blocks(length)


def test_real_vllms_draft_counters_have_the_names_that_simulated_servers_use(asked: Asked) -> None:
    assert asked.counters().keys() == {
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    }


def test_vllm_030_ends_at_its_first_drafted_request_on_a_processor(tmp_path: Path) -> None:
    drafting = drafted("eagle3", NOT_DRAFTING, tmp_path)
    place = tmp_path / "server"
    with server(need_real_vllm(NOT_DRAFTING), place, *drafting.flags, *SHORTER, model=TINY) as (url, process):
        wait_for(f"{url}/health", place / "log", process, READY_S)
        answer = httpx2.post(f"{url}/v1/completions", json=completion(PROMPTS[0], ANSWER_TOKENS), timeout=60)
        assert answer.status_code == 500
        process.wait(60)
    assert "TypeError: Cannot inspect kernel parameters for function" in (place / "log").read_text()
