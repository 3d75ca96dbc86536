import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.bench.records.distributions import describe, single
from llmd_oke.bench.records.percentiles import percentile

samples = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=60)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (25, 1.75), (50, 2.5), (75, 3.25), (95, 3.85), (100, 4)])
def test_percentiles_are_interpolated_between_neighbours(percent, expected):
    assert percentile([1, 2, 3, 4], percent) == pytest.approx(expected)


def test_statistics_of_known_samples():
    statistics = describe([4, 2, 4, 4, 5, 5, 7, 9], "ms")
    assert (statistics.mean, statistics.stddev, statistics.min, statistics.max) == (5, 2, 2, 9)
    assert (statistics.p50, statistics.p90, statistics.units) == (4.5, pytest.approx(7.6), "ms")


def test_one_sample_is_every_percentile():
    statistics = describe([0.25], "s")
    assert {statistics.min, statistics.p0p1, statistics.p50, statistics.p99p9, statistics.max} == {0.25}
    assert statistics.stddev == 0


def test_no_samples_have_no_statistics():
    assert describe([], "s") is None


def test_a_single_quantity_has_only_a_mean():
    assert single(3.0, "tokens/s").model_dump(exclude_none=True) == {"units": "tokens/s", "mean": 3.0}


@given(samples, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_and_stay_within_the_samples(values, one, other):
    ordered = sorted(values)
    low, high = percentile(ordered, min(one, other)), percentile(ordered, max(one, other))
    assert ordered[0] <= low <= ordered[-1]
    assert low <= high or math.isclose(low, high, rel_tol=1e-12)


@given(samples)
def test_the_mean_lies_within_the_samples(values):
    statistics = describe(values, "s")
    assert statistics.min <= statistics.mean <= statistics.max
