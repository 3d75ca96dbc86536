"""The folder of compiled code over updates of a stack: it outlives pods, and another argument has another one."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from llmd_pods.compiled_code import start
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "compiled"
COMPILED = "mnt/nvme/models-compiled/llm-d"


@dataclass(frozen=True)
class Life:
    """Keys of folders with a server that started, after each of three updates, and the first lines of servers' logs."""

    keys: list[frozenset[str]]
    said: list[str]


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    """A stack, the same with another argument, and again with the first one."""
    state = project.folder / ".rehearsal" / STACK
    keys = [_update(project, state, sequences) for sequences in (64, 32, 64)]
    return Life(keys, sorted(map(_said, state.rglob("logs/pods/**/vllm.log"))))


def _update(project: Project, state: Path, sequences: int) -> frozenset[str]:
    servers = model(topology="agg-tp8-1r", router={"mode": "none"}, engine={"maxNumSeqs": sequences})
    project.write(STACK, models=[servers], storage={"modelCache": {"kind": "node-disk"}})
    ended = project.command("rehearse", "--stack", STACK, "--json", "--no-benchmark")
    assert ended.status == 0, ended.errors[-3000:]
    (root,) = state.rglob(COMPILED)
    return frozenset(mark.parents[1].name for mark in root.glob(f"*/*/{start.STARTED}"))


def _said(log: Path) -> str:
    line = next(line for line in log.read_text().splitlines() if "compiled code" in line)
    return line.partition("compiled code in ")[2]


def test_a_changed_vllm_argument_compiles_code_into_a_new_folder_beside_the_old_one(life: Life) -> None:
    first, second, third = life.keys
    assert (len(first), len(second)) == (1, 2)
    assert first < second == third


def test_a_new_pod_reuses_the_compiled_code_of_a_deleted_pod(life: Life) -> None:
    assert life.said == ["/compiled/0: as the last server left it", *["/compiled/0: none yet"] * 2]
