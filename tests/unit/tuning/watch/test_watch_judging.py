"""Verdicts on what was assumed."""

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.results.row import Basis
from llmd_oke.tuning.watch.histograms import variance
from llmd_oke.tuning.watch.judging import judge
from numpy.typing import NDArray
from watch_for_tests import as_forecast, assumptions, judged, verdicts


def test_what_is_as_it_was_assumed_holds():
    assert verdicts(judged()) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
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
    ],
)
def test_what_is_off_by_more_than_allowed_is_named(changes: dict[str, float], expected: dict[str, str]):
    assert verdicts(judged(**changes)) == expected


def test_a_target_that_is_missed_is_no_matter_of_tolerance():
    assert verdicts(judged(itl_ms=25.1)) == {"itl_ms forecast": "above", "itl_ms limit": "above"}


def test_under_another_load_a_forecast_is_not_judged_and_limits_are():
    found = judged(requests_per_s=60.0, ttft_ms=900.0, waiting=9.0)
    assert verdicts(found) == {
        "requests_per_s load": "above",
        "ttft_ms forecast": "other load",
        "waiting limit": "above",
    }


def test_less_load_is_no_surprise_where_none_was_asked_for():
    asked_for_none = assumptions(targets="itl=25")
    assert verdicts(judge(asked_for_none, as_forecast(requests_per_s=10.0))) == {}
    assert verdicts(judge(asked_for_none, as_forecast(requests_per_s=50.0)))["requests_per_s load"] == "above"


def test_but_its_forecast_is_then_of_another_load():
    found = judge(assumptions(targets="itl=25"), as_forecast(requests_per_s=10.0, itl_ms=5.0))
    assert verdicts(found) == {"itl_ms forecast": "other load"}


def test_a_bound_is_never_judged_as_a_forecast():
    found = judge(assumptions(basis=Basis.BOUND), as_forecast(ttft_ms=900.0))
    assert verdicts(found)["ttft_ms forecast"] == "a bound"
    assert not any(each.off for each in found)


def test_means_of_few_requests_are_not_judged_but_their_number_is():
    found = judge(assumptions(), as_forecast(duration_s=15.0, answered=3, requests_per_s=0.2, ttft_ms=9000.0))
    shown = verdicts(found)
    assert shown["requests_per_s load"] == "below"
    assert shown["ttft_ms forecast"] == shown["input_tokens load"] == "too few"


def test_a_short_look_allows_a_rate_its_chance():
    assert "requests_per_s load" not in verdicts(judge(assumptions(), as_forecast(duration_s=5.0, requests_per_s=48.0)))


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_lengths_that_scatter_are_seldom_off_by_chance(name: str):
    """Lognormal lengths whose standard deviation is their mean, 30 a look, in vLLM's buckets (1, 2, 5, 10...)."""
    mean = getattr(as_forecast(), name)
    lengths = np.random.default_rng(1).lognormal(np.log(mean) - np.log(2) / 2, sqrt(np.log(2)), (500, 30))
    looks = [as_forecast(answered=30, **{name: each.mean()}, standard_errors={name: error(each)}) for each in lengths]
    off = sum(f"{name} load" in verdicts(judge(assumptions(), look)) for look in looks)
    assert off / len(looks) < 0.05


def error(lengths: NDArray[np.float64]) -> float:
    bounds = [first * 10**power for power in range(6) for first in (1, 2, 5)]
    counts = {float(bound): float((lengths <= bound).sum()) for bound in (*bounds, inf)}
    return sqrt(variance(counts) / len(lengths))


@pytest.mark.parametrize(("name", "value"), [("ttft_ms", 2100.0), ("itl_ms", 26.0)])
def test_a_target_is_missed_only_beyond_chance(name: str, value: float):
    missed = as_forecast(**{name: value}, standard_errors={name: value / 100})
    chance = as_forecast(**{name: value}, standard_errors={name: value / 10})
    assert f"{name} limit" in verdicts(judge(assumptions(), missed))
    assert f"{name} limit" not in verdicts(judge(assumptions(), chance))


@given(st.floats(0.0, 200.0), st.floats(1.0, 3600.0))
def test_a_rate_is_off_exactly_beyond_what_is_allowed(rate: float, duration_s: float):
    (found,) = (
        each
        for each in judge(assumptions(), as_forecast(requests_per_s=rate, duration_s=duration_s))
        if each.assumption.figure.name == "requests_per_s"
    )
    assert found.allowed >= 4.0
    assert found.off == (abs(rate - 40.0) > found.allowed)
