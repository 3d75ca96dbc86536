"""`llmd-oke rehearse` before anything is started."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import catalogue
from llmd_oke.cli.main import app
from llmd_rehearsal import output, running_rehearsals
from llmd_rehearsal.inventory import ReleaseChoice
from stack_files import PROJECT
from typer.testing import CliRunner, Result

EXAMPLES = PROJECT / "examples"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which nothing can be ended."""

    def never(*_: object) -> bool:
        raise AssertionError

    (tmp_path / "Pulumi.yaml").touch()
    (tmp_path / ".rehearsal" / "rehearsal").mkdir(parents=True)
    monkeypatch.setattr(running_rehearsals, "down", never)
    return tmp_path


def command(project: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["rehearse", *words], env={"LLMD_OKE_PROJECT": str(project)})


def refusal(project: Path, *words: str) -> KitError:
    refused = command(project, *words).exception
    assert isinstance(refused, KitError)
    return refused


def test_an_option_before_a_subcommand_of_rehearse_is_refused_with_its_right_place(project: Path):
    refused = refusal(project, "--stack", "guide", "down")
    assert refused.message == "Options before `down` count for nothing: --stack"
    assert refused.remedy == "Put it behind: llmd-oke rehearse down --stack guide"


def test_an_option_that_a_subcommand_of_rehearse_lacks_is_refused(project: Path):
    assert refusal(project, "--time-scale", "3", "down").remedy == "`down` has no --time-scale."


def test_rehearse_status_finds_the_project_by_its_environment_variable(project: Path):
    assert command(project, "status").output == "nothing is up\n"


@pytest.mark.parametrize("subcommand", ["status", "down"])
def test_outside_a_project_rehearse_down_reports_an_error(tmp_path: Path, subcommand: str):
    assert "no Pulumi.yaml" in refusal(tmp_path, subcommand).message


def after(other: Path, *words: str) -> KitError:
    """Rehearse the example of a second model after another project; return the refusal."""
    refused = refusal(EXAMPLES / "second-model", *words, "--after", str(other))
    assert running_rehearsals.phase(EXAMPLES / "second-model", "rehearsal") == "gone"
    return refused


def test_rehearse_refuses_an_after_option_that_names_a_project_of_the_same_name():
    assert "Both projects are named second-model" in after(EXAMPLES / "second-model").message


def test_rehearse_refuses_an_after_option_with_a_project_that_lacks_the_stack(tmp_path: Path):
    (tmp_path / "Pulumi.yaml").write_text("name: other\n")
    assert f"{tmp_path}/stacks/Pulumi.rehearsal.yaml" in after(tmp_path).message


def test_rehearse_refuses_the_after_option_together_with_the_real_vllm():
    assert after(EXAMPLES / "existing-cluster", "--vllm", "real").remedy == "Leave out --vllm real."


@pytest.mark.parametrize("option", ["--time-scale", "--startup-seconds", "--scaling-speed"])
def test_options_for_simulated_servers_are_refused_with_the_real_vllm(project: Path, option: str):
    refused = refusal(project, "--vllm", "real", option, "4")
    assert refused.message == f"vLLM itself goes by the wall clock: {option} would do nothing."


def test_a_stack_that_vllm_cannot_serve_on_cpus_is_refused_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text("name: own\n")
    changed = "topology: agg-tp1-1r\n        engine: {kvCache: {hostMemoryGib: 20}}"
    text = (PROJECT / "stacks/Pulumi.small.yaml").read_text().replace("topology: 2p-tp1-1d-tp2", changed)
    (tmp_path / "stacks/Pulumi.small.yaml").write_text(text)
    refused = refusal(tmp_path, "--stack", "small", "--vllm", "real")
    assert isinstance(refused, InvalidStack)
    (problem,) = refused.problems
    assert problem.path == "models[0].engine.kvCache.hostMemoryGib"
    assert text.splitlines()[(problem.line or 0) - 1].split()[0] == "engine:"
    assert not (tmp_path / "cache").exists()


def choice(asked: str, used: str) -> ReleaseChoice:
    return ReleaseChoice(catalogue.release(asked), catalogue.release(used), "403 Forbidden" * (asked != used))


def test_a_rehearsal_reports_the_release_that_it_runs_in_place_of_the_stacks():
    replaced = choice("llm-d-0.7.0", "llm-d-0.6.0")
    assert output.release_text(replaced) == "llm-d-0.6.0, in place of llm-d-0.7.0"
    told = output.substitution_text(replaced) or ""
    assert "can be had here (403 Forbidden); llm-d-0.6.0, the nearest that has," in told
    assert output.releases_document(replaced) == {"asked_release": "llm-d-0.7.0", "release": "llm-d-0.6.0"}


def test_a_rehearsal_that_runs_the_stacks_own_release_reports_no_substitution():
    same = choice("llm-d-0.6.0", "llm-d-0.6.0")
    assert output.release_text(same) == "llm-d-0.6.0"
    assert output.substitution_text(same) is None


@pytest.mark.parametrize(
    ("operation", "changes", "told"),
    [
        ("preview", {"same": 7}, "no changes: 7 resources are as they should be"),
        ("preview", {"update": 1, "same": 6}, "1 to update, 6 unchanged"),
        ("destroy", {"delete": 7}, "7 deleted, 0 unchanged"),
        ("destroy", {}, "nothing was deployed"),
    ],
)
def test_the_result_of_a_rehearsed_operation_is_told_in_a_sentence(operation: str, changes: dict[str, int], told: str):
    result: dict[str, Any] = {"operation": operation, "changes": changes}
    assert output.changes_text(result) == told
