"""Simulated servers keep compiled code as the program before real ones does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from llmd_pods.compiled_code import start
from llmd_rehearsal.vllm.compiled_code import CompiledCode
from llmd_rehearsal.vllm.startup import ContainerFiles

OPTIONS = ["--folder=/compiled", "--link=/l", "--health=http://127.0.0.1/", "--limit-s=1"]
COMMAND = ["python3", "-IB", "/opt/start.py", *OPTIONS, "--", "vllm", "serve", "m"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").mkdir()
    return tmp_path / "key"


def begun(folder: Path, command: Sequence[str] = COMMAND) -> tuple[CompiledCode, list[str]]:
    said: list[str] = []
    code = CompiledCode(command, ContainerFiles({"/compiled": str(folder)}))
    code.begin(said.append)
    return code, said


def test_a_server_that_became_healthy_leaves_its_compiled_code_to_the_next_server(folder: Path):
    first, said = begun(folder)
    first.confirm()
    first.leave()
    assert said == ["compiled code in /compiled/0: none yet"]
    assert begun(folder)[1] == ["compiled code in /compiled/0: as the last server left it"]


def test_a_server_that_never_became_healthy_leaves_no_compiled_code(folder: Path):
    begun(folder)[0].leave()
    assert begun(folder)[1] == ["compiled code in /compiled/0: removed, because the last server with it did not start"]


def test_servers_that_run_at_the_same_time_compile_into_separate_folders(folder: Path):
    begun(folder)[0].confirm()
    assert begun(folder)[1] == ["compiled code in /compiled/1: a copy of that in place 0"]
    assert (folder / "1" / start.STARTING).exists()


def test_a_server_started_without_the_kits_wrapper_program_keeps_no_compiled_code(folder: Path):
    code, said = begun(folder, ["vllm", "serve", "m"])
    code.confirm()
    code.leave()
    assert (said, list(folder.iterdir())) == ([], [])


def test_an_unmounted_folder_for_compiled_code_is_reported(folder: Path):
    said: list[str] = []
    CompiledCode(COMMAND, ContainerFiles({"/elsewhere": str(folder)})).begin(said.append)
    assert said == ["compiled code is not kept: /compiled isn't mounted"]
