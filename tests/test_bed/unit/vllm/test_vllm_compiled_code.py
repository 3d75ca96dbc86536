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


def test_a_server_that_became_healthy_leaves_its_code_to_the_next(folder: Path):
    first, said = begun(folder)
    first.confirm()
    first.leave()
    assert said == ["compiled code in /compiled/0: none yet"]
    assert begun(folder)[1] == ["compiled code in /compiled/0: as the last server left it"]


def test_a_server_that_did_not_leaves_none(folder: Path):
    begun(folder)[0].leave()
    assert begun(folder)[1] == ["compiled code in /compiled/0: removed, because the last server with it did not start"]


def test_servers_at_once_have_places_of_their_own(folder: Path):
    begun(folder)[0].confirm()
    assert begun(folder)[1] == ["compiled code in /compiled/1: a copy of that in place 0"]
    assert (folder / "1" / start.STARTING).exists()


def test_a_server_without_the_program_keeps_nothing(folder: Path):
    code, said = begun(folder, ["vllm", "serve", "m"])
    code.confirm()
    code.leave()
    assert (said, list(folder.iterdir())) == ([], [])


def test_a_folder_that_is_not_mounted_is_told(folder: Path):
    said: list[str] = []
    CompiledCode(COMMAND, ContainerFiles({"/elsewhere": str(folder)})).begin(said.append)
    assert said == ["compiled code is not kept: /compiled isn't mounted"]
