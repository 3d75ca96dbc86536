"""What continuous integration calls takes the names of stack files only."""

from pathlib import Path

import pytest
from llmd_oke.cli.main import app
from llmd_oke.errors import KitError
from typer.testing import CliRunner

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("command", ["deploy", "drift", "limit", "preview"])
@pytest.mark.parametrize("more", [[], ["--rehearse"]])
@pytest.mark.parametrize(
    "stack", ["org/llmd-oke/reference", "org/reference", "../reference", "reference ", "", "Reference"]
)
def test_another_name_of_a_stack_is_refused(command: str, more: list[str], stack: str):
    more = more if command != "limit" else ["--own-runner"]
    ended = CliRunner().invoke(app, ["pipeline", command, "--stack", stack, "--project", str(PROJECT), *more])
    assert isinstance(ended.exception, KitError)
    assert "is no name of a stack file" in ended.exception.message
    assert "reference" in str(ended.exception.remedy)
