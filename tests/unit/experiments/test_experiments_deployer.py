"""Deploying for real, against a stand-in for the Pulumi CLI that notes what it is told."""

import json
import os
import sys
from pathlib import Path

import pytest
from experiments_for_tests import experiment
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke import config
from llmd_tuner.experiments.deployer import PulumiDeployer
from llmd_tuner.experiments.preparation import RunOptions

_PULUMI = """#!/bin/sh
echo "$@" >> "{log}"
case "$1 $2" in
  "preview --json") echo '{{"steps": []}}' ;;
  "stack export") echo '{{"deployment": {{"resources": []}}}}' ;;
  "up --yes") exit {up} ;;
esac
"""


class Cli:
    """A `pulumi` on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, up: int) -> None:
        self._log = folder / "calls"
        program = folder / "bin" / "pulumi"
        program.parent.mkdir()
        program.write_text(_PULUMI.format(log=self._log, up=up))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    @property
    def calls(self) -> list[str]:
        """The first two words of each call."""
        return [" ".join(line.split()[:2]) for line in self._log.read_text().splitlines()]

    @property
    def stacks(self) -> set[str]:
        """The stacks that it was told of."""
        lines = self._log.read_text().splitlines()
        return {line.split("--stack ")[1].split()[0] for line in lines}


def deployer(tmp_path: Path) -> tuple[PulumiDeployer, list[config.ModelConfig]]:
    made = experiment(tmp_path, RunOptions())
    models = [made.recipe.model_of(item) for item in made.deployments]
    return PulumiDeployer(tmp_path, "s", {}), models


def test_an_experiment_deploys_a_separate_stack_and_leaves_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cli = Cli(tmp_path, monkeypatch, up=0)
    real, models = deployer(tmp_path)
    assert real.deploy(models, SilentProgress()).simulated == ()
    assert cli.calls == ["stack select", "stack export", "refresh --preview-only", "preview --json", "up --yes"]
    assert cli.stacks == {"s-experiment"}
    assert "s-experiment" in config.stacks(tmp_path)
    real.teardown(SilentProgress())
    real.close(SilentProgress())
    assert cli.calls[-3:] == ["stack export", "destroy --yes", "stack rm"]
    assert config.stacks(tmp_path) == ["s"]


def test_a_failed_update_of_an_experiments_stack_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Cli(tmp_path, monkeypatch, up=255)
    real, models = deployer(tmp_path)
    with pytest.raises(KitError, match="The update failed"):
        real.deploy(models, SilentProgress())


def test_a_measuring_program_runs_in_the_projects_folder_with_its_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Cli(tmp_path, monkeypatch, up=0)
    real = PulumiDeployer(tmp_path, "s", {"BEGAN": "1"})
    script = "import json, os, pathlib; pathlib.Path('told').write_text(json.dumps(os.environ['BEGAN'])); exit(3)"
    assert real.run([sys.executable, "-c", script]) == 3
    assert json.loads((tmp_path / "told").read_text()) == "1"
