"""Rehearsal of a change: which folders are updated in which order, and what is said where it was no update.

`llmd-oke rehearse` is played by a script, which writes down what it is called for; whole rehearsals do the same at
night (`rehearsal/end_to_end/test_changed_stack.py`).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.passport import Passport
from llmd_oke.pipelines import promotion
from llmd_oke.pipelines.promotion import StackDeployer
from llmd_oke.pipelines.rehearsed_change import rehearse_change
from llmd_oke.pipelines.revisions import git
from repositories_for_tests import commit, new_repository
from stack_files import stack, write

PLAYED = """
import json, pathlib, sys
calls, project, *words = sys.argv[1:]
calls, project = pathlib.Path(calls), pathlib.Path(project)
called = json.loads(calls.read_text())
nodes = (project / "stacks" / "Pulumi.dev.yaml").read_text().partition("size: ")[2][0]
down = words[:2] == ["rehearse", "down"]
left = [str(folder) for folder in map(pathlib.Path, called["folders"]) if not folder.exists()]
called["calls"].append("down" if down else nodes)
called["folders"].append(str(project))
called["gone"] += left
calls.write_text(json.dumps(called))
if not down:
    answer = called["answers"].get(nodes, {})
    if answer.pop("begins", True):
        history = project / ".rehearsal" / "dev" / "backend" / ".pulumi" / "history"
        history.mkdir(parents=True, exist_ok=True)
        (history / f"dev-{len(called['calls'])}.history.json").touch()
    if text := answer.pop("passport", None):
        report = project / "reports" / "dev" / nodes
        report.mkdir(parents=True)
        (report / "passport.json").write_text(text)
        (report.parent / "latest").symlink_to(nodes)
    status = answer.pop("status", 0)
    print(json.dumps({"update": {"changes": {"update": 1, "same": 9}}, "cluster_begun": "", **answer}))
    sys.exit(status)
