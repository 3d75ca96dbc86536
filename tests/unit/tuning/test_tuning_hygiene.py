"""Rows that can't be right are rejected with the reason; rows to be careful with are flagged."""

import pytest
from llmd_bench.deployment import Parallelism
from llmd_tuner.row_filters import RowLimits, Rule, inspect
from tuning_for_tests import LATENCY, published, row, tpot

LIMITS = RowLimits(LATENCY, {Parallelism(2): 4_000_000})


def verdicts(*rows, limits=LIMITS):
    return [(finding.rule, finding.verdict) for finding in inspect(rows, limits).findings]


def test_published_prefill_rows_with_cached_prompts_exceed_the_hardware_bound():
    rejected = inspect(published().rows(), RowLimits(LATENCY)).rejected
    cached = [item for item in rejected if item.rule is Rule.HARDWARE_BOUND]
    assert [item.row.concurrency for item in cached] == [4, 8, 16]
    assert "408,046 prompt tokens/s, at most 134,165" in str(cached[1])


def test_published_decode_points_are_accepted_up_to_the_servers_max_num_seqs():
    inspection = inspect(published().rows(), RowLimits(LATENCY))
    assert sum(item.subject == "decode" for item in inspection.accepted) == 24
    assert {item.row.concurrency for item in inspection.rejected if item.rule is Rule.MAX_NUM_SEQS} == {512}


PREFILL = {"subject": "prefill", "input_tokens": 4096, "output_tokens": 1}
WHOLE = {"subject": "end-to-end"}
SLOW = {**WHOLE, "arrival": "poisson", "offered_requests_per_s": 45, "achieved_requests_per_s": 43.5}


@pytest.mark.parametrize(
    ("changes", "rule", "verdict"),
    [
        ({"concurrency": 1, "output_tokens_per_s": 50_000}, Rule.HARDWARE_BOUND, "rejected"),
        ({**PREFILL, "prefix_cache_hit_share": 0.02}, Rule.PREFIX_CACHE, "flagged"),
        ({**PREFILL, "prefix_cache_hit_share": 0.6}, Rule.PREFIX_CACHE, "rejected"),
        ({"draft_tokens": 3}, Rule.DRAFTS, "rejected"),
        ({"max_num_seqs": 32}, Rule.MAX_NUM_SEQS, "rejected"),
        ({"input_tokens": 100_000, "tpot_ms": tpot(32)}, Rule.KEY_VALUE_CACHE, "rejected"),
        ({"requests": 128}, Rule.WAVES, "flagged"),
        (SLOW, Rule.ACHIEVED, "flagged"),
        ({**WHOLE, "gpus_counted": 3, "gpus_reserved": 8}, Rule.RESERVED, "flagged"),
        ({"input_tokens": 4096}, Rule.FILL, "flagged"),  # a long prompt, without TPOT
        ({"requests": 1000, "failures": 11}, Rule.FAILURES, "rejected"),
    ],
)
def test_a_row_that_is_no_good_for_fits_is_flagged_or_rejected_with_the_reason(changes, rule, verdict):
    rate = {} if "subject" in changes else {"output_tokens_per_s": 2000}
    assert verdicts(row(**{**rate, **changes})) == [(rule, verdict)]


def test_a_deployment_with_more_requests_than_its_decode_servers_run_is_flagged():
    run = row("end-to-end", topology="8p-tp1-4d-tp2", concurrency=300, max_num_seqs=64)
    assert verdicts(run) == [(Rule.MAX_NUM_SEQS, "flagged")]
    assert verdicts(run.model_copy(update={"concurrency": 256})) == []


def test_throughput_that_includes_filling_the_kv_cache_is_detected_by_tpot():
    """vLLM pull request 56473: 84.9 requests/s with the fill, 117.7 by steps."""
    filled = row(concurrency=256, output_tokens_per_s=84.9 * 256, tpot_ms=tpot(256 * 1000 / (117.7 * 256)))
    assert verdicts(filled, limits=RowLimits()) == [(Rule.FILL, "flagged")]


def test_a_rejected_row_is_reported_with_file_and_line():
    finding = inspect([row(output_tokens_per_s=2000, max_num_seqs=32)], RowLimits()).findings[0]
    assert str(finding).startswith("runs.jsonl:7: rejected, concurrency above max_num_seqs: 64 in flight, 32 at a time")
