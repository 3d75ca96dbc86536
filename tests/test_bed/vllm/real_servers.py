"""vLLM itself on a processor, as fixtures of tests start it."""

import os
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from free_ports import free_port
from llmd_base.progress import SilentProgress
from llmd_rehearsal.real_vllm import tiny_models
from llmd_rehearsal.real_vllm.differences import environment_on_processor, on_processor
from llmd_rehearsal.real_vllm.environment import RealVllm
from llmd_rehearsal.real_vllm.tiny_models import TinyModel

MODEL = "m"
CONTEXT = 4096
TINY = TinyModel("rehearsal/tiny", "llama", CONTEXT)
READY_S = 240


def variables_of(vllm: RealVllm, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server that runs on this machine, outside of pods."""
    path = environment.get("PATH", os.environ["PATH"])
    values = {"authority": "", "encodings": "", "programs": str(vllm.programs), "path": path}
    return environment_on_processor(environment, values)


@contextmanager
def process(argv: list[str], log: Path, url: str, limit_s: float = 60, **more: str) -> Generator[None]:
    """A server that answers at `url`, ended after the block; `more` is added to its environment."""
    with started(argv, log, **more) as running:
        wait_for(url, log, running, limit_s)
        yield


@contextmanager
def started(argv: list[str], log: Path, **more: str) -> Generator[subprocess.Popen[bytes]]:
    """A process, ended after the block; `more` is added to its environment."""
    environment = {**os.environ, **more}
    with log.open("wb") as output:
        running = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(30)


def wait_for(url: str, log: Path, running: subprocess.Popen[bytes] | None = None, limit_s: float = 60) -> None:
    """Wait until a server answers at `url`; fail with the end of its log where it doesn't."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if httpx2.get(url, timeout=5).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.1)
        if running is not None and running.poll() is not None:
            break
    pytest.fail(f"{url} does not answer: {log.read_text()[-2000:]}")


@contextmanager
def server(
    vllm: RealVllm,
    folder: Path,
    *flags: str,
    model: TinyModel = TINY,
    before: Callable[[str], list[str]] | None = None,
    more: Mapping[str, str] | None = None,
    files: Path | None = None,
) -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of a tiny model that starts, by its address; `wait_for` its `/health` tells that it is ready.

    `before` gives words that stand before its command, from its address; `more` is added to its environment; `files` is
    the folder of the model, where it isn't the tiny model's own.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place = ("--host", "127.0.0.1", "--port", str(port))
    own = ("--served-model-name", MODEL, "--max-model-len", str(CONTEXT))
    files = files or tiny_models.ensure_files(vllm, model, SilentProgress())
    argv = on_processor([str(vllm.programs / "vllm"), "serve", str(files), *place, *own, *flags], model.server_values)
    own_variables = {
        **variables_of(vllm, {"PYTHONPATH": ""}),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        **(more or {}),
    }
    folder.mkdir(exist_ok=True)
    with started([*(before(url) if before else []), *argv], folder / "log", **own_variables) as running:
        yield url, running
