"""LoRA adapters of vLLM itself on a processor: found beside the weights, applied, and updated while a server runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from real_vllm_for_tests import need_real_vllm
from tiny_adapters import RANK, REPOSITORY, AdaptedCache, adapted_server

pytestmark = pytest.mark.rehearsal

PROMPT = [*range(10, 60)]
LONG_PROMPT = PROMPT * 12
"""Several blocks of KV cache, which are kept for prompts that begin alike."""
ROOM = ["--enable-lora", "--max-loras=2", f"--max-lora-rank={RANK}", "--max-cpu-loras=4"]


class Adapted:
    """A server with adapters, and the cache that it reads."""

    def __init__(self, client: httpx2.Client, cache: AdaptedCache) -> None:
        self.client, self.cache = client, cache

    def ask(self, model: str, prompt: list[int] = PROMPT) -> httpx2.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        return self.client.post("/v1/completions", json=body)

    def text(self, model: str, prompt: list[int] = PROMPT) -> str:
        return self.ask(model, prompt).raise_for_status().json()["choices"][0]["text"]

    def listed(self) -> dict[str, dict[str, Any]]:
        return {item["id"]: item for item in self.client.get("/v1/models").json()["data"]}


@pytest.fixture(
    scope="module", params=["0.26.0", pytest.param("0.30.0", marks=pytest.mark.nightly)], ids=["real-0.26", "real-0.30"]
)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder: Path = tmp_path_factory.mktemp("adapters")
    vllm = need_real_vllm(request.param)
    cache = AdaptedCache(folder / "cache", vllm)
    with adapted_server(vllm, cache, folder / "log", ROOM) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield Adapted(client, cache)


def test_an_adapter_added_while_vllm_runs_is_found_and_applied(adapted: Adapted) -> None:
    base = adapted.text(REPOSITORY)
    name = adapted.cache.adapter("sql", seed=1)
    assert adapted.text(name) != base
    assert adapted.text(REPOSITORY) == base
    assert adapted.listed()[name]["parent"] == REPOSITORY


def test_two_revisions_of_an_adapter_are_served_side_by_side_by_their_own_weights(adapted: Adapted) -> None:
    first, second = (adapted.cache.adapter("law", seed=seed) for seed in (2, 3))
    before = adapted.text(first)
    assert adapted.text(second) != before
    assert adapted.text(first) == before


def test_a_request_for_an_adapter_that_was_not_downloaded_gets_status_404(adapted: Adapted) -> None:
    assert adapted.ask("sql-never").status_code == 404


def test_vllm_reuses_cached_prompts_if_an_adapters_name_gets_another_revision(adapted: Adapted) -> None:
    """The reason why each revision has a name of its own: vLLM goes on with prefixes of the last one."""
    one, other = (adapted.cache.adapter("old", seed=seed) for seed in (4, 5))
    right = adapted.text(other, LONG_PROMPT)
    adapted.text(one, LONG_PROMPT)
    path = str(adapted.cache.resolved / other)
    replaced = {"lora_name": one, "lora_path": path, "load_inplace": True}
    adapted.client.post("/v1/load_lora_adapter", json=replaced).raise_for_status()
    assert adapted.text(one, LONG_PROMPT) != right


def listed_adapters(adapted: Adapted) -> str:
    """Return the labels of the latest series of `vllm:lora_requests_info`."""
    lines = adapted.client.get("/metrics").text.splitlines()
    series = [line.rpartition(" ") for line in lines if line.startswith("vllm:lora_requests_info{")]
    return max(series, key=lambda item: float(item[2]))[0]


def test_the_adapter_metric_lists_an_adapter_twice_while_a_request_for_it_runs(adapted: Adapted) -> None:
    """The metric lists it as running and as waiting at once; simulated servers tell routers the same."""
    name = adapted.cache.adapter("told", seed=6)
    body = {"model": name, "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with adapted.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        during = listed_adapters(adapted)
        for _ in lines:
            pass
    labels = 'max_lora="2",running_lora_adapters="{0}",waiting_lora_adapters="{0}"'
    assert during == f"vllm:lora_requests_info{{{labels.format(name)}}}"
    assert listed_adapters(adapted) == f"vllm:lora_requests_info{{{labels.format('')}}}"
