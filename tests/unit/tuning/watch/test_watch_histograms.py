"""Percentiles out of histograms' buckets."""

from bisect import bisect_left
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.tuning.watch.histograms import percentile, percentiles_ms, variance

BOUNDS = (0.01, 0.1, 1.0, 10.0, inf)


def counted(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


def test_observations_are_taken_as_evenly_spread_within_a_bucket():
    found = percentile({1.0: 0.0, 2.0: 10.0, inf: 10.0}, 0.25)
    assert found is not None
    assert (found.low, found.high, found.value) == (1.0, 2.0, 1.25)


def test_nothing_has_no_percentiles():
    assert percentile({1.0: 0.0, inf: 0.0}, 0.5) is None
    assert percentiles_ms({}) == {}


def test_the_outermost_buckets_tell_a_side_and_no_value():
    found = percentiles_ms({0.01: 60.0, 0.1: 95.0, inf: 100.0})
    assert [found[name].text("ms") for name in ("p50", "p90", "p99")] == ["< 10 ms", "87.14 ms", "> 100 ms"]


def test_scatter_is_that_of_the_middles_of_buckets():
    assert variance({1.0: 2.0, 3.0: 4.0, inf: 4.0}) == 0.75**2
    assert variance({1.0: 0.0, 3.0: 2.0, inf: 4.0}) == 0.5**2


def test_what_lies_in_one_bucket_or_nowhere_does_not_scatter():
    assert variance({1.0: 0.0, 2.0: 7.0, inf: 7.0}) == variance({1.0: 0.0, inf: 0.0}) == variance({}) == 0.0


@given(st.lists(st.floats(0.0, 100.0), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_of_the_observation_of_that_rank(values: list[float], share: float):
    found = percentile(counted(values), share)
    ranked = sorted(values)
    below = next(value for place, value in enumerate(ranked, 1) if place >= share * len(ranked))
    assert found is not None
    assert found.high == BOUNDS[bisect_left(BOUNDS, below)]
    assert found.low <= found.value <= found.high


@given(st.lists(st.floats(0.0, 100.0), min_size=1))
def test_higher_percentiles_are_not_smaller(values: list[float]):
    found = [each.value for each in percentiles_ms(counted(values)).values()]
    assert found == sorted(found)
