"""Commands of the pages that need a deployed stack, in one rehearsal, each by a shell inside it."""

import re
import shutil
import sys

import pytest
from user_project import ROOT, Ended, Project

sys.path.insert(0, str(ROOT / "dev"))

from documented_commands import CommandPlace, documented_commands

pytestmark = [
    pytest.mark.engine,
    pytest.mark.rehearsal,
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl"),
]

STACK = "S"
WORDS = {"STACK": STACK, "prod": STACK, "NODE": "mi300x-0", "A": "mi300x-0", "NAMESPACE": "llm-d"}
"""What somebody writes in the place of words in capitals; the pages call one stack by several names."""
COMMANDS = [command for command in documented_commands() if command.place is CommandPlace.REHEARSED]


@pytest.fixture(scope="module")
def rehearsed(project: Project) -> Project:
    """The stack that the pages call S, on two nodes, of which one is free, with a benchmark of which passports tell."""
    pools = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
    project.write(STACK, gpuPools=pools)
    ended = project.rehearse(STACK)
    assert ended.status == 0, ended.errors
    measured = inside(project, f"llmd-oke smoke --stack {STACK}")
    assert measured.status == 0, measured.errors
    return project


def inside(project: Project, text: str) -> Ended:
    """Run a command in the rehearsal, with the stack file that is rehearsed."""
    deployed = project.folder / ".rehearsal" / STACK / "project"
    assert deployed.is_dir()
    line = re.sub(r"\b(?:[A-Z]+|prod)\b", lambda word: WORDS.get(word[0], word[0]), text)
    script = f"cd {deployed} && {line}"
    return project.command("rehearse", "run", "--stack", STACK, "--", "bash", "-c", script)


@pytest.mark.parametrize("text", sorted({command.text for command in COMMANDS}))
def test_a_command_runs_in_a_rehearsed_stack(rehearsed: Project, text: str) -> None:
    ended = inside(rehearsed, text)
    assert ended.status == 0, ended.output + ended.errors
