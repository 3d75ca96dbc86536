from bisect import bisect_left
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.row import Basis, Quantiles, Row
from llmd_oke.operations.judgements import Assumption, AssumptionJudgement, judge, limits
from llmd_oke.operations.observations import CountedObservation, percentile, percentiles_ms, variance
from llmd_tuner.assumptions import StackModel, advice, of_forecast, of_lengths, rank_command
from llmd_tuner.search_inputs import parse_targets
from numpy.typing import NDArray
from tuning_for_tests import row

TARGETS = parse_targets("ttft=2000,itl=25,qps=40")


def forecast(**changes: Any) -> Row:
    """40 requests/s of 4096/256, TTFT 300 ms, ITL 10 ms: with two servers 51 sequences in each."""
    fields: dict[str, Any] = {
        "basis": Basis.CALIBRATED,
        "input_tokens": 4096,
        "output_tokens": 256,
        "offered_requests_per_s": 40.0,
        "ttft_ms": Quantiles(mean=300.0),
        "itl_ms": Quantiles(mean=10.0),
    }
    return row("end-to-end", **{**fields, **changes})


def assumptions(*, targets: str = "ttft=2000,itl=25,qps=40", **changes: Any) -> tuple[Assumption, ...]:
    result = of_forecast(forecast(**changes), parse_targets(targets), 2, 0.25, 0.10)
    return (*result, *limits(256, 0.95))


def as_forecast(**changes: Any) -> CountedObservation:
    """Exactly what was assumed, for ten minutes."""
    fields: dict[str, Any] = {
        "basis": Basis.MEASURED,
        "duration_s": 600.0,
        "answered": 24_000,
        "requests_per_s": 40.0,
        "input_tokens": 4096.0,
        "output_tokens": 256.0,
        "prefix_cache_hit_share": 0.0,
        "ttft_ms": 300.0,
        "itl_ms": 10.0,
        "running": 51.0,
        "most_running": 70.0,
        "waiting": 0.5,
        "kv_cache_usage": 0.3,
        "preemptions": 0.0,
        "remote_prefill_share": 1.0,
    }
    return CountedObservation(**{**fields, **changes})


def judged(**changes: Any) -> tuple[AssumptionJudgement, ...]:
    return judge(assumptions(), as_forecast(**changes))


def verdicts(result: tuple[AssumptionJudgement, ...]) -> dict[str, str]:
    """Return what does not hold, by figure and kind."""
    return {
        f"{item.assumption.figure.name} {item.assumption.kind}": item.verdict.value
        for item in result
        if item.verdict != "holds"
    }


def test_decoding_sequences_of_a_server_follow_from_rate_lengths_and_step_time():
    (running,) = (item for item in assumptions() if item.figure.name == "running")
    assert running.value == pytest.approx(40 * 255 * 0.010 / 2)  # 255 gaps between 256 tokens
    assert running.basis == "calibrated"


def test_forecast_assumptions_state_whether_given_calibrated_a_target_or_a_limit():
    bases = {f"{item.figure.name} {item.kind}": item.basis for item in assumptions()}
    assert bases["requests_per_s load"] == bases["input_tokens load"] == "given"
    assert bases["ttft_ms forecast"] == "calibrated"
    assert bases["ttft_ms limit"] == "target"
    assert bases["kv_cache_usage limit"] == "limit"


def test_without_a_requested_rate_the_assumed_rate_is_at_most_the_forecast_highest():
    (rate,) = (item for item in assumptions(targets="itl=25") if item.figure.name == "requests_per_s")
    assert (rate.basis, rate.side) == ("calibrated", "at most")


def test_a_forecast_without_a_request_rate_has_no_assumption_on_rate_and_batch():
    names = {item.figure.name for item in assumptions(offered_requests_per_s=None)}
    assert names.isdisjoint({"requests_per_s", "running"})


