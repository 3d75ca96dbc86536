"""Changes of a stack rehearsed as a pull request and as merges: the workflows' own steps, on commits of a Git server of
this machine, each update in the local cluster that has the stack of the commit before."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.values import read_yaml
from user_project import Project, model
from workflows_for_tests import GH, Runner, checkout_of, has_programs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.rehearsal,
    pytest.mark.nightly,
    pytest.mark.skipif(not has_programs(), reason="no bash, jq, bwrap, ip or unshare"),
]

ROOT = Path(__file__).resolve().parents[3]
STACK = "dev"
STAGES = f"stages: [{{stack: {STACK}}}]\ngates: ['itl_ms.p95>+20%']\n"
IGNORED = ".venv\nreports/\n.rehearsal/\nchanges/\nfound/\ncomment/\nsummary.md\nrehearsal-*.json\n"
SUDO = '#!/bin/sh\nwhile case "$1" in -*) ;; *) exec "$@" ;; esac; do shift; done\n'
"""Runs a command as the user who is here: a rehearsal does without root where the machine allows namespaces."""


def smoke(**thresholds: float) -> dict[str, Any]:
    """A benchmark whose few requests may pass a prefill server by, as on a machine with other work."""
    return {"requests": 8, "concurrency": 2, "thresholds": {"minRemotePrefillShare": 0.25, **thresholds}}


@dataclass
class Repository:
    """The checkout of a runner, whose server is a bare repository."""

    runner: Runner

    @property
    def checkout(self) -> Path:
        return self.runner.checkout

    @property
    def project(self) -> Project:
        return Project(self.checkout)

    @property
    def deployed(self) -> dict[str, Any]:
        """The stack as the rehearsal's engine has it."""
        copy = self.checkout / ".rehearsal" / STACK / "project" / "stacks" / f"Pulumi.{STACK}.yaml"
        return read_yaml(copy)["config"]["llmd-oke:stack"]

    def git(self, *words: str) -> str:
        own = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-c", "core.hooksPath=/dev/null"]
        argv = ["git", *own, "-C", str(self.checkout), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, message: str, **changes: Any) -> str:
        """Commit the stack with what is changed; return the commit."""
        self.project.write(STACK, **{"smoke": smoke(), **changes})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def merge(self, name: str, **changes: Any) -> str:
        """Change the stack on a branch, merge it on the server, and check out what that has; return the commit."""
        self.git("switch", "--quiet", "--create", name)
        self.commit(name, **changes)
        self.git("switch", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "--message", f"Merge {name}", name)
        self.git("push", "--quiet", "origin", "main")
        self.git("fetch", "--quiet", "origin")
        self.git("reset", "--quiet", "--hard", "origin/main")
        return self.git("rev-parse", "HEAD")

    def promote(self, expected: int = 0) -> str:
        """Run the step of promote.yml that deploys a stage; return its summary."""
        self.runner.contexts["env"] = {"STACK": STACK}
        self.runner.step("promote", "stage-1", "Promote", expected)
        return (self.checkout / "summary.md").read_text()


@pytest.fixture
def repository(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    artifacts, programs = tmp_path / "artifacts", tmp_path / "programs"
    for folder in (artifacts, programs):
        folder.mkdir()
    for name, text in (("gh", GH.format(artifacts=artifacts)), ("sudo", SUDO)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    checkout = checkout_of(ROOT, tmp_path, {"stacks/pipeline.yaml": STAGES, ".gitignore": IGNORED})
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("components", "packages"))
    environment = {**Project(checkout).environment(), "PYTHONPATH": paths, "LLMD_OKE_REHEARSE": "true"}
    contexts = {
        "github": {"repository": "o/r", "run_id": "1", "server_url": "https://github.example", "event": {}},
        "matrix": {"stack": STACK},
    }
    made = Repository(Runner(checkout, artifacts, environment, contexts))
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "server.git")], check=True)
    made.git("init", "--quiet", "--initial-branch", "main")
    made.git("remote", "add", "origin", (tmp_path / "server.git").as_uri())
    made.commit("the first one")
    made.git("push", "--quiet", "origin", "main")
    yield made
    made.project.command("rehearse", "down")


def test_a_pull_request_comment_reports_the_rehearsed_update_from_its_base_commit(repository: Repository) -> None:
    runner, base = repository.runner, repository.git("rev-parse", "HEAD")
    repository.git("switch", "--quiet", "--create", "feature")
    head = repository.commit("another topology", models=[model(topology="1p-tp1-2d-tp2")])
    runner.contexts["github"]["event"] = {"pull_request": {"number": 7, "base": {"sha": base}}}
    outputs = runner.job("preview", "changes")
    assert json.loads(outputs["stacks"]) == [STACK]
    runner.job("preview", "rehearse")
    report = json.loads((repository.checkout / f"rehearsal-{STACK}.json").read_text())
    assert (report["base"], report["passed"]) == (base, True)
    assert re.search(r"[1-9]\d* unchanged", report["changes"])
    runner.job("preview", "comment")
    said = (repository.checkout / "comment" / "comment.md").read_text()
    assert re.search(rf"\| `{STACK}` \| passed \| none here \| 48\.00 \| none \| passed \(\d+ (s|min)\) \|", said)
    assert f"Compared with `{base[:12]}`, at `{head[:12]}`" in said
    assert f"Rehearsal of the update from `{base[:12]}` passed: {report['changes']}" in said
    assert re.search(r"\| `gpt-oss-120b` `1p-tp1-2d-tp2` \| passed \| calibrated \| \d", said)
    assert "```mermaid" in said
    assert not (repository.checkout / ".rehearsal" / STACK / "cluster.json").exists()
    assert repository.git("worktree", "list").count("\n") == 0
    assert repository.git("status", "--porcelain") == ""


def test_a_merge_whose_deployment_fails_is_rolled_back_and_a_refused_one_is_not(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    assert f"### `{STACK}`: deployed" in repository.promote()
    deployed = repository.deployed

    repository.merge("impossible", smoke=smoke(maxTtftP95Ms=0.001))
    said = repository.promote(expected=1)
    assert f"### `{STACK}`: rolled back" in said
    assert "TTFT p95" in said
    assert f"The stack is at `{first[:12]}` again" in said
    assert said.count("was no update") == 0
    assert repository.deployed == deployed

    repository.merge("wrong", release="llm-d-99")
    said = repository.promote(expected=1)
    assert f"### `{STACK}`: refused" in said
    assert "Nothing was changed" in said
    assert repository.git("worktree", "list").count("\n") == 0


def test_a_merge_whose_benchmark_breaches_a_limit_is_rolled_back_in_a_rehearsal(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    assert f"### `{STACK}`: deployed" in repository.promote()
    deployed = repository.deployed
    reports = repository.checkout / "reports" / STACK
    assert json.loads((reports / "rehearsed-good.json").read_text())["commit"] == first
    assert not (reports / "good.json").exists()

    repository.merge("slow", models=[model(topology="2p-tp1-1d-tp1")])
    said = repository.promote(expected=1)
    assert f"### `{STACK}`: rolled back" in said
    assert "**Gates**" in said
    assert repository.deployed == deployed
