"""What forecasts assume."""

import pytest
from llmd_oke.tuning.watch.assumptions import of_lengths
from watch_for_tests import assumptions, forecast


def test_sequences_of_a_server_follow_from_rate_lengths_and_step():
    (running,) = (each for each in assumptions() if each.figure.name == "running")
    assert running.value == pytest.approx(40 * 255 * 0.010 / 2)  # 255 gaps between 256 tokens
    assert running.basis == "calibrated"


def test_a_forecast_keeps_its_basis_and_what_was_asked_is_given():
    bases = {f"{each.figure.name} {each.kind}": each.basis for each in assumptions()}
    assert bases["requests_per_s load"] == bases["input_tokens load"] == "given"
    assert bases["ttft_ms forecast"] == "calibrated"
    assert bases["ttft_ms limit"] == "target"
    assert bases["kv_cache_usage limit"] == "limit"


def test_the_most_that_a_deployment_carries_is_a_forecast_itself():
    (rate,) = (each for each in assumptions(targets="itl=25") if each.figure.name == "requests_per_s")
    assert (rate.basis, rate.side) == ("calibrated", "at most")


def test_without_a_rate_nothing_that_follows_from_it_is_assumed():
    names = {each.figure.name for each in assumptions(offered_requests_per_s=None)}
    assert names.isdisjoint({"requests_per_s", "running"})


def test_prefix_cache_hits_are_allowed_a_share_of_all_prompt_tokens():
    hits = list(of_lengths(forecast().input_tokens, forecast().output_tokens, 0.1))[-1]
    assert (hits.figure.name, hits.value, hits.tolerance) == ("prefix_cache_hit_share", 0.0, 0.1)


def test_prefix_cache_hits_that_a_forecast_counts_on_are_assumed():
    (hits,) = (each for each in assumptions(prefix_cache_hit_share=0.4) if each.figure.name == "prefix_cache_hit_share")
    assert hits.value == 0.4
