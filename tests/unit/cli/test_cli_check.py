"""`llmd-oke check`: what it tells of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.catalogue.operations import bring_up_facts
from llmd_oke.cli.main import app
from stack_files import model, stack, write
from typer.testing import CliRunner

NODE_DISK = {"storage": {"modelCache": {"kind": "node-disk"}}}


def check(project: Path, *options: str, **changes: Any) -> str:
    (project / "Pulumi.yaml").write_text("name: mine\n")
    write(project, "s", stack(model("1p-tp8-1d-tp8"), **changes))
    return CliRunner().invoke(app, ["check", "--stack", "s", "--project", str(project), *options]).output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (NODE_DISK, "with the code that another of its kind compiled on the node (assumed;"),
        ({}, "it compiles each time"),
    ],
)
def test_check_tells_how_long_a_server_takes_to_start_first_and_again(
    tmp_path: Path, changes: dict[str, Any], words: str
):
    (line,) = [line for line in check(tmp_path, **changes).splitlines() if "start of a server" in line]
    assert words in line


def test_a_plan_as_data_has_the_seconds_of_both_starts(tmp_path: Path):
    start = json.loads(check(tmp_path, "--json", **NODE_DISK))["server_start"]
    assert start["first_s"] - start["again_s"] == pytest.approx(bring_up_facts().server_start.compiling_seconds)
    assert start["source"] == "assumed"
