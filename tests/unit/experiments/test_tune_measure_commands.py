"""The commands that measure for the tuner and verify its forecasts, as far as nothing is deployed."""

import json
from pathlib import Path

import pytest
from experiments_for_tests import project, small_model
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.cli.main import app
from llmd_tuner.experiments import recipes, records
from llmd_tuner.measurements import published_points
from typer.testing import CliRunner, Result

SLO = ("--slo", "itl=25,qps=4", "--gpus", "4", "--allow-extrapolation")


def tune(command: str, folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["tune", command, "--stack", "s", "--project", str(folder), *options])


def keep_published(folder: Path) -> Path:
    """Keep what was published as what `tune run` had found."""
    published = published_points("gpt-oss-120b", "MI300X")
    assert published is not None
    file = records.rows_file(folder, "s")
    records.add_rows(published.kept_rows(), file)
    return file


def test_tune_plan_tells_points_time_price_and_expected_error_as_json_or_tables(tmp_path: Path):
    plan = json.loads(tune("plan", project(tmp_path), "--gpus", "8", "--json").stdout)
    assert plan["points"] == 10
    assert plan["published_errors"] == {"decode": 0.095, "prefill": 0.058}
    assert plan["gpu_hours"] == pytest.approx(8 * plan["seconds"] / 3600)
    assert plan["price_usd"] > 0
    shown = tune("plan", tmp_path, "--gpus", "8").stdout
    for words in ("agg-tp8-1r-decode", "GPU-hours", "at list price", "assumed", "9.5%"):
        assert words in shown


def test_tune_plan_writes_its_measurements_as_a_recipe(tmp_path: Path):
    file = tmp_path / "recipe.yaml"
    assert tune("plan", project(tmp_path), "--grid", "full", "--gpus", "8", "-o", str(file)).exit_code == 0
    assert len(recipes.load(str(file)).deployments) == 8


def test_a_rehearsed_tune_plan_deploys_all_sizes_in_one_round_and_costs_nothing(tmp_path: Path):
    plan = json.loads(tune("plan", project(tmp_path), "--rehearse", "--size", "1", "--size", "2", "--json").stdout)
    assert len(plan["rounds"]) == 1
    assert plan["price_usd"] == 0


@pytest.mark.parametrize(
    ("models", "words", "remedy"),
    [
        ("agg-tp1-1r", ("--model", "llama-3.3-70b-instruct-fp8-dynamic", "--rehearse"), "--workload"),
        ("agg-tp1-8r", (), "--gpus"),
    ],
    ids=["another model", "no free GPUs"],
)
def test_tune_plan_of_what_the_stack_does_not_tell_or_has_no_gpus_for_is_refused(
    tmp_path: Path, models: str, words: tuple[str, ...], remedy: str
):
    ended = tune("plan", project(tmp_path, models=[small_model(models)]), *words)
    assert isinstance(ended.exception, KitError)
    assert remedy in (ended.exception.remedy or "")


def test_tune_run_without_confirmation_starts_nothing_that_costs_money(tmp_path: Path):
    ended = tune("run", project(tmp_path))
    assert isinstance(ended.exception, KitError)
    assert not isinstance(ended.exception, InvalidStack)
    assert not (tmp_path / "reports").exists()


def test_tune_rank_uses_stored_rows_unless_they_are_too_few_or_others_are_given(tmp_path: Path):
    file = keep_published(project(tmp_path))
    assert f"figures  fitted to 27 rows (measured) of {file}" in tune("rank", tmp_path, *SLO).stderr.replace("\n", "")
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text())
    assert "figures  fitted" not in tune("rank", tmp_path, *SLO, "--measurements", str(other)).stderr
    file.write_text(file.read_text().split("\n", 1)[0] + "\n")
    assert "figures  the kit's own" in tune("rank", tmp_path, *SLO).stderr


def test_tune_fit_uses_the_stored_measurements(tmp_path: Path):
    keep_published(project(tmp_path))
    assert "points: 23" in tune("fit", tmp_path).stdout


def test_tune_apply_stores_its_forecast_and_verify_requires_the_deployment(tmp_path: Path):
    applied = tune("apply", project(tmp_path), *SLO)
    assert applied.exit_code == 0, applied.exception
    kept = json.loads((tmp_path / "reports" / "s" / "tuning" / "applied.json").read_text())
    assert kept["gpt-oss-120b"]["forecast"]["offered_requests_per_s"] == 4
    ended = tune("verify", tmp_path, "--rehearse")
    assert isinstance(ended.exception, KitError)
    assert "rehearse --stack s" in (ended.exception.remedy or "")


def test_a_dry_run_of_tune_apply_stores_no_forecast(tmp_path: Path):
    assert tune("apply", project(tmp_path), *SLO, "--dry-run").exit_code == 0
    assert not (tmp_path / "reports").exists()
