"""The command line of experiments, as far as nothing is deployed."""

import json
from pathlib import Path

import pytest
import yaml
from experiments_for_tests import project, recipe_object
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from typer.testing import CliRunner, Result


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    project(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe_object()))
    return path


def experiment(command: str, recipe: Path | str, folder: Path, *options: str) -> Result:
    words = ["experiment", command, str(recipe), "--stack", "s", "--project", str(folder), *options]
    return CliRunner().invoke(app, words)


def test_experiment_plan_prints_time_and_price_as_json_or_with_their_basis(recipe_file: Path, tmp_path: Path):
    plan = json.loads(experiment("plan", recipe_file, tmp_path, "--gpus", "4", "--json").stdout)
    assert [item["names"] for item in plan["rounds"]] == [["disagg-1p-tp1-1d-tp1", "agg-tp1-2r"]]
    assert plan["price_usd"] > 0
    assert plan["gpu_hours"] == pytest.approx(4 * plan["seconds"] / 3600)
    shown = experiment("plan", recipe_file, tmp_path).stdout
    assert all(words in shown for words in ("assumed", "calibrated", "at list price"))


def test_experiment_run_without_a_terminal_or_yes_starts_nothing_that_costs_money(recipe_file: Path, tmp_path: Path):
    ended = experiment("run", recipe_file, tmp_path)
    assert isinstance(ended.exception, KitError)
    assert "at list price" in ended.stdout
    assert not (tmp_path / "reports").exists()


def test_an_invalid_experiment_recipe_is_refused_before_anything_is_shown(tmp_path: Path):
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(recipe_object(loads=[], extra=1)))
    ended = experiment("run", tmp_path / "bad.yaml", project(tmp_path), "--rehearse")
    assert isinstance(ended.exception, InvalidStack)
    assert {problem.path for problem in ended.exception.problems} == {"loads", "extra"}


def test_the_status_of_an_experiment_that_never_ran_says_how_to_run_it(tmp_path: Path):
    ended = experiment("status", "guide", project(tmp_path))
    assert isinstance(ended.exception, KitError)
    assert "experiment run guide" in (ended.exception.remedy or "")
