"""What is left of a measurement that is broken off, or of which not all could be sent."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import CLOSED, OPEN, experiment
from llmd_oke.bench.deployment.metrics import ServerPod
from llmd_oke.bench.deployment.topology import Servers, Topology
from llmd_oke.bench.evals.result import Examined
from llmd_oke.bench.generator import crews
from llmd_oke.bench.smoke.smoke import SmokePlan
from llmd_oke.bench.smoke.thresholds import Thresholds
from llmd_oke.errors import KitError
from llmd_oke.experiments.measurements import measuring
from llmd_oke.experiments.runs import folders
from llmd_oke.experiments.runs.assignment import FAILURE_FILE, Assignment
from llmd_oke.experiments.runs.folders import RunFolder
from llmd_oke.experiments.runs.preparing import Asked
from llmd_oke.progress import SilentProgress

DEPLOYMENT = "agg-tp1-2r"
LOADS = [
    {**CLOSED, "concurrencies": [2], "requests": 2, "inputTokens": 64, "outputTokens": 4},
    {**OPEN, "requestsPerS": [0.5], "durationS": 200.0, "outputTokens": 4},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "llmd_oke.bench.proving.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


@pytest.fixture
def assignment(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Assignment:
    made = experiment(tmp_path, Asked(gpus=2, rehearsed=True, only=(DEPLOYMENT,)), loads=LOADS)
    folder = folders.new_run(made.project, made.name, made.recipe, made.settings, [DEPLOYMENT])
    topology = Topology(DEPLOYMENT, (Servers("aggregated", 2, 1, image="vllm:1"),))
    plan = SmokePlan(url, "model", topology, 64, 4)
    monkeypatch.setattr(measuring, "base_plan", lambda _: plan)
    return Assignment(
        project=made.project,
        stack="s-experiment",
        folder=folder.path,
        recipe=made.name,
        deployment=DEPLOYMENT,
        subject="end-to-end",
        limits_s={stage.name: 600.0 for stage in folder.left(DEPLOYMENT)},
        router="llm-d-0.9.0",
    )


class Interrupting(SilentProgress):
    """Presses Ctrl-C once the second stage runs."""

    pressed = False

    def detail(self, text: str) -> None:
        if not self.pressed and text.startswith("rate") and " of 100 requests" in text:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def test_a_stage_that_is_interrupted_is_no_result(assignment: Assignment, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "INTERVAL_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        measuring.measure(assignment, Interrupting())
    folder = RunFolder(assignment.folder)
    assert [stage.name for stage in folder.left(DEPLOYMENT)] == ["rate-r0.5-s0"]
    assert [row.origin.file for row in folder.gather()] == [f"{DEPLOYMENT}/users-c2-s0/row.json"]


def test_a_stage_of_which_nothing_was_sent_is_an_error_with_its_cause(
    assignment: Assignment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(crews, "work", lambda *_: sys.exit(3))
    file = assignment.folder / DEPLOYMENT / "assignment.json"
    file.parent.mkdir()
    file.write_text(assignment.model_dump_json())
    assert measuring.measure_file(file, SilentProgress()) == 1
    cause: dict[str, Any] = json.loads(file.with_name(FAILURE_FILE).read_text())
    assert f"{DEPLOYMENT} was not measured under users-c2-s0: process 1 ended with code 3" in cause["cause"]
    assert "the first try: process 1 ended with code 3" in cause["cause"]
    assert "The same command tries it again" in cause["cause"]
    assert len(RunFolder(assignment.folder).left(DEPLOYMENT)) == 2


def test_what_answers_wrongly_is_not_measured(assignment: Assignment, monkeypatch: pytest.MonkeyPatch):
    async def evaluated(*_: object) -> Examined:
        return Examined("set", datetime.now(UTC), 1.0, "1" * 9 + "0", 0, ("sum-9: '41'",))

    plan = replace(measuring.base_plan(assignment), thresholds=Thresholds(min_accuracy=0.95))
    monkeypatch.setattr(measuring, "base_plan", lambda _: plan)
    monkeypatch.setattr(measuring, "evaluate", evaluated)
    with pytest.raises(KitError, match=r"agg-tp1-2r answers wrongly \(accuracy 90.0%, at least 95.0%.*sum-9"):
        measuring.measure(assignment, SilentProgress())
    assert RunFolder(assignment.folder).gather() == []


def test_a_stage_during_which_a_server_restarted_is_no_result(assignment: Assignment, monkeypatch: pytest.MonkeyPatch):
    counted = iter(range(9))
    plan = replace(
        measuring.base_plan(assignment), servers=lambda: (ServerPod("aggregated", "server-0", next(counted)),)
    )
    monkeypatch.setattr(measuring, "base_plan", lambda _: plan)
    with pytest.raises(
        KitError, match=r"under users-c2-s0: 1 model server restarted during the run.*server-0 \(1 time\)"
    ):
        measuring.measure(assignment, SilentProgress())
    assert len(RunFolder(assignment.folder).left(DEPLOYMENT)) == 2
