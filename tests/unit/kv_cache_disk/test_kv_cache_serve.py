"""The program that starts a server whose predecessor in the pod may have left its memory behind."""

from pathlib import Path

import pytest
from llmd_pods.compiled_code import start
from llmd_pods.kv_cache_disk import serve

OWN = ["vllm", "serve", "m", "--port=8000"]
PROGRAM = ["python3", "-IB", "/opt/llmd-oke/kv_cache_disk/serve.py", "--"]
COMPILED = ["python3", "-IB", "/opt/start.py", "--folder=/c", "--link=/l", "--health=http://h", "--limit-s=1", "--"]


def test_memory_that_a_killed_server_left_is_removed_before_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("vllm_offload_0a1b_dp0.mmap", "psm_12345"):
        (tmp_path / name).touch()
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(serve, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(serve.os, "execvp", lambda name, words: started.append((name, words)))
    serve.main(["--", *OWN])
    assert [path.name for path in tmp_path.iterdir()] == ["psm_12345"]
    assert started == [("vllm", OWN)]
    assert "vllm_offload_0a1b_dp0.mmap" in capsys.readouterr().out


@pytest.mark.parametrize("before", [[], COMPILED])
def test_the_servers_own_command_is_found_behind_the_program(before: list[str]):
    assert serve.server_command([*PROGRAM, *before, *OWN]) == [*before, *OWN]
    assert start.server_command(serve.server_command([*PROGRAM, *before, *OWN])) == OWN


@pytest.mark.parametrize("command", [OWN, [*COMPILED, *OWN], ["sleep", "1", "--"]])
def test_a_command_without_the_program_stays_as_it_is(command: list[str]):
    assert serve.server_command(command) == command
