"""KV cache that vLLM itself hands over by NIXL, on a processor: what is read is the prompt's, and all of it."""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from real_servers import MODEL, READY_S, TINY, server, wait_for
from real_vllm_for_tests import need_real_vllm

pytestmark = pytest.mark.rehearsal

BYTES_PER_TOKEN = 2 * TINY.layer_bytes_per_token
"""Of two layers (`values/rehearsal/real-vllm.yaml`)."""

BLOCK_TOKENS = 32
LENGTHS = (151, 512, 1999)
TOKENS = 24
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "aggregated": None}


@dataclass(frozen=True)
class Pair:
    """Clients of a prefill, a decode and an aggregated server."""

    prefill: httpx2.Client
    decode: httpx2.Client
    aggregated: httpx2.Client


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    vllm = need_real_vllm()
    with ExitStack() as stack:
        clients: dict[str, httpx2.Client] = {}
        waiting = []
        for role, kv_role in ROLES.items():
            folder = tmp_path_factory.mktemp(role)
            transfer = {"kv_connector": "NixlConnector", "kv_role": kv_role}
            flags = ["--kv-transfer-config", json.dumps(transfer)] if kv_role else []
            url, running = stack.enter_context(server(vllm, folder, "--block-size", str(BLOCK_TOKENS), *flags))
            clients[role] = stack.enter_context(httpx2.Client(base_url=url, timeout=60))
            waiting.append((f"{url}/health", folder / "log", running))
        for url, log, running in waiting:
            wait_for(url, log, running, READY_S)
        yield Pair(**clients)


def prompt(length: int, seed: int) -> list[int]:
    """Return tokens that no server has seen, the last of which is the same for all."""
    return [*random.Random(seed).choices(range(10, 300), k=length - 1), 10]  # noqa: S311 - tokens, no secrets


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    """A decode server of its own."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    with server(need_real_vllm(), tmp_path / "doomed", "--kv-transfer-config", json.dumps(transfer)) as (url, running):
        wait_for(f"{url}/health", tmp_path / "doomed" / "log", running, READY_S)
        with httpx2.Client(base_url=url, timeout=60) as client:
            yield client, running


def complete(client: httpx2.Client, tokens: list[int], max_tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
    return client.post("/v1/completions", json=body).raise_for_status().json()


def answer(client: httpx2.Client, tokens: list[int], **more: Any) -> tuple[str, list[float]]:
    """Return the greedy answer, and how probable each of its tokens was, as logarithms."""
    (choice,) = complete(client, tokens, logprobs=1, **more)["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def handed_over(pair: Pair, tokens: list[int], of: list[int]) -> tuple[str, list[float]]:
    """Return the decode server's answer to a prompt, with the KV cache that the prefill server has of another."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    found = complete(pair.prefill, of, max_tokens=1, kv_transfer_params=asked)["kv_transfer_params"]
    return answer(pair.decode, tokens, kv_transfer_params=found)


def metric(client: httpx2.Client, name: str) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_answer_with_kv_cache_that_is_handed_over_is_that_of_one_server(pair: Pair, length: int) -> None:
    tokens = prompt(length, seed=length)
    text, chances = answer(pair.aggregated, tokens)
    own_text, own_chances = handed_over(pair, tokens, tokens)
    assert own_text == text
    assert own_chances == pytest.approx(chances, abs=1e-3)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_bytes_that_are_handed_over_are_those_of_the_prompts_blocks(pair: Pair, length: int) -> None:
    tokens = prompt(length, seed=length + 1)
    before = metric(pair.decode, "vllm:nixl_bytes_transferred_sum")
    handed_over(pair, tokens, tokens)
    blocks = -(-length // BLOCK_TOKENS)
    grown = metric(pair.decode, "vllm:nixl_bytes_transferred_sum") - before
    assert grown == blocks * BLOCK_TOKENS * BYTES_PER_TOKEN


def test_a_prompt_with_the_kv_cache_of_another_is_answered_as_the_other(pair: Pair) -> None:
    one, other = prompt(320, seed=1), prompt(320, seed=2)
    chances, others = answer(pair.aggregated, one)[1], answer(pair.aggregated, other)[1]
    swapped = handed_over(pair, one, of=other)[1]
    assert swapped == pytest.approx(others, abs=1e-3)
    assert swapped != pytest.approx(chances, abs=1e-3)


def test_a_request_that_names_no_blocks_to_pull_ends_the_server(
    doomed: tuple[httpx2.Client, subprocess.Popen[bytes]],
) -> None:
    """Clients may not say where KV cache is, for this: the kit's Envoys, Gateways and routers refuse it (O2)."""
    client, running = doomed
    body = {"model": MODEL, "prompt": "hello", "kv_transfer_params": {"do_remote_prefill": True}}
    assert client.post("/v1/completions", json=body).status_code == 500
    assert running.wait(60) is not None
