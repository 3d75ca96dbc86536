"""What to do where an assumption is off."""

from dataclasses import replace

import pytest
from llmd_oke.tuning.watch.advice import Place, advice, rank_command
from watch_for_tests import TARGETS, as_forecast, judged

HERE = Place("prod", None, TARGETS)


def commands(**changes: float) -> list[str]:
    return [each.command for each in advice(judged(**changes), as_forecast(**changes), HERE)]


def test_nothing_is_to_do_where_all_holds():
    assert commands() == []


def test_another_load_is_ranked_as_it_is_seen():
    assert commands(requests_per_s=51.234, input_tokens=6000.4) == [
        "llmd-oke tune rank --stack prod --workload 6000/256 --slo ttft=2000,itl=25,qps=51.2"
    ]


def test_servers_without_room_are_ranked_anew_under_the_same_load():
    (only,) = commands(kv_cache_usage=0.95)
    assert only.startswith("llmd-oke tune rank --stack prod")


def test_a_forecast_that_is_off_is_measured_again():
    assert commands(itl_ms=14.0) == ["llmd-oke tune run --stack prod"]


def test_prompts_that_are_not_prefilled_remotely_are_the_smoke_benchmarks_matter():
    assert commands(remote_prefill_share=0.4) == ["llmd-oke smoke --stack prod"]


def test_prefix_cache_hits_are_said_where_they_matter():
    (only,) = advice(judged(prefix_cache_hit_share=0.4), as_forecast(prefix_cache_hit_share=0.4), HERE)
    assert "40% of prompt tokens" in only.why
    assert "--prefix-hits 0.4 " in only.command


def test_few_prefix_cache_hits_are_none_to_count_on():
    assert "--prefix-hits" not in rank_command(as_forecast(prefix_cache_hit_share=0.1), HERE)


def test_one_of_several_models_is_named():
    assert "--name llama" in rank_command(as_forecast(), replace(HERE, name="llama"))


@pytest.mark.parametrize("missing", ["input_tokens", "output_tokens"])
def test_what_was_not_seen_is_left_to_the_stack_file(missing: str):
    assert "--workload" not in rank_command(as_forecast(**{missing: None}), HERE)


def test_lengths_of_few_requests_are_left_to_it_too():
    few = as_forecast(answered=5, requests_per_s=0.5)
    assert rank_command(few, HERE) == "llmd-oke tune rank --stack prod --slo ttft=2000,itl=25,qps=0.5"


def test_no_requests_are_nothing_to_rank_for():
    assert commands(answered=0, requests_per_s=0.0) == []


def test_a_name_with_spaces_stays_one_word():
    assert "--stack 'a b'" in rank_command(as_forecast(), replace(HERE, stack="a b"))
