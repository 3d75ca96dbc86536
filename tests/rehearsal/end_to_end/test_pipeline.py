"""The workflows' own steps in the local cluster: a stack is deployed, previewed and looked at by a runner's shell.

Sign-in, backend and passphrase are of `engine/test_engine_pipeline.py`: a rehearsal has a state of its own.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from user_project import Project
from workflows_for_tests import Runner, checkout_of, has_programs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.rehearsal,
    pytest.mark.nightly,
    pytest.mark.skipif(not has_programs(), reason="no bash, jq, bwrap, ip or unshare"),
]

ROOT = Path(__file__).resolve().parents[3]
STACK = "existing"


def test_a_stack_is_deployed_previewed_and_looked_at_in_the_local_cluster(project: Project, tmp_path: Path) -> None:
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
