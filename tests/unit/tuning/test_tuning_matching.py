"""Matching prefill to decode servers: the published table to the digit, and what it leaves out."""

import pytest
from llmd_base.errors import KitError
from llmd_tuner.matching import DecodePoint, MatchingSettings, match, matches
from llmd_tuner.row_filters import RowLimits, inspect
from tuning_for_tests import LATENCY, published, tuning_values

GOLDEN = [
    (size, concurrency, *expected)
    for size, by_load in tuning_values("golden-matching").items()
    for concurrency, expected in by_load.items()
]


def test_all_24_published_ratios_of_prefill_to_decode_servers_are_reproduced_exactly():
    accepted = inspect(published().rows(), RowLimits(LATENCY)).accepted
    reproduced = [
        (item.decode.gpus, item.decode.concurrency, item.prefill_gpus, item.gpus, round(item.tpsg))
        for item in matches(accepted, MatchingSettings(4096, 256))
    ]
    assert len(reproduced) == 24
    assert sorted(reproduced) == sorted(GOLDEN)


def test_the_number_of_prefill_servers_is_rounded_up_once_for_all_decode_servers():
    point = DecodePoint(gpus=2, concurrency=64, tokens_per_s=1000)
    settings = MatchingSettings(1600, 100, decode_replicas=4)
    assert match(point, {1: 25_000}, settings).prefill_instances == 3  # 64,000 / 25,000; four times ceil would be four


def test_of_prefill_servers_with_equal_total_gpus_tune_match_takes_the_smaller_ones():
    point = DecodePoint(2, 8, 1000)
    assert match(point, {1: 8000, 2: 16_000}, MatchingSettings(1600, 100)).topology == "2p-tp1-1d-tp2"


def test_tune_match_with_spare_prefill_capacity_gives_more_prefill_servers():
    point = DecodePoint(1, 8, 1000)
    assert match(point, {1: 16_000}, MatchingSettings(1600, 100)).prefill_instances == 1
    assert match(point, {1: 16_000}, MatchingSettings(1600, 100, prefill_share=0.9)).prefill_instances == 2


def test_tune_match_divides_throughput_by_used_gpus_and_not_by_reserved_ones():
    result = match(DecodePoint(2, 8, 900), {1: 16_000}, MatchingSettings(1600, 100, gpus_per_node=8))
    assert (result.gpus, result.gpus_reserved) == (3, 8)
    assert result.tpsg == 300


def test_tune_match_marks_a_deployment_whose_requests_exceed_the_kv_cache():
    point = DecodePoint(2, 64, 1000)
    assert not match(point, {1: 16_000}, MatchingSettings(4096, 256, key_value_tokens={2: 64 * 4352 - 1})).fits
    assert match(point, {1: 16_000}, MatchingSettings(4096, 256, key_value_tokens={2: 64 * 4352})).fits


def test_tune_match_is_refused_without_a_prefill_measurement():
    with pytest.raises(KitError, match="no prefill row"):
        match(DecodePoint(1, 4, 100), {}, MatchingSettings(4096, 256))
