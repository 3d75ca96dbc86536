"""Pairs of servers that hand over KV cache: simulated ones, and vLLM itself on a processor."""

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx2
from free_ports import free_port
from llmd_oke.catalogue.models import CatalogueModel
from llmd_rehearsal.real_vllm.tiny_models import tiny_model
from llmd_rehearsal.vllm.startup import catalogue_model
from llmd_tuner.latency import window_blocks
from prometheus_client.parser import text_string_to_metric_families
from real_servers import CONTEXT, MODEL, READY_S, process, server, wait_for
from real_vllm_for_tests import need_real_vllm

Kind = Literal["ours", "0.26.0", "0.30.0"]
"""The simulated vLLM, or a version of vLLM itself."""

BLOCK_TOKENS = 32
FULL, WINDOWED = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "openai/gpt-oss-20b"
LATENT = "deepseek-ai/DeepSeek-V3"
LIMIT_S = 60.0
RUNNING, CACHE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
BYTES = "vllm:nixl_bytes_transferred_sum"

_TIME_SCALE = 0.1
"""Of the simulated vLLM's model time."""

_LEASE_S: dict[Kind, int] = {"ours": 60, "0.26.0": 10, "0.30.0": 10}
"""Seconds of model time: in each case long enough for a busy machine to hand over."""


