"""Rows that can't be right are rejected with the reason; rows to be careful with are flagged."""

import pytest
from llmd_bench.deployment import Parallelism
from llmd_tuner.measurements import published_points
from llmd_tuner.row_filters import RowLimits, Rule, inspect
from tuning_for_tests import LATENCY, row, tpot

LIMITS = RowLimits(LATENCY, {Parallelism(2): 4_000_000})


def verdicts(*rows, limits=LIMITS):
    return [(finding.rule, finding.verdict) for finding in inspect(rows, limits).findings]


def test_published_prefill_rows_with_cached_prompts_exceed_the_hardware_bound():
    points = published_points("gpt-oss-120b", "MI300X")
    assert points is not None
    rejected = inspect(points.rows(), RowLimits(LATENCY)).rejected
    cached = [item for item in rejected if item.rule is Rule.HARDWARE_BOUND]
    assert [item.row.concurrency for item in cached] == [4, 8, 16]
    assert "408,046 prompt tokens/s, at most 134,165" in str(cached[1])


def test_published_decode_points_are_accepted_up_to_the_servers_max_num_seqs():
    points = published_points("gpt-oss-120b", "MI300X")
    assert points is not None
    inspection = inspect(points.rows(), RowLimits(LATENCY))
    assert sum(item.subject == "decode" for item in inspection.accepted) == 24
    assert {item.row.concurrency for item in inspection.rejected if item.rule is Rule.MAX_NUM_SEQS} == {512}


def test_a_decode_step_faster_than_memory_bandwidth_is_rejected():
    assert verdicts(row(concurrency=1, output_tokens_per_s=50_000)) == [(Rule.HARDWARE_BOUND, "rejected")]


@pytest.mark.parametrize(("share", "verdict"), [(0.02, "flagged"), (0.6, "rejected")])
def test_a_row_with_few_prefix_cache_hits_is_flagged_and_one_with_many_rejected(share, verdict):
    hit = row("prefill", input_tokens=4096, output_tokens=1, prefix_cache_hit_share=share)
    assert verdicts(hit) == [(Rule.PREFIX_CACHE, verdict)]


def test_rows_of_servers_with_draft_tokens_are_rejected_for_fits():
    assert verdicts(row(output_tokens_per_s=2000, draft_tokens=3)) == [(Rule.DRAFTS, "rejected")]


def test_decode_rows_with_more_requests_than_max_num_seqs_are_rejected():
    assert verdicts(row(output_tokens_per_s=2000, max_num_seqs=32)) == [(Rule.MAX_NUM_SEQS, "rejected")]


def test_a_deployment_with_more_requests_than_its_decode_servers_run_is_flagged():
    run = row("end-to-end", topology="8p-tp1-4d-tp2", concurrency=300, max_num_seqs=64)
    assert verdicts(run) == [(Rule.MAX_NUM_SEQS, "flagged")]
    assert verdicts(run.model_copy(update={"concurrency": 256})) == []


def test_rows_with_more_concurrent_requests_than_the_kv_cache_holds_are_rejected():
    big = row(input_tokens=100_000, output_tokens_per_s=2000, tpot_ms=tpot(32))
    assert verdicts(big) == [(Rule.KEY_VALUE_CACHE, "rejected")]


def test_a_measurement_with_too_few_requests_for_each_user_is_flagged():
    assert verdicts(row(output_tokens_per_s=2000, requests=128)) == [(Rule.WAVES, "flagged")]


def test_a_measurement_whose_request_rate_was_not_achieved_is_flagged():
    slow = row("end-to-end", arrival="poisson", offered_requests_per_s=45, achieved_requests_per_s=43.5)
    assert verdicts(slow) == [(Rule.ACHIEVED, "flagged")]


def test_a_measurement_with_reserved_but_uncounted_gpus_is_flagged():
    assert verdicts(row("end-to-end", gpus_counted=3, gpus_reserved=8)) == [(Rule.RESERVED, "flagged")]


def test_throughput_that_includes_filling_the_kv_cache_is_detected_by_tpot():
    """vLLM pull request 56473: 84.9 requests/s with the fill, 117.7 by steps."""
    filled = row(concurrency=256, output_tokens_per_s=84.9 * 256, tpot_ms=tpot(256 * 1000 / (117.7 * 256)))
    assert verdicts(filled, limits=RowLimits()) == [(Rule.FILL, "flagged")]


def test_decode_rows_of_long_prompts_without_tpot_are_flagged():
    assert verdicts(row(input_tokens=4096, output_tokens_per_s=2000)) == [(Rule.FILL, "flagged")]


def test_a_measurement_with_failed_requests_is_rejected_for_fits():
    assert verdicts(row(output_tokens_per_s=2000, requests=1000, failures=11)) == [(Rule.FAILURES, "rejected")]


def test_a_rejected_row_is_reported_with_file_and_line():
    finding = inspect([row(output_tokens_per_s=2000, max_num_seqs=32)], RowLimits()).findings[0]
    assert str(finding).startswith("runs.jsonl:7: rejected, concurrency above max_num_seqs: 64 in flight, 32 at a time")
