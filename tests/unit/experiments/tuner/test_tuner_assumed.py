"""What a deployed model rests on: an applied forecast, or its entry of the stack file."""

from pathlib import Path
from typing import Any

from experiments_for_tests import project
from llmd_oke import planning
from llmd_oke.experiments.tuner.applied import Applied
from llmd_oke.experiments.tuner.assumed import Assumed, assumed
from test_tuner_verification import forecast


def rests_on(folder: Path, applied: Applied | None, **changes: Any) -> Assumed:
    entry = {"model": "gpt-oss-120b", "topology": "agg-tp1-1r", "workload": {"inputTokens": 64, "outputTokens": 8}}
    plan = planning.plan_stack_file(project(folder, models=[{**entry, **changes}]), "s")
    return assumed(plan, plan.models[0], applied, 0.25, 0.1)


def applied(**changes: Any) -> Applied:
    return Applied(applied="2026-03-01T00:00:00+00:00", targets="itl=30,qps=2.5", forecast=forecast(**changes))


def names(found: Assumed, kind: str) -> set[str]:
    return {each.figure.name for each in found.assumptions if each.kind == kind}


def test_an_applied_forecast_gives_load_latencies_and_targets(tmp_path: Path):
    found = rests_on(tmp_path, applied(), slo={"itlMs": 99.0})
    assert names(found, "load") == {"requests_per_s", "input_tokens", "output_tokens", "prefix_cache_hit_share"}
    assert names(found, "forecast") == {"ttft_ms"}
    assert str(found.targets) == "itl=30,qps=2.5"
    assert "forecast applied 2026-03-01" in found.source


def test_without_one_the_stack_file_has_lengths_and_targets(tmp_path: Path):
    found = rests_on(tmp_path, None, slo={"ttftMs": 500.0, "itlMs": 20.0})
    assert names(found, "load") == {"input_tokens", "output_tokens", "prefix_cache_hit_share"}
    assert names(found, "forecast") == set()
    assert str(found.targets) == "ttft=500,itl=20"
    assert "no forecast was applied" in found.source


def test_a_forecast_of_another_deployment_is_set_aside_and_why_is_said(tmp_path: Path):
    found = rests_on(tmp_path, applied(topology="agg-tp2-1r"))
    assert names(found, "forecast") == set()
    assert "the forecast of 2026-03-01T00:00:00+00:00 is of 1 x agg-tp2-1r" in found.source


def test_remote_prefill_is_assumed_of_disaggregated_models_only(tmp_path: Path):
    assert "remote_prefill_share" not in names(rests_on(tmp_path, None), "limit")
    assert "remote_prefill_share" in names(rests_on(tmp_path, None, topology="1p-tp1-1d-tp1"), "limit")


def test_conditions_that_changed_since_the_forecast_are_told(tmp_path: Path):
    made_for = {"block_size": 16, "router_profile": "token-load", "quick_reduce": "NONE", "image": "i"}
    found = rests_on(tmp_path, applied(**made_for), engine={"blockSize": 32}, router={"profile": "prefix"})
    told = {text.partition(",")[0] for text in found.conditions}
    assert {"block size 32", "router profile prefix"} < told
    assert not any("quick reduce" in text for text in found.conditions)
    assert found.conditions[-1].endswith("the forecast of 2026-03-01T00:00:00+00:00 was made for token-load")


def test_a_forecast_of_before_forecasts_had_conditions_says_that(tmp_path: Path):
    (told,) = rests_on(tmp_path, applied()).conditions
    assert told.startswith("conditions unknown: what the forecast of 2026-03-01")
