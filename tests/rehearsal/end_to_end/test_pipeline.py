"""The workflows' own steps in the local cluster: a stack is deployed, previewed and looked at by a runner's shell.

Sign-in, backend and passphrase are of `engine/test_engine_pipeline.py`: a rehearsal has a state of its own.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.pipelines.records import RehearsalReport
from user_project import Project, model
from workflows_for_tests import Runner, checkout_of, has_programs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.rehearsal,
    pytest.mark.nightly,
    pytest.mark.skipif(not has_programs(), reason="no bash, jq, bwrap, ip or unshare"),
]

ROOT = Path(__file__).resolve().parents[3]
STACK, CHANGED = "existing", "changed"


def test_pipeline_steps_deploy_preview_and_inspect_a_stack_in_the_local_cluster(
    project: Project, tmp_path: Path
) -> None:
    project.write(STACK)
    checkout = checkout_of(ROOT, tmp_path, {})
    (checkout / "states").mkdir()
    own = {"LLMD_OKE_PROJECT": str(project.folder), "LLMD_OKE_REHEARSE": "true"}
    contexts: dict[str, Any] = {"inputs": {"stack": STACK}, "matrix": {"stack": STACK}, "needs": {}}
    runner = Runner(checkout, tmp_path, {**os.environ, **own}, contexts)
    contexts["needs"]["choose"] = {"outputs": runner.job("deploy", "choose")}
    contexts["needs"]["limit"] = {"outputs": runner.job("deploy", "limit")}
    assert contexts["needs"]["choose"]["outputs"] == {"stack": STACK}
    assert int(contexts["needs"]["limit"]["outputs"]["minutes"]) > 60
    runner.step("deploy", "deploy", "Deploy")
    assert "Remote prefill" in runner.shown
    for workflow in ("preview", "drift"):
        runner.step(workflow, workflow, workflow.title())
    assert "nothing was changed by hand" in (checkout / "summary.md").read_text()


@pytest.mark.usefixtures("project")
def test_a_change_is_rehearsed_as_an_update_from_its_branchs_base_commit_on_main(tmp_path: Path) -> None:
    mine = Project(tmp_path / "mine")
    (mine.folder / "stacks").mkdir(parents=True)
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copyfile(ROOT / name, mine.folder / name)
    mine.write(CHANGED)
    git(mine.folder, "init", "--initial-branch", "main")
    base = commit(mine.folder)
    git(mine.folder, "switch", "--create", "larger")
    mine.write(CHANGED, models=[model(topology="3p-tp1-1d-tp2")])
    commit(mine.folder)
    report = tmp_path / "rehearsal.json"
    ended = mine.command("pipeline", "rehearse", "--stack", CHANGED, "--base", "main", "--report", str(report))
    assert ended.status == 0, ended.output + ended.errors
    found = RehearsalReport.model_validate_json(report.read_text())
    assert (found.base, found.passed, len(found.passports)) == (base, True, 1)
    assert re.search(r"[1-9]\d* unchanged", found.changes)


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    """Commit everything; return the commit's name."""
    git(folder, "add", "Pulumi.yaml", "__main__.py", "stacks")
    git(folder, "commit", "--message", "Change the stack")
    return git(folder, "rev-parse", "HEAD")
