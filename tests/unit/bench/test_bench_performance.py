import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.load.records import Failure, RequestRecord, percentile
from llmd_bench.performance import describe, single, summarize


def request(index=0, started_s=0.0, first_s=0.5, gap_s=0.1, tokens=6, events=None, **changes) -> RequestRecord:
    times_s = tuple(first_s + gap_s * number for number in range(events or tokens))
    record = RequestRecord(index, started_s, times_s[-1], times_s, 100, tokens, counted_by_server=True)
    return replace(record, **changes)


def failed(index=9, **changes) -> RequestRecord:
    record = RequestRecord(index, started_s=0, latency_s=0.1, failure=Failure.STATUS, error="HTTP 503: x")
    return replace(record, **changes)


samples = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=60)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (25, 1.75), (50, 2.5), (75, 3.25), (95, 3.85), (100, 4)])
def test_percentiles_are_interpolated_between_neighbouring_samples(percent, expected):
    assert percentile([1, 2, 3, 4], percent) == pytest.approx(expected)


def test_mean_deviation_extremes_and_percentiles_of_eight_known_samples_are_exact():
    statistics = describe([4, 2, 4, 4, 5, 5, 7, 9], "ms")
    assert (statistics.mean, statistics.stddev, statistics.min, statistics.max) == (5, 2, 2, 9)
    assert (statistics.p50, statistics.p90, statistics.units) == (4.5, pytest.approx(7.6), "ms")


def test_every_percentile_of_a_single_sample_is_that_sample_and_none_of_no_sample():
    statistics = describe([0.25], "s")
    assert {statistics.min, statistics.p0p1, statistics.p50, statistics.p99p9, statistics.max} == {0.25}
    assert statistics.stddev == 0
    assert describe([], "s") is None


def test_a_quantity_measured_once_has_only_a_mean():
    assert single(3.0, "tokens/s").model_dump(exclude_none=True) == {"units": "tokens/s", "mean": 3.0}


@given(samples, st.floats(0, 100), st.floats(0, 100))
def test_mean_and_percentiles_stay_within_the_samples_and_percentiles_rise(values, one, other):
    ordered, statistics = sorted(values), describe(values, "s")
    low, high = percentile(ordered, min(one, other)), percentile(ordered, max(one, other))
    assert ordered[0] <= low <= ordered[-1]
    assert low <= high or math.isclose(low, high, rel_tol=1e-12)
    assert statistics.min <= statistics.mean <= statistics.max


def test_ttft_tpot_and_token_gaps_are_computed_as_the_report_format_defines():
    record = request(first_s=0.5, gap_s=0.1, tokens=6)
    assert record.ttft_s == 0.5
    assert record.tpot_s == pytest.approx(0.1)
    assert record.normalized_tpot_s == pytest.approx(1.0 / 6)
    assert record.gaps_s == pytest.approx([0.1] * 5)


def test_tokens_that_share_a_stream_event_lower_tpot_and_not_the_measured_gaps():
    record, single_token = request(tokens=12, events=6), request(tokens=1)
    assert record.tpot_s == pytest.approx(0.5 / 11)
    assert record.gaps_s == pytest.approx([0.1] * 5)
    assert (single_token.tpot_s, single_token.gaps_s) == (None, [])


def test_throughput_per_gpu_and_per_user_divide_by_gpus_and_concurrency():
    records = [request(index, started_s=index % 2 * 1.0) for index in range(4)]
    performance = summarize(records, planned=4, gpus=3, concurrency=2)
    assert performance.duration_s == pytest.approx(2)
    assert performance.output_tokens_per_s == pytest.approx(12)
    assert performance.total_tokens_per_s == pytest.approx(212)
    assert (performance.tpsg, performance.tpsu) == (pytest.approx(4), pytest.approx(6))
    by_mean_tpot = summarize([request(gap_s=0.01), request(1, gap_s=0.04)], planned=2, gpus=1).tpsu_decode
    assert (performance.tpsu_decode, by_mean_tpot) == (pytest.approx(10), pytest.approx(1 / 0.025))


def test_the_users_of_an_open_loop_are_the_mean_number_of_requests_in_flight():
    records = [request(index, started_s=index * 0.5) for index in range(3)]
    assert summarize(records, planned=3, gpus=1).users == pytest.approx(3 * 1.0 / 2.0)
    assert summarize([request()], planned=1, gpus=1, concurrency=8).users == 1, "at most that of requests"


def test_failures_are_counted_by_reason_and_excluded_from_latencies():
    cut = request(2, failure=Failure.CUT, error="cut")
    performance = summarize([request(), failed(), failed(8), cut], planned=5, gpus=1, concurrency=1)
    assert (performance.requests, performance.failures, performance.incomplete) == (4, 3, 1)
    assert performance.failure_reasons == ("2 x status: HTTP 503: x", "1 x cut: cut")
    assert performance.output_tokens == 6


def test_a_run_without_answers_has_no_latencies():
    performance = summarize([], planned=3, gpus=2, concurrency=1)
    assert performance.ttft is performance.tpot is performance.e2e is None
    assert (performance.output_tokens_per_s, performance.tpsu_decode) == (0, None)


def test_simulated_time_is_wall_time_divided_by_the_time_scale():
    record = request(started_s=2.0).in_model_time(0.5)
    assert (record.started_s, record.ttft_s, record.latency_s) == (4.0, 1.0, pytest.approx(2.0))
    performance = summarize([record], planned=1, gpus=1, concurrency=1)
    assert performance.output_tokens_per_s == pytest.approx(3)
