"""One suite for two simulated servers and vLLM itself: they answer as the list says, or differ as it says.

The list is `values/rehearsal/conformance.yaml`; docs/simulated-vllm.md shows it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conformance_client import MODEL, seen
from free_ports import free_port
from llmd_base.progress import SilentProgress
from llmd_rehearsal.programs import locate
from llmd_rehearsal.real_vllm.tiny_models import ensure_files
from real_servers import READY_S, TINY, process, wait_for
from real_servers import server as server_of
from real_vllm_for_tests import need_real_vllm
from tiny_drafts import eagle3_draft
from vllm_conformance import SERVERS, Server, conformance

pytestmark = pytest.mark.rehearsal

REPOSITORY = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
DRAFT = {"method": "eagle3", "num_speculative_tokens": 2}
CONTEXT = "4096"


@pytest.fixture(scope="module")
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@dataclass(frozen=True)
class Asked:
    """Servers that are asked: which they are, as of which version of vLLM, and addresses by kind."""

    server: Server
    newer: bool
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def simulator(processes: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The control address and the log of a simulator, whose model time passes a hundred times faster."""
    log, control = tmp_path_factory.mktemp("ours") / "log", f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "llmd_rehearsal.vllm", "--listen", control, "--time-scale", "0.01"]
    processes.enter_context(process([*argv, "--startup-seconds", "0"], log, f"http://{control}/healthz"))
    return f"http://{control}", log


def _simulated(control: str, log: Path, version: str) -> dict[str, str]:
    """The addresses of a simulated vLLM, of one with the NIXL connector and of one with a draft."""
    addresses: dict[str, str] = {}
    drafting = ["--speculative-config", json.dumps({**DRAFT, "model": "any/draft"})]
    for name, flags in (("plain", []), ("nixl", ["--kv-transfer-config", NIXL]), ("drafting", drafting)):
        port = str(free_port())
        own = ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port, "--max-model-len", CONTEXT]
        argv = ["vllm", "serve", REPOSITORY, *own, *flags]
        env = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
        container = {"id": f"{name}-{version}", "argv": argv, "image": f"vllm:{version}", "env": env}
        httpx2.post(f"{control}/servers", json=container).raise_for_status()
        addresses[name] = f"http://127.0.0.1:{port}"
        wait_for(f"{addresses[name]}/health", log)
    return {**addresses, "uncached": addresses["plain"]}


@pytest.fixture(scope="module")
def other(processes: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of llm-d-inference-sim, which needs no connector for prefill and decode."""
    program = locate("llm-d-inference-sim")
    if program is None:
        pytest.skip("no llm-d-inference-sim: llmd-oke rehearse programs --tests builds it")
    addresses: dict[str, str] = {}
    # Metrics of prefix caching are there only with its KV cache, which asks for the pod's address.
    for name, flags in (("plain", ["--enable-kvcache"]), ("uncached", [])):
        log, port = tmp_path_factory.mktemp(name) / "log", str(free_port())
        own = ["--port", port, "--model", MODEL, "--max-model-len", CONTEXT, "--max-num-seqs", "8", "--seed", "1"]
        addresses[name] = f"http://127.0.0.1:{port}"
        argv = [str(program.path), *own, *flags]
        processes.enter_context(process(argv, log, f"{addresses[name]}/health", POD_IP="127.0.0.1"))
    return {**addresses, "nixl": addresses["plain"], "drafting": addresses["plain"]}


def _on_processor(processes: ExitStack, tmp_path_factory: pytest.TempPathFactory, version: str) -> dict[str, str]:
    """The addresses of vLLM on a processor, of one with the NIXL connector and of one with a draft."""
    vllm = need_real_vllm(version.removeprefix("v"))
    addresses: dict[str, str] = {}
    waiting: list[tuple[Path, subprocess.Popen[bytes]]] = []
    draft = eagle3_draft(ensure_files(vllm, TINY, SilentProgress()), tmp_path_factory.mktemp("draft") / "files")
    # Its KV cache has room for the model's layers alone.
    drafting = ["--speculative-config", json.dumps({**DRAFT, "model": str(draft)}), "--max-model-len", "2048"]
    kinds = [("plain", []), ("nixl", ["--kv-transfer-config", NIXL])]
    if version == conformance().release:  # the newer one does not draft on a processor: see test_real_drafts
        kinds.append(("drafting", drafting))
    for name, flags in kinds:
        folder = tmp_path_factory.mktemp(name)
        addresses[name], running = processes.enter_context(server_of(vllm, folder, *flags))
        waiting.append((folder / "log", running))
    for url, (log, running) in zip(addresses.values(), waiting, strict=True):
        wait_for(f"{url}/health", log, running, READY_S)
    return {**addresses, "uncached": addresses["plain"]}


@pytest.fixture(scope="module", params=[*SERVERS, "newer_ours", pytest.param("newer_real", marks=pytest.mark.nightly)])
def asked(request: pytest.FixtureRequest, processes: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    name: str = request.param
    server: Server = next(known for known in SERVERS if name.endswith(known))
    newer = name.startswith("newer_")
    version = conformance().newer if newer else conformance().release
    match server:
        case "ours":
            return Asked(server, newer, _simulated(*request.getfixturevalue("simulator"), version))
        case "real":
            return Asked(server, newer, _on_processor(processes, tmp_path_factory, version))
        case "other":
            return Asked(server, newer, request.getfixturevalue("other"))


@pytest.fixture(scope="module")
def clients(processes: ExitStack, asked: Asked) -> dict[str, httpx2.Client]:
    """A client of each kind of server, which has answered a request so that its metrics are there. Each request has a
    connection of its own: vLLM closes one on which an error that it doesn't expect was answered.
    """
    own = httpx2.Limits(max_keepalive_connections=0)
    clients = {
        kind: processes.enter_context(httpx2.Client(base_url=url, timeout=30, limits=own))
        for kind, url in asked.addresses.items()
    }
    for client in clients.values():
        client.post("/v1/completions", json={"model": MODEL, "prompt": "hello", "max_tokens": 2}).raise_for_status()
    return clients


@pytest.mark.parametrize("name", conformance().cases)
def test_the_simulated_server_answers_as_vllm_does_except_for_listed_differences(
    name: str, asked: Asked, clients: dict[str, httpx2.Client]
) -> None:
    case = conformance().cases[name]
    if case.server not in clients:
        pytest.xfail("vLLM of that version does not draft on a processor")
    expected = case.expected(asked.server, newer=asked.newer)
    streams = case.request is not None and bool((case.request.body or {}).get("stream"))
    # vLLM joins tokens of a stream that it makes faster than it writes, as it does those of a tiny model at times.
    for _ in range(10 if asked.server == "real" and streams else 1):
        answered: dict[str, Any] = seen(case, clients[case.server], expected)
        if answered == expected:
            break
    assert answered == expected, f"{case.what}: {case.source}"
