"""A small recipe through the command line: interrupted in the middle, run again, compared."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_bench.files import read_rows
from llmd_oke.operations.locks import until
from llmd_oke.values import read_yaml
from user_project import LIMIT_S, Ended, Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "tiny"
RECIPE: dict[str, Any] = {
    "description": "Two tiny deployments under two loads.",
    "model": "gpt-oss-120b",
    "gpus": 4,
    "baseline": "agg-tp1-2r",
    "deployments": [{"topology": "1p-tp1-1d-tp1"}, {"topology": "agg-tp1-2r", "router": {"mode": "none"}}],
    "loads": [
        {
            "name": "users",
            "arrival": "closed",
            "concurrencies": [2],
            "requests": 8,
            "inputTokens": 512,
            "outputTokens": 8,
        },
        {
            "name": "rate",
            "arrival": "poisson",
            "requestsPerS": [4.0],
            "requests": 40,
            "inputTokens": 512,
            "outputTokens": 8,
        },
    ],
}


@dataclass(frozen=True)
class Life:
    """A run that was interrupted once its first measurement was there, and the same command again."""

    interrupted: Ended
    first_row: str
    again: Ended
    folder: Path


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    project.write(STACK)
    recipe = project.folder / "small.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    words = ["experiment", "run", str(recipe), "--stack", STACK, "--rehearse", "--time-scale", "0.5"]
    runs = project.folder / "reports" / "tiny-experiment" / "small"
    interrupted = _interrupt(project, words, lambda: any(runs.glob("latest/*/*/row.json")))
    first_row = next(iter(runs.glob("latest/*/*/row.json"))).read_text()
    return Life(interrupted, first_row, project.command(*words), runs / "latest")


def _interrupt(project: Project, words: list[str], ready: Any) -> Ended:
    """Run a command, and press Ctrl-C once something is there; a shell's background jobs would ignore it."""
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "llmd_oke", *words],
        env={**os.environ, "LLMD_OKE_PROJECT": str(project.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        result = until(lambda: ready() or command.poll() is not None, LIMIT_S)
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=LIMIT_S)
    assert result, errors
    return Ended(command.returncode, output, errors)


def test_an_interrupted_experiment_says_that_the_same_command_continues_it(life: Life) -> None:
    assert life.interrupted.status == 130, life.interrupted.errors
    assert "run the same command again to go on" in life.interrupted.errors
    assert "Traceback" not in life.interrupted.errors


def test_the_same_command_continues_an_interrupted_experiment(life: Life) -> None:
    assert life.again.status == 0, life.again.errors
    rows = read_rows(life.folder / "rows.jsonl")
    assert [row.origin.file for row in rows] == [
        f"{deployment}/{stage}/row.json"
        for deployment in ("disagg-1p-tp1-1d-tp1", "agg-tp1-2r")
        for stage in ("users-c2-s0", "rate-r4-s0")
    ]
    assert all(row.failures == 0 for row in rows)


def test_an_interrupted_experiment_keeps_its_finished_measurements(life: Life) -> None:
    assert (life.folder / json.loads(life.first_row)["origin"]["file"]).read_text() == life.first_row
    assert len(list(life.folder.parent.glob("2*"))) == 1


def test_each_measured_load_of_an_experiment_has_benchmark_reports_v0_1_and_v0_2(life: Life) -> None:
    for stage in life.folder.glob("*/*-s0"):
        files = [stage / f"{name},_{stage.name}.yaml" for name in ("benchmark_report_v0.2", "benchmark_report")]
        assert [read_yaml(file)["version"] for file in files] == ["0.2", "0.1"]


def test_the_comparison_of_an_experiment_says_that_its_figures_were_rehearsed(life: Life) -> None:
    text = (life.folder / "report.md").read_text()
    assert "Rehearsed, not measured" in text
    assert "Against agg-tp1-2r" in text
    assert "<svg" in (life.folder / "report.html").read_text()


def test_after_an_experiment_neither_its_stack_file_nor_its_local_cluster_is_left(life: Life, project: Project) -> None:
    assert not (project.folder / "stacks" / "Pulumi.tiny-experiment.yaml").exists()
    assert "tiny-experiment" not in project.command("rehearse", "status").output
