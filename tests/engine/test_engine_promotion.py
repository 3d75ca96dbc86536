"""A change from a pull request to production and back: real commits on a Git server of this machine, the workflows' own
steps, the real Pulumi CLI and a backend.

The benchmark in the cluster is played by the stack's program, which writes the rows that a smoke Job's report has.
"""

import json
import re
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from llmd_base.row import Row
from llmd_oke.pipelines.records import ProjectChanges, StackSnapshot, TouchedStack
from llmd_oke.values import read_yaml
from stack_files import document, stack
from test_engine_pipeline import SECRET, Pipeline, list_artifact, pipeline  # noqa: F401 - a fixture
from workflows_for_tests import has_programs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_programs(), reason="no bash, jq, bwrap, ip or unshare"),
]

STAGES = """
stages: [{stack: reference, approval: true}]
gates: ["ttft_ms.p95>+25%"]
"""
PROTECTED = {"name": "reference", "protection_rules": [{"id": 1, "type": "required_reviewers"}]}
IGNORED = (
    ".venv\nreports/\n.rehearsal/\nstates/\nchanges/\nfound/\ncomment/\nenvironments/\nsummary.md\npreview-*.json\n"
)


@dataclass
class Repository:
    """The checkout of a runner, with a bare repository on this machine as its server."""

    pipeline: Pipeline
    benchmarks: dict[str, float]
    """TTFT in ms that a deployment of a network has, by the network's name."""

    @property
    def checkout(self) -> Path:
        return self.pipeline.runner.checkout

    def git(self, *words: str) -> str:
        own = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-c", "core.hooksPath=/dev/null"]
        argv = ["git", *own, "-C", str(self.checkout), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    def write(self, name: str) -> None:
        """Commit a stack file whose tag names the network."""
        file = self.checkout / "stacks" / "Pulumi.reference.yaml"
        encrypted = read_yaml(file)
        nodes = 3 if name == "bigger" else 2
        encrypted["config"]["llmd-oke:stack"] = stack(nodes=nodes, tags={"freeform": {"network": name}})
        file.write_text(yaml.safe_dump(encrypted, sort_keys=False))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"the network is {name}")

    def merge(self, name: str) -> str:
        """Change a network on a branch, merge it, push it, and check out what the server has; return the commit."""
        self.git("switch", "--quiet", "--create", f"feature-{name}")
        self.write(name)
        self.git("switch", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "--message", f"Merge {name}", f"feature-{name}")
        self.git("push", "--quiet", "origin", "main")
        self.git("fetch", "--quiet", "origin")
        self.git("reset", "--quiet", "--hard", "origin/main")
        return self.git("rev-parse", "HEAD")

    def promote(self, expected: int = 0) -> str:
        """Run promote.yml for the only stage; return its summary."""
        contexts = self.pipeline.runner.contexts
        contexts["needs"] = {"stages": {"outputs": self.pipeline.job("promote", "stages")}}
        self.pipeline.job("promote", "stage-1", expected)
        return self.pipeline.summary

    def promote_alone(self) -> str:
        """Run the step of promote.yml that updates the stage, without the jobs and steps around it; return its
        summary.
        """
        runner = self.pipeline.runner
        runner.environment.update(self.pipeline.there.variables("reference"))
        runner.contexts["env"] = {"STACK": "reference"}
        runner.step("promote", "stage-1", "Promote")
        return self.pipeline.summary

    @property
    def good(self) -> str:
        """The last good commit in the history."""
        history = Path(self.pipeline.runner.contexts["vars"]["LLMD_OKE_HISTORY"])
        return json.loads((history / "reference" / "good.json").read_text())["commit"]

    @property
    def deployed(self) -> str:
        """Name of the network in the stack's state."""
        state = json.loads(self.pipeline.pulumi("stack", "export", "--stack", "reference"))
        return next(
            item["inputs"]["displayName"] for item in state["deployment"]["resources"] if item["type"].endswith("Vcn")
        )


@pytest.fixture
def repository(pipeline: Pipeline, tmp_path: Path) -> Repository:  # noqa: F811
    checkout, artifacts = pipeline.runner.checkout, pipeline.runner.artifacts
    made = Repository(pipeline, {})
    runs: list[str] = []

    def network() -> dict[str, Any]:
        name = str(pulumi.Config("llmd-oke").require_object("stack")["tags"]["freeform"]["network"])
        if not pulumi.runtime.is_dry_run():
            runs.append(f"202601{len(runs) + 1:02}T000000Z")
            row = {
                "subject": "end-to-end", "origin": {"tool": "smoke"}, "model": "m", "gpu": "MI300X", "gpus_counted": 16,
                "input_tokens": 100, "output_tokens": 10, "basis": "measured", "concurrency": 4, "requests": 8,
                "ttft_ms": {"p95": made.benchmarks.get(name, 100.0)},
            }  # fmt: skip
            folder = checkout / "reports" / "reference" / runs[-1]
            folder.mkdir(parents=True)
            (folder / "rows.jsonl").write_text(Row.model_validate(row).model_dump_json())
        return {"display_name": name}

    pipeline.network["of"] = network
    pipeline.there.environments["preview"] = "viewer"
    contexts = pipeline.runner.contexts
    contexts["vars"]["LLMD_OKE_HISTORY"] = str(tmp_path / "history")
    (tmp_path / "history").mkdir()
    contexts["github"] |= {"run_id": "1", "server_url": "https://github.example", "event": {}}
    (artifacts / "environment.json").write_text(json.dumps(PROTECTED))
    (checkout / "stacks" / "pipeline.yaml").write_text(STAGES)
    (checkout / ".gitignore").unlink(missing_ok=True)
    (checkout / ".gitignore").write_text(IGNORED)
    (checkout / "stacks" / "Pulumi.reference.yaml").write_text(yaml.safe_dump(document(stack(nodes=2))))
    pipeline.create_stack()
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "server.git")], check=True)
    made.git("init", "--quiet", "--initial-branch", "main")
    made.git("remote", "add", "origin", (tmp_path / "server.git").as_uri())
    made.write("first")
    made.git("push", "--quiet", "origin", "main")
    return made


