"""The comparison of a run's deployments."""

from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import CLOSED, OPEN, experiment, fill
from llmd_base.row import Quantiles
from llmd_bench.plots.page import Table
from llmd_tuner.experiments import comparison, runs
from llmd_tuner.experiments.preparation import RunOptions
from llmd_tuner.experiments.runs import RunFolder

DISAGGREGATED, AGGREGATED = "disagg-1p-tp1-1d-tp1", "agg-tp1-2r"


def filled(folder: Path, **changes: Any) -> RunFolder:
    """A run in which the disaggregated deployment has half the time to first token and twice the tokens."""
    made = experiment(folder, RunOptions(rehearsed=True), baseline=AGGREGATED, **changes)
    names = [item.object_name for item in made.deployments]
    run = runs.new_run(made.project, made.name, made.recipe, made.settings, names)
    better = {"ttft_ms": Quantiles(mean=50.0, p95=90.0), "output_tokens_per_s": 200.0, "notes": ("hot",)}
    for name, stages in run.deployments().items():
        for stage in stages:
            offered = {} if stage.arrival == "closed" else {"offered_requests_per_s": stage.level}
            fill(run, name, stage, **(better if name == DISAGGREGATED else {}), **offered)
    return run


def column(table: Table, name: str) -> list[str]:
    return [row[list(table.columns).index(name)].text for row in table.cells]


def test_each_deployment_is_compared_with_the_baseline_at_each_load_level(tmp_path: Path):
    run = filled(tmp_path)
    (_, results), (heading, differences) = comparison.tables(run, run.gather())
    assert column(results, "level") == ["users-c2", "users-c4"] * 2
    assert column(results, "basis") == ["calibrated"] * 4
    assert column(results, "TPSG") == ["100.0", "100.0", "50.00", "50.00"]
    assert heading == f"Against {AGGREGATED}"
    assert column(differences, "deployment") == [DISAGGREGATED] * 2
    assert column(differences, "TTFT mean") == ["-50%", "-50%"]
    assert [row[3].tone for row in differences.cells] == ["good", "good"]
    rows = [row.model_copy(update={"subject": "decode"}) if row.tpsg == 100 else row for row in run.gather()]
    assert len(comparison.tables(run, rows)) == 1  # single servers are not compared with whole deployments


def test_experiment_results_of_several_seeds_are_averaged(tmp_path: Path):
    run = filled(tmp_path, seeds=[1, 2, 3])
    (_, results), _ = comparison.tables(run, run.gather())
    assert column(results, "n") == ["3"] * 4


def test_the_comparisons_page_has_plot_and_remarks_and_in_markdown_the_same_tables(tmp_path: Path):
    run = filled(tmp_path)
    comparison.write(run)
    page = (run.path / comparison.HTML).read_text()
    assert "Throughput per GPU against throughput per user" in page
    assert "hot" in page
    assert "Rehearsed, not measured" in page
    text = (run.path / comparison.MARKDOWN).read_text()
    assert "## Results" in text
    assert f"## Against {AGGREGATED}" in text


@pytest.mark.parametrize(
    ("load", "plot"),
    [
        ({**OPEN, "requestsPerS": [1.0, 2.0]}, "Latency against load"),
        ({**CLOSED, "concurrencies": [2]}, "Distributions"),
    ],
    ids=["open loop", "one level of users"],
)
def test_results_are_plotted_by_offered_load_or_as_distributions(tmp_path: Path, load: dict[str, Any], plot: str):
    run = filled(tmp_path, loads=[load])
    comparison.write(run)
    assert plot in (run.path / comparison.HTML).read_text()


def test_an_experiment_run_without_results_is_reported_as_such(tmp_path: Path):
    made = experiment(tmp_path)
    run = runs.new_run(made.project, made.name, made.recipe, made.settings, [AGGREGATED])
    assert comparison.write(run) == []
    assert "not ended yet" in (run.path / comparison.MARKDOWN).read_text()