"""


PASSPORT = Passport(
    stack="dev",
    model="m",
    config_hash="0123456789abcdef",
    release="llm-d-0.9.0",
    topology="1p-tp1-1d-tp1",
    copies=1,
    gpus=2,
    gpus_reserved=8,
    price_usd_per_hour=48.0,
    price_includes="list price of the GPU pools",
    images={},
    restarts={},
    basis=Basis.CALIBRATED,
    simulated=(),
    smoke_passed=True,
    checks=[],
    load={},
    performance={"ttft_ms": {"p95": 100.0}},
    remote_prefill=None,
    accuracy=None,
    usd_per_million_output_tokens=None,
    cold_start=None,
    created="2026-01-01T00:00:00+00:00",
)


@dataclass
class Rehearsals:
    """Calls of the played command: nodes of the stack that was rehearsed, and `down`."""

    project: Path
    file: Path

    def answer(self, nodes: int, **answer: object) -> None:
        """Answer the rehearsal of the stack with so many nodes otherwise."""
        self.file.write_text(json.dumps({**self._called, "answers": {**self._called["answers"], str(nodes): answer}}))

    @property
    def _called(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    @property
    def calls(self) -> list[str]:
        return self._called["calls"]

    @property
    def gone(self) -> list[str]:
        """Folders that were updated from and were gone before the last call."""
        return self._called["gone"]

    def commit(self, nodes: int) -> str:
        """Commit the stack with so many nodes; return the commit."""
        write(self.project, "dev", stack(nodes=nodes))
        return commit(self.project)


@pytest.fixture
def rehearsals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsals:
    """A repository whose branch `main` has two nodes and whose branch `feature`, which is checked out, three."""
    project, calls = new_repository(tmp_path / "project"), tmp_path / "calls.json"
    calls.write_text(json.dumps({"calls": [], "folders": [], "gone": [], "answers": {}}))

    def played(folder: Path, words: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
        return [sys.executable, "-S", "-c", PLAYED, str(calls), str(folder), *words], {}

    monkeypatch.setattr(promotion, "kit_command", played)
    made = Rehearsals(project, calls)
    made.commit(2)
    git(project, "switch", "--quiet", "--create", "feature")
    made.commit(3)
    return made


def test_a_change_is_rehearsed_as_an_update_of_its_deployed_base_commit(rehearsals: Rehearsals):
    found = rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert rehearsals.calls == ["2", "3", "down"]
    assert rehearsals.gone == []
    assert (found.passed, found.base) == (True, git(rehearsals.project, "rev-parse", "main"))
    assert found.changes == "1 updated, 9 unchanged"
    assert git(rehearsals.project, "worktree", "list").count("\n") == 0


def test_without_a_base_commit_a_change_is_rehearsed_as_a_new_deployment(rehearsals: Rehearsals):
    assert rehearse_change(rehearsals.project, "dev", None, Listener()).base is None
    git(rehearsals.project, "switch", "--quiet", "main")
    assert rehearse_change(rehearsals.project, "dev", "main", Listener()).base is None
    assert rehearsals.calls == ["3", "down", "2", "down"]


def test_uncommitted_changes_are_rehearsed_as_an_update_from_the_head_commit(rehearsals: Rehearsals):
    write(rehearsals.project, "dev", stack(nodes=4))
    assert rehearse_change(rehearsals.project, "dev", "HEAD", Listener()).base
    assert rehearsals.calls == ["3", "4", "down"]


def test_a_change_that_needs_a_new_local_cluster_is_not_reported_as_an_update(rehearsals: Rehearsals):
    rehearsals.answer(3, cluster_begun="nodes 3 becomes 4")
    found = rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert found.base is None
    assert "so that this was no update: nodes 3 becomes 4" in found.changes


def test_a_base_commit_that_fails_its_rehearsal_is_torn_down_before_the_change(rehearsals: Rehearsals):
    rehearsals.answer(2, status=1, error="there is no such image")
    found = rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert rehearsals.calls == ["2", "down", "3", "down"]
    assert (found.passed, found.base) == (True, None)
    assert "the stack as it was can't be rehearsed: there is no such image" in found.changes


def test_a_failed_rehearsal_of_a_change_is_torn_down_and_reported_with_its_cause(rehearsals: Rehearsals):
    rehearsals.answer(3, status=1, error="no room")
    found = rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert (found.passed, found.error, found.passports) == (False, "no room", ())
    assert rehearsals.calls[-1] == "down"


def test_a_change_is_not_rehearsed_while_another_rehearsal_of_its_stack_exists(rehearsals: Rehearsals):
    there = rehearsals.project / ".rehearsal" / "dev"
    there.mkdir(parents=True)
    (there / "cluster.json").write_text("{}")
    with pytest.raises(KitError, match="A rehearsal of dev is there") as refused:
        rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert refused.value.remedy == "End it first: scripts/rehearse down --stack dev"
    assert rehearsals.calls == []


@pytest.mark.parametrize(("nodes", "topologies"), [(2, []), (3, ["1p-tp1-1d-tp1"])])
def test_a_rehearsed_changes_passports_are_of_the_new_commits_deployment(
    rehearsals: Rehearsals, nodes: int, topologies: Sequence[str]
):
    rehearsals.answer(nodes, passport=PASSPORT.model_dump_json())
    found = rehearse_change(rehearsals.project, "dev", "main", Listener())
    assert [item.topology for item in found.passports] == topologies


@pytest.mark.parametrize("begins", [True, False])
def test_a_failed_rehearsed_update_counts_as_begun_if_pulumi_wrote_history(rehearsals: Rehearsals, begins: bool):
    rehearsals.answer(3, status=1, begins=begins, problems=[{"why": "wrong"}])
    head = git(rehearsals.project, "rev-parse", "HEAD")
    attempt = StackDeployer(rehearsals.project, "dev", head, Listener(), rehearse=True).deploy(head)
    assert (attempt.passed, attempt.begun, attempt.error) == (False, begins, "wrong")