def test_a_merge_is_deployed_and_remembered_as_the_last_good_commit(repository: Repository):
    assert "### `reference`: deployed" in repository.promote_alone()
    assert repository.deployed == "first"
    assert repository.good == repository.git("rev-parse", "HEAD")


def test_a_pull_request_has_one_comment_that_later_runs_edit(pipeline: Pipeline):  # noqa: F811
    runner = pipeline.runner
    sides = [StackSnapshot(stack="reference", resources={"Vcn vcn": digest}) for digest in ("1", "2")]
    touched = TouchedStack(stack="reference", kind="changed", before=sides[0], after=sides[1], changed=("Vcn vcn",))
    with zipfile.ZipFile(runner.artifacts / "changes.zip", "w") as artifact:
        changes = ProjectChanges(base="a" * 40, head="b" * 40, changes=(touched,))
        artifact.writestr("changes.json", changes.model_dump_json())
    runner.contexts["github"] |= {"run_id": "1", "event": {"pull_request": {"number": 7}}}
    pipeline.job("preview", "comment")
    (runner.artifacts / "comments.json").write_text("[]")
    pipeline.job("preview", "post")
    (posted,) = _posted(runner.artifacts)
    assert (posted["method"], posted["path"]) == ("POST", "repos/o/r/issues/7/comments")
    assert "- changed: `Vcn vcn`" in posted["body"]
    mine = {"id": 11, "user": {"login": "github-actions[bot]"}, "body": posted["body"]}
    others = [{"id": 9, "user": {"login": "somebody"}, "body": posted["body"]}, mine]
    (runner.artifacts / "comments.json").write_text(json.dumps(others))
    pipeline.job("preview", "post")
    assert _posted(runner.artifacts)[1]["path"] == "repos/o/r/issues/comments/11"


@pytest.mark.nightly
def test_a_change_is_previewed_in_a_comment_and_deployed_after_its_merge(repository: Repository):
    made, runner = repository.pipeline, repository.pipeline.runner
    assert "### `reference`: deployed" in repository.promote()
    base = repository.git("rev-parse", "HEAD")
    list_artifact(made)

    repository.git("switch", "--quiet", "--create", "feature")
    repository.write("bigger")
    runner.contexts["github"]["event"] = {"pull_request": {"number": 7, "base": {"sha": base}}}
    outputs = made.job("preview", "changes")
    assert json.loads(outputs["stacks"]) == ["reference"]
    made.job("preview", "preview")
    made.job("preview", "comment")
    said = (repository.checkout / "comment" / "comment.md").read_text()
    row = next(line for line in said.splitlines() if line.startswith("| `reference`"))
    assert row == "| `reference` | passed | none here | 96.00 → 144.00 (**+48.00**) | 1 to update | none |".replace(
        "1 to update", re.findall(r"1 to update, \d+ unchanged", row)[0]
    )
    assert "| update | Vcn vcn | displayName |" in said
    assert "```mermaid" in said
    assert SECRET not in said + runner.shown

    repository.git("switch", "--quiet", "main")
    commit = repository.merge("second")
    assert "### `reference`: deployed" in repository.promote()
    assert repository.deployed == "second"
    assert repository.good == commit


@pytest.mark.nightly
def test_after_a_failed_update_the_stack_is_rolled_back_to_the_last_good_commit(repository: Repository):
    repository.promote()
    good = repository.good
    repository.merge("fails")
    said = repository.promote(expected=1)
    assert "### `reference`: rolled back" in said
    assert f"The stack is at `{good[:12]}` again" in said
    assert "an upgrade of Kubernetes" in said
    assert repository.deployed == "first"
    assert repository.good == good
    assert repository.git("worktree", "list").count("\n") == 0


@pytest.mark.nightly
def test_a_merge_that_slows_the_benchmark_beyond_its_limit_is_rolled_back(repository: Repository):
    repository.promote()
    good = repository.good
    repository.benchmarks["slow"] = 200.0
    repository.merge("slow")
    said = repository.promote(expected=1)
    assert "### `reference`: rolled back" in said
    assert "it changed by +100.0%" in said
    assert repository.deployed == "first"
    assert repository.good == good


@pytest.mark.nightly
def test_a_stage_whose_github_environment_has_no_reviewers_is_not_deployed(repository: Repository):
    (repository.pipeline.runner.artifacts / "environment.json").write_text('{"protection_rules": []}')
    repository.pipeline.job("promote", "stages", expected=1)
    assert "Nobody would be asked before deployments of reference" in repository.pipeline.runner.shown


def _posted(artifacts: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (artifacts / "posted.json").read_text().splitlines()]
