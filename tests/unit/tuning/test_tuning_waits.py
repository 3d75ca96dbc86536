"""Queueing formulas against exact series, known values and plain sense."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_tuner.waits import erlang_b, erlang_c, mdc_wait_s, mgc_wait_s, mmc_wait_s, scv

servers = st.integers(1, 64)
utilizations = st.floats(0.01, 0.98)
service_times = st.floats(0.001, 10)


def poisson_pmf(count, mean):
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def crommelin_wait(count, utilization):
    """Mean wait of M/D/c in service times: Crommelin 1932, an exact series; its terms vanish like a geometric row's."""

    def term(k, mean):
        at_least = 1 - math.fsum(poisson_pmf(n, mean) for n in range(k))
        return at_least - (at_least - poisson_pmf(k, mean)) / utilization

    return math.fsum(term(i * count, i * count * utilization) for i in range(1, 10 + 800 // count))


@pytest.mark.parametrize(("count", "load", "expected"), [(1, 1.0, 0.5), (2, 1.0, 0.2), (10, 8.0, 0.12166), (5, 0, 0)])
def test_erlang_b_has_the_values_of_published_tables(count, load, expected):
    assert erlang_b(count, load) == pytest.approx(expected, abs=1e-5)


def test_erlang_b_is_stable_for_a_thousand_servers():
    """Powers over factorials would overflow here; 900 busy servers out of 1000 leave a small chance to be blocked."""
    assert 0 < erlang_b(1000, 900) < 1e-3
    assert erlang_b(100_000, 1e6) == pytest.approx(0.9, abs=1e-3)


@given(servers, utilizations)
def test_erlang_c_lies_between_erlang_b_and_one(count, utilization):
    load = count * utilization
    assert erlang_b(count, load) <= erlang_c(count, load) <= 1


@given(utilizations)
def test_with_one_server_the_probability_to_wait_is_the_utilization(utilization):
    assert erlang_c(1, utilization) == pytest.approx(utilization)


@given(utilizations, service_times)
def test_constant_service_on_one_server_waits_as_pollaczek_and_khinchine_say(utilization, service_s):
    """M/D/1: W = rho s / (2 (1 - rho))."""
    exact_s = utilization * service_s / (2 * (1 - utilization))
    assert mdc_wait_s(utilization / service_s, service_s, 1) == pytest.approx(exact_s)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize("utilization", [0.6, 0.7, 0.8, 0.9])
def test_waits_for_constant_service_are_within_2_percent_of_the_exact_series(count, utilization):
    assert mdc_wait_s(count * utilization, 1, count) == pytest.approx(crommelin_wait(count, utilization), rel=0.02)


@given(servers, utilizations, service_times)
def test_constant_service_times_cause_no_longer_waits_than_exponential_ones(count, utilization, service_s):
    rate = count * utilization / service_s
    assert 0 <= mdc_wait_s(rate, service_s, count) <= mmc_wait_s(rate, service_s, count)


@given(servers, st.floats(0.01, 0.9), service_times)
def test_a_queue_under_more_load_never_waits_less(count, utilization, service_s):
    rate = count * utilization / service_s
    assert mdc_wait_s(rate, service_s, count) <= mdc_wait_s(rate * 1.05, service_s, count)


@given(st.integers(1, 32), utilizations, service_times)
def test_a_queue_with_twice_the_servers_and_twice_the_load_waits_less(count, utilization, service_s):
    rate = count * utilization / service_s
    assert mdc_wait_s(2 * rate, service_s, 2 * count) <= mdc_wait_s(rate, service_s, count)


@given(servers, utilizations, service_times, st.floats(0.1, 10))
def test_queueing_times_scale_with_the_service_time(count, utilization, service_s, scale):
    rate = count * utilization / service_s
    assert mdc_wait_s(rate / scale, service_s * scale, count) == pytest.approx(
        scale * mdc_wait_s(rate, service_s, count)
    )


@pytest.mark.parametrize("wait", [mdc_wait_s, mmc_wait_s, mgc_wait_s])
@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_an_overloaded_queue_has_an_infinite_wait(wait, rate):
    assert math.isinf(wait(rate, 1.0))


def test_varying_service_on_one_server_waits_as_pollaczek_and_khinchine_say():
    """W = rho s (1 + scv) / (2 (1 - rho))."""
    assert mgc_wait_s(0.8, 1, 1, 0.5) == pytest.approx(0.8 * 1.5 / (2 * 0.2))


def test_service_times_of_one_and_three_have_a_squared_variation_of_one_quarter():
    """Mean 2, variance 1."""
    assert scv([(1, 1.0), (1, 3.0)]) == pytest.approx(0.25)
    assert scv([(3, 2.0)]) == 0
