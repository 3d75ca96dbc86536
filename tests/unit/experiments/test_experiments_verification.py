from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from experiments_for_tests import project
from llmd_base.errors import KitError
from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.deployment import MetricsEndpoint, Parallelism, ReportedServers, ReportedTopology
from llmd_bench.smoke import SmokePlan
from llmd_oke import config
from llmd_tuner.cli import tune_verify
from llmd_tuner.cli.tune_verify import Verified
from llmd_tuner.experiments import verification
from llmd_tuner.experiments.recipes import stages
from llmd_tuner.experiments.records import applied_file, applied_forecast, keep_applied
from llmd_tuner.experiments.verification import AppliedModel, beyond, compare
from rows_for_tests import known_row


def forecast(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "origin": Origin(tool="llmd-oke tune"),
        "topology": "agg-tp1-1r",
        "gpus_counted": 1,
        "arrival": "poisson",
        "offered_requests_per_s": 2.5,
        "output_tokens_per_s": 20.0,
        "ttft_ms": Quantiles(mean=120.0),
        "e2e_ms": Quantiles(mean=200.0),
        "max_num_seqs": 256,
    }
    return known_row(**{**values, **changes})


def subject(folder: Path, **changes: Any) -> AppliedModel:
    (model,) = config.load(project(folder), "s").models
    file = applied_file(folder, "s")
    keep_applied(file, model.object_name, forecast(**changes), "qps=2.5")
    return verification.subject(folder, "s", model, applied_forecast(file, "s", model.object_name))


def test_a_missing_forecast_is_reported_with_a_remedy_and_a_damaged_file_of_them_too(tmp_path: Path):
    with pytest.raises(KitError, match="tune apply --stack s"):
        applied_forecast(applied_file(tmp_path, "s"), "s", "gpt-oss-120b")
    file = tmp_path / "applied.json"
    file.write_text('{"gpt-oss-120b": {}}')
    with pytest.raises(KitError, match="not as it was written"):
        applied_forecast(file, "s", "gpt-oss-120b")


@pytest.mark.parametrize("changes", [{"topology": "agg-tp1-2r"}, {"copies": 2}, {"max_num_seqs": 64}])
def test_tune_verify_refuses_a_stack_file_that_was_changed_after_tune_apply(tmp_path: Path, changes: dict[str, Any]):
    with pytest.raises(KitError, match="Apply again"):
        subject(tmp_path, **changes)


def test_tune_verify_refuses_a_forecast_that_assumes_prefix_cache_hits(tmp_path: Path):
    with pytest.raises(KitError, match=r"for 40% of prompt tokens.*\n.*tune watch --stack s"):
        subject(tmp_path, prefix_cache_hit_share=0.4)


def test_an_applied_forecast_is_read_back_and_tune_verify_sends_its_load(tmp_path: Path):
    result = subject(tmp_path).applied
    assert (result.forecast, result.targets) == (forecast(), "qps=2.5")
    recipe = subject(tmp_path).recipe
    (stage,) = stages(recipe, recipe.deployments[0])
    assert (stage.arrival, stage.level, stage.requests) == ("poisson", 2.5, 300)
    assert (stage.input_tokens, stage.output_tokens) == (64, 8)


def test_forecast_errors_are_relative_to_the_measurement():
    seen = forecast(ttft_ms=Quantiles(mean=100.0), e2e_ms=Quantiles(mean=250.0))
    result = {item.metric.name: item.error for item in compare(forecast(), seen)}
    assert result == pytest.approx({"ttft_ms.mean": 0.2, "e2e_ms.mean": -0.2, "output_tokens_per_s": 0.0, "tpsg": 0.0})


def test_tune_verify_judges_forecasts_by_the_tolerance_but_never_bounds():
    compared = list(compare(forecast(), forecast(ttft_ms=Quantiles(mean=60.0))))
    assert [item.metric.name for item in beyond(compared, forecast(), 0.25)] == ["ttft_ms.mean"]
    assert beyond(compared, forecast(basis=Basis.BOUND), 0.25) == []


@pytest.mark.parametrize(("there", "refused"), [(1, True), (2, False), (3, True)])
def test_tune_verify_refuses_a_cluster_with_other_servers_than_the_stack_file(there: int, refused: bool):
    topology = ReportedTopology("agg-tp1-2r", (ReportedServers("aggregated", 2, Parallelism(1)),))
    endpoints = tuple(MetricsEndpoint("aggregated", f"pod-{i}", f"http://pod-{i}") for i in range(there))
    plan = SmokePlan("http://service", "m", topology, 64, 8, metrics=endpoints)
    with pytest.raises(KitError, match="up --stack s") if refused else nullcontext():
        verification.require_deployed(plan, "s")


def verified(folder: Path, expected: Row, seen: Row) -> Verified:
    compared = tuple(compare(expected, seen))
    return Verified(subject(folder, basis=expected.basis), seen, compared, 0.25, folder)


def test_only_forecast_errors_of_simulated_servers_are_marked_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    seen = forecast(ttft_ms=Quantiles(mean=60.0))
    tune_verify.show_verification(verified(tmp_path, forecast(), seen))
    shown = capsys.readouterr().out
    assert "+100.0%" in shown
    assert "3 of 4 figures within 25%" in shown
    assert "nothing of real servers" in shown
    result = tune_verify.verification_json(verified(tmp_path, forecast(), forecast(basis=Basis.MEASURED)))
    assert result["seen"]["about"] is None
    assert result["seen"]["basis"] == "measured"
    assert result["beyond_tolerance"] == []


def test_tune_verify_says_that_a_performance_bound_is_no_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    seen = forecast(ttft_ms=Quantiles(mean=60.0), basis=Basis.MEASURED)
    tune_verify.show_verification(verified(tmp_path, forecast(basis=Basis.BOUND), seen))
    shown = capsys.readouterr().out
    assert "no forecast" in shown
    assert "not held against the tolerance" in shown


def test_tune_verify_reports_settings_that_differ_from_the_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made_for = {"block_size": 128, "router_profile": "token-load"}
    expected, seen = forecast(**made_for), forecast(block_size=16, router_profile="token-load")
    result = Verified(subject(tmp_path, **made_for), seen, tuple(compare(expected, seen)), 0.25, tmp_path)
    (told,) = tune_verify.verification_json(result)["conditions"]
    assert told.startswith("block size 16, the forecast of ")
    assert told.endswith("was made for 128")
    tune_verify.show_verification(result)
    assert "not as forecast: block size 16" in capsys.readouterr().out
