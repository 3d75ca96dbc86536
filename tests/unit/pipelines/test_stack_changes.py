"""Stacks that a change touches, by what they plan and declare, in commits of a real repository."""

import json
from pathlib import Path

import pytest
import yaml
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.cli.main import app
from llmd_oke.pipelines import changes as operation
from llmd_oke.pipelines.changes import changes_since, compared
from llmd_oke.pipelines.records import Snapshots, StackSnapshot
from llmd_oke.pipelines.revisions import git, revision_folder
from repositories_for_tests import commit, new_repository
from stack_files import stack, write
from typer.testing import CliRunner

BASE, HEAD = "a" * 40, "b" * 40


def side(commit: str, *stacks: StackSnapshot, requirements: str = "r") -> Snapshots:
    return Snapshots(commit=commit, requirements=requirements, stacks=stacks)


def snapshot(name: str, **resources: str) -> StackSnapshot:
    return StackSnapshot(stack=name, resources=resources)


def test_a_change_touches_a_stack_if_the_stacks_declared_resources_differ():
    old = side(BASE, snapshot("same", a="1"), snapshot("other", a="1", b="1", c="1"), snapshot("gone"))
    new = side(HEAD, snapshot("same", a="1"), snapshot("other", a="1", b="2", d="1"), snapshot("made"))
    found = compared(old, new, BASE, HEAD)
    assert found.untouched == ("same",)
    assert {item.stack: item.kind for item in found.changes} == {"gone": "removed", "made": "new", "other": "changed"}
    other = next(item for item in found.changes if item.stack == "other")
    assert (other.created, other.changed, other.deleted) == (("d",), ("b",), ("c",))
    assert found.touched == ("made", "other")


def test_a_stack_that_cannot_be_deployed_is_reported_but_gets_no_ci_job():
    refused = StackSnapshot(stack="s", problems=("no such shape",))
    found = compared(side(BASE, snapshot("s", a="1")), side(HEAD, refused), BASE, HEAD)
    assert ([item.stack for item in found.changes], found.touched) == (["s"], ())


def test_a_stack_that_cannot_be_rendered_is_compared_by_its_plan_alone():
    rendered = snapshot("s", a="1", setting="1")
    plan_only = StackSnapshot(stack="s", unrendered="no network", resources={"plan": "1", "setting": "2"})
    found = compared(side(BASE, rendered), side(HEAD, plan_only), BASE, HEAD)
    assert (found.changes[0].changed, found.changes[0].deleted) == (("setting",), ())
    assert "compared by their plans alone" in found.notes[0]


def test_a_change_of_the_locked_python_packages_is_reported():
    old, new = (side(commit, snapshot("s"), requirements=commit) for commit in (BASE, HEAD))
    assert "the locked packages differ" in compared(old, new, BASE, HEAD).notes[0]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    project = new_repository(tmp_path / "project")
    for name in ("dev", "prod"):
        write(project, name, stack(nodes=2))
    commit(project)
    git(project, "switch", "--quiet", "--create", "feature")
    return project


def test_pipeline_changes_lists_the_stacks_that_a_branch_touches_since_main(repository: Path, tmp_path: Path):
    write(repository, "dev", stack(nodes=3))
    (repository / "stacks" / "Pulumi.wrong.yaml").write_text(yaml.safe_dump({"config": {"llmd-oke:stack": {"x": 1}}}))
    commit(repository)
    output = tmp_path / "out"
    argv = ["pipeline", "changes", "--project", str(repository), "--base", "main", "--output", str(output), "--json"]
    ended = CliRunner().invoke(app, argv)
    assert ended.exit_code == 1, ended.output  # `wrong` can't be deployed
    found = json.loads(ended.stdout)
    assert found["touched"] == ["dev"]
    assert found["untouched"] == ["prod"]
    prices = [sum(part["usd_per_hour"] for part in found["changes"][0][at]["costs"]) for at in ("before", "after")]
    assert prices == [96.0, 144.0]
    assert sorted(path.name for path in output.iterdir()) == ["changes.json", "dev.svg", "prod.svg"]
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "worktree", "list").count("\n") == 0
    names = ["pipeline", "stacks", "--project", str(repository), "--changes", str(output / "changes.json"), "--json"]
    assert json.loads(CliRunner().invoke(app, names).stdout) == ["dev"]


def test_all_stacks_count_as_new_if_those_of_the_base_cannot_be_read(repository: Path, monkeypatch: pytest.MonkeyPatch):
    def only_head(folder: Path, commit: str, _: Path | None) -> Snapshots:
        if folder != repository:
            raise KitError("No such command 'snapshot'.")
        return side(commit, snapshot("dev"), snapshot("prod"))

    monkeypatch.setattr(operation, "_snapshots", only_head)
    found = changes_since(repository, "main", Listener())
    assert {item.stack: item.kind for item in found.changes} == {"dev": "new", "prod": "new"}
    assert "No such command" in found.notes[0]


@pytest.mark.parametrize("revision", ["nothing", "--help", "main; touch x", ""])
def test_an_unknown_git_revision_is_refused_as_the_base_of_changes(repository: Path, revision: str):
    with pytest.raises(KitError, match="has no commit"):
        changes_since(repository, revision, Listener())


def test_a_temporary_checkout_of_a_revision_uses_the_projects_reports_folder(repository: Path):
    (repository / "reports").mkdir()
    write(repository, "dev", stack(nodes=3))
    earlier = git(repository, "rev-parse", "main")
    commit(repository)
    with revision_folder(repository, earlier) as folder:
        assert "size: 2" in (folder / "stacks" / "Pulumi.dev.yaml").read_text()
        (folder / "reports" / "one").write_text("1")
    assert not folder.exists()
    assert (repository / "reports" / "one").read_text() == "1"


def test_a_git_revision_without_the_pulumi_project_is_refused(repository: Path):
    (repository / "Pulumi.yaml").unlink()
    gone = commit(repository)
    with pytest.raises(KitError, match="no project in the repository"), revision_folder(repository, gone):
        pytest.fail("a folder")
