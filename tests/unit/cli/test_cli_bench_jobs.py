"""What `llmd-oke bench` says of a load from pods."""

from pathlib import Path

import pytest
from llmd_oke.cli.main import app
from llmd_oke.experiments.deployed import load
from llmd_oke.experiments.deployed.kept_loads import Kept
from llmd_oke.results.reading import Read, Rejected
from typer.testing import CliRunner

PROJECT = Path(__file__).parents[3]
LOAD = ["bench", "--stack", "guide", "--shape", "constant:4", "--duration", "5", "--project", str(PROJECT)]


def test_files_of_a_tool_that_can_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unread = Kept(Read(rejected=(Rejected("stage_0.json", None, "has no figures"),)))

    def with_tool(*_: object) -> Kept:
        return unread

    monkeypatch.setattr(load, "with_tool", with_tool)
    ran = CliRunner().invoke(app, [*LOAD, "--tool", "inference-perf", "--reports", str(tmp_path)])
    assert ran.exit_code == 1
    assert "stage_0.json: has no figures" in ran.stderr
