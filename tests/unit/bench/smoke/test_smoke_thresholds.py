from dataclasses import replace

import pytest
from bench_records import failed, request
from llmd_oke.bench.records.performance import summarize
from llmd_oke.bench.smoke.thresholds import Thresholds, judge
from test_smoke_evidence import decode, prefill, prove, router

GOOD = summarize([request(index) for index in range(4)], planned=4, gpus=1, concurrency=4)
NO_LIMITS = Thresholds(max_failures=None)


def check(thresholds: Thresholds, performance=GOOD, proof=None):
    (only,) = judge(thresholds, performance, proof).checks
    return only


def test_without_limits_nothing_is_judged():
    assert judge(NO_LIMITS, GOOD, None).checks == ()


@pytest.mark.parametrize(
    ("limit", "generous", "strict", "measured"),
    [
        ("max_ttft_p95_ms", 501, 499, 500),
        ("max_itl_p95_ms", 101, 99, 100),
        ("max_e2e_p95_ms", 1001, 999, 1000),
        ("min_output_tokens_per_s", 23, 25, 24),
    ],
)
def test_a_limit_passes_and_fails_by_what_was_measured(limit, generous, strict, measured):
    assert check(replace(NO_LIMITS, **{limit: generous})).passed
    failing = check(replace(NO_LIMITS, **{limit: strict}))
    assert not failing.passed
    assert failing.value == pytest.approx(measured)
    assert failing.evidence


def test_failures_are_judged_with_their_reasons():
    performance = summarize([request(), failed(), failed(8)], planned=3, gpus=1, concurrency=1)
    result = check(Thresholds(max_failures=1), performance)
    assert (result.value, result.passed) == (2, False)
    assert result.evidence == "2 x status: HTTP 503: x"
    assert check(Thresholds(max_failures=2), performance).passed


@pytest.mark.parametrize("records", [[], [failed(0), failed(1)]], ids=["sent", "answered"])
def test_a_run_in_which_nothing_was_measured_passes_no_thresholds(records):
    nothing = summarize(records, planned=2, gpus=1, concurrency=1)
    assert [each.name for each in judge(Thresholds(max_failures=2), nothing, None).failed] == ["answers"]


def test_a_latency_that_was_not_measured_fails():
    short = summarize([request(tokens=1)], planned=1, gpus=1, concurrency=1)
    result = check(replace(NO_LIMITS, max_itl_p95_ms=10), short)
    assert (result.value, result.passed) == (None, False)


def test_remote_prefill_is_judged_by_the_least_share():
    thresholds = replace(NO_LIMITS, min_remote_prefill_share=0.95)
    assert check(thresholds, proof=prove(router(10), prefill(10_000), decode(10_000))).passed
    fallback = check(thresholds, proof=prove(router(10), prefill(6_000), decode(6_000)))
    assert not fallback.passed
    assert "silent fallback" in fallback.evidence


def test_remote_prefill_that_no_server_confirms_fails():
    result = check(replace(NO_LIMITS, min_remote_prefill_share=0.5), proof=prove(router(10), None, None))
    assert (result.value, result.passed) == (None, False)
    assert "nothing is proven" in result.evidence


def test_remote_prefill_of_an_aggregated_model_is_not_judged():
    assert judge(replace(NO_LIMITS, min_remote_prefill_share=1), GOOD, None).checks == ()


def test_a_verdict_names_what_failed():
    verdict = judge(Thresholds(max_ttft_p95_ms=1, max_e2e_p95_ms=2000), GOOD, None)
    assert not verdict.passed
    assert [each.name for each in verdict.failed] == ["TTFT p95"]
