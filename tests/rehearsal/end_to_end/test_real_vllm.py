"""A rehearsal with vLLM itself: one prefill and one decode server of equal size, whose answers must be those of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from real_vllm_for_tests import need_real_vllm
from user_project import Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "real"
CHECKS = [
    "called tools",
    "reasoning",
    "same answers",
    "handed over bytes",
    "swapped prompts",
    "swapped blocks",
    "apis",
    "metrics",
    "hostile requests",
    "foreign pods",
    "aborted requests",
    "ended leases",
    "restarted prefill",
    "drained server",
]


@dataclass(frozen=True)
class Life:
    """The stack rehearsed, and rehearsed once more."""

    first: Ended
    again: Ended


@pytest.fixture(scope="module")
def life(project: Project) -> Iterator[Life]:
    need_real_vllm()
    project.write(
        STACK,
        models=[model(model="qwen3-32b", topology="4p-tp1-4d-tp1")],
        storage={"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}},
    )
    options = ["rehearse", "--stack", STACK, "--vllm", "real", "--json"]
    first = project.command(*options)
    yield Life(first, project.command(*options, "--no-benchmark"))
    project.command("rehearse", "down", "--stack", STACK)


def checks(life: Life) -> dict[str, dict[str, Any]]:
    assert life.first.status in {0, 1}, life.first.errors[-3000:]
    return {check["check"]: check for check in life.first.document["vllm"]}


def test_a_rehearsal_with_vllm_itself_reports_all_checks_of_its_servers(life: Life) -> None:
    assert list(checks(life)) == CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_servers_that_run_vllm_itself_pass_each_check_of_their_rehearsal(life: Life, name: str) -> None:
    check = checks(life)[name]
    assert check["passed"], check["evidence"]


def test_answers_computed_from_transferred_kv_cache_equal_those_of_one_server(life: Life) -> None:
    assert checks(life)["same answers"]["evidence"].startswith("3 of 3 answers equal token by token (as they must be)")


def test_a_rehearsal_with_vllm_itself_passes_and_repeating_it_changes_nothing(life: Life) -> None:
    assert life.first.status == 0, life.first.errors[-3000:]
    assert set(life.again.document["update"]["changes"]) == {"same"}