def test_the_prefix_cache_hit_share_of_a_forecast_has_an_absolute_tolerance():
    hits = list(of_lengths(forecast().input_tokens, forecast().output_tokens, 0.1))[-1]
    assert (hits.figure.name, hits.value, hits.tolerance) == ("prefix_cache_hit_share", 0.0, 0.1)
    (hits,) = (item for item in assumptions(prefix_cache_hit_share=0.4) if item.figure.name == "prefix_cache_hit_share")
    assert hits.value == 0.4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"requests_per_s": 46.0}, {"requests_per_s load": "above"}),
        ({"requests_per_s": 34.0}, {"requests_per_s load": "below"}),
        ({"input_tokens": 5000.0}, {"input_tokens load": "above"}),
        ({"output_tokens": 200.0}, {"output_tokens load": "below"}),
        ({"prefix_cache_hit_share": 0.2}, {"prefix_cache_hit_share load": "above"}),
        ({"ttft_ms": 400.0}, {"ttft_ms forecast": "above"}),
        ({"itl_ms": 7.0}, {"itl_ms forecast": "below"}),
        ({"running": 80.0}, {"running forecast": "above"}),
        ({"most_running": 256.0}, {"most_running limit": "above"}),
        ({"waiting": 6.0}, {"waiting limit": "above"}),
        ({"kv_cache_usage": 0.9}, {"kv_cache_usage limit": "above"}),
        ({"preemptions": 1.0}, {"preemptions limit": "above"}),
        ({"remote_prefill_share": 0.9}, {"remote_prefill_share limit": "below"}),
        ({"waiting": None}, {"waiting limit": "not shown"}),
        ({"itl_ms": 25.1}, {"itl_ms forecast": "above", "itl_ms limit": "above"}),  # a target has no tolerance
        (
            {"requests_per_s": 60.0, "ttft_ms": 900.0, "waiting": 9.0},  # under another load only limits are judged
            {"requests_per_s load": "above", "ttft_ms forecast": "other load", "waiting limit": "above"},
        ),
    ],
)
def test_a_forecasts_assumption_that_the_observation_contradicts_is_named(
    changes: dict[str, float], expected: dict[str, str]
):
    assert verdicts(judged(**changes)) == expected


def test_without_a_requested_load_a_smaller_observed_one_contradicts_no_forecast():
    asked_for_none = assumptions(targets="itl=25")
    assert verdicts(judge(asked_for_none, as_forecast(requests_per_s=10.0))) == {}
    assert verdicts(judge(asked_for_none, as_forecast(requests_per_s=50.0)))["requests_per_s load"] == "above"
    slow = as_forecast(requests_per_s=10.0, itl_ms=5.0)
    assert verdicts(judge(asked_for_none, slow)) == {"itl_ms forecast": "other load"}


def test_tune_watch_does_not_judge_latencies_that_are_hardware_bounds():
    result = judge(assumptions(basis=Basis.BOUND), as_forecast(ttft_ms=900.0))
    assert verdicts(result)["ttft_ms forecast"] == "a bound"
    assert not any(item.off for item in result)


def test_observed_means_over_few_requests_are_reported_as_too_few_to_judge():
    result = judge(assumptions(), as_forecast(duration_s=15.0, answered=3, requests_per_s=0.2, ttft_ms=9000.0))
    shown = verdicts(result)
    assert shown["requests_per_s load"] == "below"
    assert shown["ttft_ms forecast"] == shown["input_tokens load"] == "too few"


def test_over_a_short_time_random_arrivals_widen_the_request_rates_tolerance():
    assert "requests_per_s load" not in verdicts(judge(assumptions(), as_forecast(duration_s=5.0, requests_per_s=48.0)))


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_random_variation_of_request_lengths_seldom_contradicts_a_forecast(name: str):
    """Lognormal lengths whose standard deviation is their mean, 30 a look, in vLLM's buckets (1, 2, 5, 10...)."""
    mean = getattr(as_forecast(), name)
    lengths = np.random.default_rng(1).lognormal(np.log(mean) - np.log(2) / 2, sqrt(np.log(2)), (500, 30))
    looks = [as_forecast(answered=30, **{name: item.mean()}, standard_errors={name: error(item)}) for item in lengths]
    off = sum(f"{name} load" in verdicts(judge(assumptions(), look)) for look in looks)
    assert off / len(looks) < 0.05


def error(lengths: NDArray[np.float64]) -> float:
    bounds = [first * 10**power for power in range(6) for first in (1, 2, 5)]
    counts = {float(bound): float((lengths <= bound).sum()) for bound in (*bounds, inf)}
    return sqrt(variance(counts) / len(lengths))


@pytest.mark.parametrize(("name", "value"), [("ttft_ms", 2100.0), ("itl_ms", 26.0)])
def test_a_latency_target_counts_as_missed_only_beyond_random_variation(name: str, value: float):
    missed = as_forecast(**{name: value}, standard_errors={name: value / 100})
    chance = as_forecast(**{name: value}, standard_errors={name: value / 10})
    assert f"{name} limit" in verdicts(judge(assumptions(), missed))
    assert f"{name} limit" not in verdicts(judge(assumptions(), chance))


@given(st.floats(0.0, 200.0), st.floats(1.0, 3600.0))
def test_an_observed_request_rate_contradicts_a_forecast_only_beyond_its_tolerance(rate: float, duration_s: float):
    (result,) = (
        item
        for item in judge(assumptions(), as_forecast(requests_per_s=rate, duration_s=duration_s))
        if item.assumption.figure.name == "requests_per_s"
    )
    assert result.allowed >= 4.0
    assert result.off == (abs(rate - 40.0) > result.allowed)


