import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from llmd_oke.cli import rebuild as command
from llmd_oke.cli import recover
from llmd_oke.cli.main import app
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from oci_for_tests import FakeOci
from stack_files import PROJECT
from typer.testing import CliRunner

CLUSTER = {
    "urn": "urn:pulumi:reference::llmd-oke::oci:ContainerEngine/cluster:Cluster::oke-cluster",
    "type": "oci:ContainerEngine/cluster:Cluster",
    "id": "ocid1.cluster.lost",
}
DELETED = {"resOutputsEvent": {"metadata": {"op": "delete", "urn": CLUSTER["urn"]}}}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of what is done to a stack whose state has a cluster that OCI no longer has; its update fails."""
    (tmp_path / "stacks").mkdir()
    for name in ("Pulumi.yaml", "stacks/Pulumi.reference.yaml"):
        shutil.copyfile(PROJECT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    done: list[str] = []
    answers: dict[str, Any] = {
        "stack export": {"version": 3, "deployment": {"resources": [CLUSTER]}},
        "refresh --preview-only": DELETED,
        "whoami --json": {"url": "file:///state"},
    }

    def run(argv: Sequence[str], capture: bool) -> CommandResult:
        words = " ".join(argv[argv.index("pulumi") + 1 :][:2])
        done.append(words)
        return CommandResult(0, json.dumps(answers.get(words, {})))

    def up(*_: Any, as_json: bool = False, **__: Any) -> None:
        done.append("up")
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": "no capacity"}))
        raise typer.Exit(1)

    monkeypatch.setattr(command, "pulumi_cli", lambda project, stack, aside: PulumiCli(project, stack, "pulumi", run))
    monkeypatch.setattr(recover, "client_for", lambda *_: lambda: FakeOci({"containerengine /clusters": []}))
    monkeypatch.setattr(command.updating, "up", up)
    return done


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["rebuild", "--stack", "reference", *words])


def test_rebuild_changes_no_state_before_it_is_confirmed(calls: list[str]):
    ended = invoke()
    assert "gone, made anew: Cluster oke-cluster" in ended.output
    assert "Nobody can be asked" in str(getattr(ended.exception, "message", ""))
    assert "stack import" not in calls


def test_a_rebuild_whose_update_fails_exits_with_1_and_reports_losses_as_json(calls: list[str]):
    ended = invoke("--yes", "--archive", "before.tar.gz")
    assert (ended.exit_code, calls[-2:]) == (1, ["stack import", "up"])
    assert Path("before.tar.gz").is_file()
    ended = invoke("--yes", "--archive", "again.tar.gz", "--json")
    assert (ended.exit_code, calls[-1]) == (1, "up")
    result = json.loads(ended.stdout)
    assert result["losses"][0] == "gone, made anew: Cluster oke-cluster"
    assert result["update"]["error"] == "no capacity"
    assert result["archive"].endswith("again.tar.gz")
