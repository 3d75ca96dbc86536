"""A rehearsal with vLLM itself: one prefill and one decode server of equal size, whose answers must be those of one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_vllm_for_tests import need_real_vllm
from user_project import ROOT, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK, LATENT = "real", "latent"
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
    "idle servers",
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
def life(project: Project) -> Life:
    need_real_vllm()
    project.write(
        STACK,
        models=[model(model="qwen3-32b", topology="4p-tp1-4d-tp1")],
        storage={"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}},
    )
    options = ["rehearse", "--stack", STACK, "--vllm", "real", "--json"]
    return Life(project.command(*options), project.command(*options, "--no-benchmark"))


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


@pytest.mark.nightly
def test_a_model_with_latent_attention_passes_all_checks_of_its_rehearsal(project: Project, tmp_path: Path) -> None:
    """DeepSeek-V3 with fewer layers and experts, which one GPU holds, on the first vLLM that runs it on processors."""
    need_real_vllm("0.30.0")
    config = json.loads((ROOT / "tests/data/model-configs/deepseek-v3.json").read_text())
    config |= {"num_hidden_layers": 12, "n_routed_experts": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    entry = ("model", "add", str(tmp_path / "config.json"), "--name", "small-v3", "--repository", "acme/small-v3")
    assert project.command(*entry, "--write").status == 0
    project.write(
        LATENT,
        release="llm-d-0.10.0",
        models=[model(model="small-v3", topology="1p-tp1-1d-tp1")],
        storage={"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}},
    )
    try:
        ended = project.command("rehearse", "--stack", LATENT, "--vllm", "real", "--json")
    finally:
        project.command("rehearse", "down", "--stack", LATENT)
    assert ended.status == 0, ended.errors[-3000:]
    failed = [check for check in ended.document["vllm"] if not check["passed"]]
    assert failed == []