BOUNDS = (0.01, 0.1, 1.0, 10.0, inf)


def counted(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


def test_percentiles_assume_values_spread_evenly_in_a_bucket_if_there_are_any():
    result = percentile({1.0: 0.0, 2.0: 10.0, inf: 10.0}, 0.25)
    assert result is not None
    assert (result.low, result.high, result.value) == (1.0, 2.0, 1.25)
    assert percentile({1.0: 0.0, inf: 0.0}, 0.5) is None
    assert percentiles_ms({}) == {}


def test_the_outermost_histogram_buckets_give_only_a_bound_of_a_percentile():
    result = percentiles_ms({0.01: 60.0, 0.1: 95.0, inf: 100.0})
    assert [result[name].text("ms") for name in ("p50", "p90", "p99")] == ["< 10 ms", "87.14 ms", "> 100 ms"]


def test_the_variance_of_a_histogram_is_computed_from_the_middles_of_its_buckets():
    assert variance({1.0: 2.0, 3.0: 4.0, inf: 4.0}) == 0.75**2
    assert variance({1.0: 0.0, 3.0: 2.0, inf: 4.0}) == 0.5**2
    assert variance({1.0: 0.0, 2.0: 7.0, inf: 7.0}) == variance({1.0: 0.0, inf: 0.0}) == variance({}) == 0.0


@given(st.lists(st.floats(0.0, 100.0), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_histogram_bucket_of_its_rank(values: list[float], share: float):
    result = percentile(counted(values), share)
    ranked = sorted(values)
    below = next(value for place, value in enumerate(ranked, 1) if place >= share * len(ranked))
    assert result is not None
    assert result.high == BOUNDS[bisect_left(BOUNDS, below)]
    assert result.low <= result.value <= result.high


@given(st.lists(st.floats(0.0, 100.0), min_size=1))
def test_percentiles_of_a_histogram_do_not_fall_with_their_rank(values: list[float]):
    result = [item.value for item in percentiles_ms(counted(values)).values()]
    assert result == sorted(result)


HERE = StackModel("prod", None, TARGETS)


@pytest.mark.parametrize(
    ("changes", "suggested"),
    [
        pytest.param({}, [], id="all holds"),
        pytest.param(
            {"requests_per_s": 51.234, "input_tokens": 6000.4},
            ["llmd-oke tune rank --stack prod --workload 6000/256 --slo ttft=2000,itl=25,qps=51.2"],
            id="another load",
        ),
        pytest.param(
            {"kv_cache_usage": 0.95},
            ["llmd-oke tune rank --stack prod --workload 4096/256 --slo ttft=2000,itl=25,qps=40"],
            id="overloaded servers",
        ),
        pytest.param({"itl_ms": 14.0}, ["llmd-oke tune run --stack prod"], id="a wrong forecast"),
        pytest.param({"remote_prefill_share": 0.4}, ["llmd-oke smoke --stack prod"], id="no remote prefill"),
        pytest.param({"answered": 0, "requests_per_s": 0.0}, [], id="no requests"),
    ],
)
def test_tune_watch_suggests_the_command_that_helps_against_what_does_not_hold(
    changes: dict[str, float], suggested: list[str]
):
    given = advice(judged(**changes), as_forecast(**changes), HERE)
    assert [item.command for item in given] == suggested


def test_many_observed_prefix_cache_hits_are_an_option_of_suggested_tune_rank():
    (only,) = advice(judged(prefix_cache_hit_share=0.4), as_forecast(prefix_cache_hit_share=0.4), HERE)
    assert "40% of prompt tokens" in only.why
    assert "--prefix-hits 0.4 " in only.command

    assert "--prefix-hits" not in rank_command(as_forecast(prefix_cache_hit_share=0.1), HERE)


def test_a_suggested_command_names_one_of_several_models_and_quotes_spaces():
    assert "--name llama" in rank_command(as_forecast(), replace(HERE, name="llama"))
    assert "--stack 'a b'" in rank_command(as_forecast(), replace(HERE, stack="a b"))


@pytest.mark.parametrize("unknown", [{"input_tokens": None}, {"output_tokens": None}, {"answered": 5}], ids=str)
def test_a_suggested_tune_rank_omits_lengths_not_observed_or_over_too_few_requests(unknown: dict[str, Any]):
    seen = as_forecast(requests_per_s=0.5, **unknown)
    assert rank_command(seen, HERE) == "llmd-oke tune rank --stack prod --slo ttft=2000,itl=25,qps=0.5"