@dataclass(frozen=True)
class Served:
    """A server: `terminate` sends it SIGTERM, or what is that to a simulated one, and `ended` waits for its end and
    returns its exit code.
    """

    client: httpx2.Client
    terminate: Callable[[], None]
    ended: Callable[[], int]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.client.get("/metrics").text.splitlines(keepends=True)
        families = text_string_to_metric_families("".join(line for line in lines if line.startswith(name)))
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def complete(self, prompt: list[int], max_tokens: int, **more: Any) -> httpx2.Response:
        """Return the answer to a prompt."""
        return self.client.post("/v1/completions", json=completion(prompt, max_tokens, **more))

    def answer(self, prompt: list[int], **more: Any) -> tuple[str, list[float]]:
        """Return the greedy answer, and how probable each of its tokens was, as logarithms."""
        (choice,) = self.complete(prompt, 24, logprobs=1, **more).raise_for_status().json()["choices"]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def at_rest(self) -> bool:
        """Tell whether it runs no request, and keeps no block for one."""
        return self.metric(RUNNING) == 0 and self.metric(CACHE) == 0


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode server, the bytes of a token in all layers that see all tokens, or a window, and the
    tokens of a block.
    """

    prefill: Served
    decode: Served
    full_bytes: int
    windowed_bytes: int
    window_tokens: int
    block_tokens: int

    def bytes_of_blocks(self, tokens: int) -> int:
        """Return the bytes of a prompt's blocks, of windowed layers those that the next token sees."""
        blocks = -(-tokens // self.block_tokens)
        windowed = window_blocks(tokens, self.window_tokens, self.block_tokens) if self.window_tokens else 0
        return self.block_tokens * (blocks * self.full_bytes + windowed * self.windowed_bytes)

    def prefilled(self, prompt: list[int]) -> dict[str, Any]:
        """Return by what a decode server finds the KV cache that the prefill server has computed."""
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = self.prefill.complete(prompt, 1, kv_transfer_params=asked)
        return answer.raise_for_status().json()["kv_transfer_params"]

    def pulled_bytes(self, prompt: list[int], transfer: dict[str, Any] | None = None) -> float:
        """Return how many bytes the decode server pulls for a prompt, which is prefilled before if it wasn't."""
        before = self.decode.metric(BYTES)
        self.decode.complete(prompt, 4, kv_transfer_params=transfer or self.prefilled(prompt)).raise_for_status()
        becomes(lambda: self.decode.metric(BYTES) > before, 5)  # vLLM counts with a later step
        return self.decode.metric(BYTES) - before


class Starter(Protocol):
    """Function that starts a server for the model of a repository; what it returns waits until it is ready."""

    def __call__(self, name: str, repository: str, *flags: str) -> Callable[[], Served]: ...


def completion(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    """Return the body of a completion that has as many tokens as it asks for."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


def becomes(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait until a condition holds; return whether that came in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def start_pair(start: Starter, kind: Kind, repository: str) -> Pair:
    """Start a prefill and a decode server for the model of a repository."""
    waiting = [start(role, repository, *transfer_flags(kind, role)) for role in ("producer", "consumer")]
    prefill, decode = (wait() for wait in waiting)
    model, block_tokens = catalogue_model(repository), BLOCK_TOKENS
    if kind == "ours":
        full, windowed = _published_bytes(model)
    else:
        tiny = tiny_model(model, kind)
        full, windowed = (layers * tiny.layer_bytes_per_token for layers in tiny.layers_by_window)
        block_tokens = tiny.block_size or block_tokens
    window = model.architecture.sliding_window
    return Pair(prefill, decode, full, windowed, window.tokens if window else 0, block_tokens)


def _published_bytes(model: CatalogueModel) -> tuple[int, int]:
    """Return the bytes of a token in layers that see all tokens, and in those that see a window."""
    architecture, cached = model.architecture, model.kv_cache.bytes_per_token
    windowed = architecture.sliding_window.layers * cached // architecture.layers if architecture.sliding_window else 0
    return cached - windowed, windowed


def transfer_flags(kind: Kind, role: str) -> list[str]:
    """Return the flags of a server that hands over KV cache and drains."""
    extra = {"kv_lease_duration": _LEASE_S[kind]}
    config = {"kv_connector": "NixlConnector", "kv_role": f"kv_{role}", "kv_connector_extra_config": extra}
    blocks = ["--block-size", f"{BLOCK_TOKENS}", "--no-disable-hybrid-kv-cache-manager"]
    return [*blocks, "--kv-transfer-config", json.dumps(config), "--shutdown-timeout", "60"]


@contextmanager
def simulated(folder: Path) -> Generator[Starter]:
    """A function that starts simulated servers, which end after the block."""
    log, control = folder / "log", f"http://127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "llmd_rehearsal.vllm", "--listen", control.removeprefix("http://")]
    options = ["--time-scale", f"{_TIME_SCALE}", "--startup-seconds", "0"]
    with ExitStack() as exits:
        exits.enter_context(process([*argv, *options], log, f"{control}/healthz"))

        def start(name: str, repository: str, *flags: str) -> Callable[[], Served]:
            port, id_ = free_port(), f"{name}-{catalogue_model(repository).name}"
            own = ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", f"{port}"]
            command = ["vllm", "serve", repository, *own, "--max-model-len", f"{CONTEXT}", *flags]
            environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": f"{free_port()}"}
            place = f"{control}/servers/{id_}"
            container = {"id": id_, "argv": command, "image": "vllm:v0.26.0", "env": environment}
            httpx2.post(f"{control}/servers", json=container).raise_for_status()
            url = f"http://127.0.0.1:{port}"
            client = exits.enter_context(httpx2.Client(base_url=url, timeout=LIMIT_S))

            def terminate() -> None:
                ask = threading.Thread(target=lambda: httpx2.delete(f"{place}?grace_s=60", timeout=LIMIT_S))
                exits.callback(ask.join)
                ask.start()

            def ended() -> int:
                return httpx2.get(f"{place}/wait?timeout_s={LIMIT_S}", timeout=2 * LIMIT_S).json()["exit_code"]

            def wait() -> Served:
                wait_for(f"{url}/health", log)
                return Served(client, terminate, ended)

            return wait

        yield start


@contextmanager
def on_this_processor(folder: Path, version: str) -> Generator[Starter]:
    """A function that starts servers of a version of vLLM itself, which end after the block."""
    vllm = need_real_vllm(version)
    with ExitStack() as exits:

        def start(name: str, repository: str, *flags: str) -> Callable[[], Served]:
            tiny = tiny_model(catalogue_model(repository), version)
            own = folder / f"{name}-{tiny.family}"
            url, running = exits.enter_context(server(vllm, own, *flags, model=tiny))
            client = exits.enter_context(httpx2.Client(base_url=url, timeout=LIMIT_S))

            def wait() -> Served:
                wait_for(f"{url}/health", own / "log", running, READY_S)
                return Served(client, running.terminate, lambda: running.wait(LIMIT_S))

            return wait

        yield start
