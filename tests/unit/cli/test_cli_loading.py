"""What starting the command costs: each of its commands is loaded when it is used."""

import subprocess
import sys
from importlib import metadata

import pytest
from llmd_oke.cli.main import app
from typer.testing import CliRunner

HEAVY = "numpy matplotlib plotext pulumi pulumi_kubernetes pulumi_oci lightkube httpx aiohttp jinja2 requests"


@pytest.mark.parametrize("module", ["llmd_oke.cli.main", "llmd_oke.cli.check"])
def test_checking_a_stack_file_loads_nothing_of_other_commands(module: str) -> None:
    program = f"import {module}, sys; print(sorted(sys.modules.keys() & {HEAVY.split()!r}))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["chek"])
    assert "'check'" in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(("group", "command"), [("experiment", "run"), ("rehearse", "status"), ("tune", "rank")])
def test_a_group_has_its_own_commands(group: str, command: str) -> None:
    assert command in CliRunner().invoke(app, [group, "--help"]).output


def test_commands_stand_under_headings() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"─ {each} ─") for each in ("Plan", "Deploy", "Measure what is deployed", "Compare and tune")]
    assert places == sorted(places)


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"llmd-oke {metadata.version('llmd-oke')}\n"


def test_a_command_of_the_tuner_loads_no_other() -> None:
    program = "import llmd_oke.cli.tune.rank, sys; print('pulumi' in sys.modules or 'httpx' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"
