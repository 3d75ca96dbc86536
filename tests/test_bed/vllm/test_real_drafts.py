"""Speculative decoding of vLLM itself on a processor: answers are the model's own, and drafts are counted."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx2
import pytest
from llmd_base.progress import SilentProgress
from llmd_rehearsal.real_vllm import tiny_models
from llmd_rehearsal.real_vllm.tiny_models import TinyModel
from prometheus_client.parser import text_string_to_metric_families
from real_servers import CONTEXT, MODEL, READY_S, TINY, server, wait_for
from real_vllm_for_tests import need_real_vllm
from tiny_drafts import eagle3_draft, with_predicting_layer

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

GLM = TinyModel("rehearsal/glm", "glm4_moe", CONTEXT)
PROMPTS = [[*range(10, 60)], [*range(100, 250, 3)], [7] * 40, [*range(20, 30)] * 12]
TOKENS = 3
DRAFTING = "0.26.0"
"""The version that drafts on a processor. 0.30 starts with a draft there, and its engine ends at the first request, in
a kernel of Triton that builds for processors lack (TypeError: Cannot inspect kernel parameters for function, seen).
"""

SHORTER = ("--max-model-len", "2048")
"""Context of a server whose draft has a KV cache too, in the room of one."""


@dataclass
class Asked:
    """A server that drafts, and one of the same model that doesn't."""

    drafting: httpx2.Client
    plain: httpx2.Client

    def texts(self, client: httpx2.Client) -> list[str]:
        body = {"model": MODEL, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
        answers = [client.post("/v1/completions", json={**body, "prompt": prompt}) for prompt in PROMPTS]
        return [answer.raise_for_status().json()["choices"][0]["text"] for answer in answers]

    def counters(self) -> dict[str, float]:
        text = self.drafting.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {
            sample.name: sample.value
            for sample in samples
            if "spec_decode" in sample.name and not sample.name.endswith("_created") and "position" not in sample.labels
        }


@pytest.fixture(
    scope="module",
    params=["eagle3", "mtp"],
    ids=lambda method: f"real-{DRAFTING}-{method}",
)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    method: str = request.param
    vllm, folder = need_real_vllm(DRAFTING), tmp_path_factory.mktemp(method)
    chosen = TINY if method == "eagle3" else GLM
    files = tiny_models.ensure_files(vllm, chosen, SilentProgress())
    config: dict[str, object] = {"method": method, "num_speculative_tokens": TOKENS}
    if method == "eagle3":
        config["model"] = str(eagle3_draft(files, folder / "draft"))
    else:
        files = with_predicting_layer(files, folder / "model")
    with ExitStack() as stack:
        clients: list[httpx2.Client] = []
        for name, flags in (("drafting", ["--speculative-config", json.dumps(config)]), ("plain", [])):
            url, running = stack.enter_context(server(vllm, folder / name, *flags, *SHORTER, model=chosen, files=files))
            wait_for(f"{url}/health", folder / name / "log", running, READY_S)
            clients.append(stack.enter_context(httpx2.Client(base_url=url, timeout=60)))
        yield Asked(*clients)


def test_greedy_answers_with_a_draft_equal_those_without(asked: Asked) -> None:
    before = asked.counters()
    assert asked.texts(asked.drafting) == asked.texts(asked.plain)
    after = asked.counters()
    drafts = after["vllm:spec_decode_num_drafts_total"] - before["vllm:spec_decode_num_drafts_total"]
    drafted = after["vllm:spec_decode_num_draft_tokens_total"] - before["vllm:spec_decode_num_draft_tokens_total"]
    assert drafts > 0
    assert drafted == drafts * TOKENS


def test_real_vllms_draft_counters_have_the_names_that_simulated_servers_use(asked: Asked) -> None:
    assert asked.counters().keys() == {
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    }
