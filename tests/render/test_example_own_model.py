"""The example project with a model of its own: what it deploys that the kit doesn't know."""

import json
from pathlib import Path

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.catalogue import open_project
from llmd_oke.cli.main import app
from llmd_oke.config import load
from llmd_oke.objects import resolve_model
from llmd_oke.testing import Rendered, render
from render_support import PROJECT, vllm
from typer.testing import CliRunner

EXAMPLE = PROJECT / "examples" / "own-model"


@pytest.fixture(scope="module")
def made() -> Rendered:
    return render("rehearsal", project=EXAMPLE)


def test_servers_load_the_repository_of_the_projects_own_model(made: Rendered):
    server = vllm(made, "support-8b-decode")
    assert "acme/support-8b" in json.dumps(server)


def test_a_stack_with_the_projects_own_model_is_refused_in_another_project(tmp_path: Path):
    (tmp_path / "stacks").mkdir()
    file = tmp_path / "stacks" / "Pulumi.rehearsal.yaml"
    file.write_text((EXAMPLE / "stacks" / "Pulumi.rehearsal.yaml").read_text())
    with pytest.raises(InvalidStack, match="the catalogue has no such entry"):
        render("rehearsal", project=tmp_path)


def test_a_program_without_a_project_uses_the_values_in_the_engines_root_directory(monkeypatch: pytest.MonkeyPatch):
    stack = load(EXAMPLE, "rehearsal")
    monkeypatch.setattr("pulumi.get_root_directory", lambda: str(EXAMPLE))
    assert "acme/support-8b" in json.dumps(vllm(render(stack), "support-8b-decode"))


def test_check_names_the_file_of_the_projects_own_model():
    checked = CliRunner().invoke(app, ["check", "--stack", "rehearsal", "--project", str(EXAMPLE)])
    assert checked.exit_code == 0, checked.output
    assert "models support-8b: values/models/support-8b.yaml\n" in checked.output


def test_check_lists_the_projects_catalogue_entries_as_json():
    checked = CliRunner().invoke(app, ["check", "--stack", "rehearsal", "--project", str(EXAMPLE), "--json"])
    entries = json.loads(checked.stdout)["project_entries"]
    assert entries == [
        {
            "kind": "models",
            "name": "support-8b",
            "file": "values/models/support-8b.yaml",
            "replaces_kit": False,
        }
    ]


def test_a_pulumi_program_can_use_entries_of_a_project_that_it_opens():
    open_project(EXAMPLE)
    assert resolve_model("support-8b").repository == "acme/support-8b"
    open_project(None)
    with pytest.raises(KitError, match="no model 'support-8b'"):
        resolve_model("support-8b")


def test_rendered_gitops_yaml_contains_the_projects_own_model():
    written = CliRunner().invoke(app, ["render", "--stack", "rehearsal", "--project", str(EXAMPLE), "--output", "-"])
    assert written.exit_code == 0, written.output
    assert "acme/support-8b" in written.stdout
