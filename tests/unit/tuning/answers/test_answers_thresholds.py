"""Thresholds for scaling, from what a deployment carries within the targets."""

from dataclasses import replace

import pytest
from llmd_oke.tuning.answers import ranking
from llmd_oke.tuning.answers.thresholds import scaling_share, thresholds
from llmd_oke.tuning.search.searching import at_loads, search
from tuning_for_tests import question


@pytest.fixture(scope="module")
def asked():
    return question()


@pytest.fixture(scope="module")
def best(asked):
    found = ranking.rank(asked, sensitivity=False).best
    assert found is not None
    return found


def test_prefill_goes_by_prompt_tokens_and_decode_by_requests(asked, best):
    found = thresholds(asked, best, "calibrated")
    assert {role: (each.threshold.key, each.replicas) for role, each in found.items()} == {
        "prefill": ("promptTokensPerS", best.prefill),
        "decode": ("requests", best.decode),
    }


def test_thresholds_are_a_share_of_what_the_targets_allow(asked, best):
    found = thresholds(asked, best, "calibrated")
    (full,) = at_loads(asked, best, [best.capacity_per_s])
    assert full.feasible
    prompts = best.capacity_per_s * 4096 / best.prefill
    assert found["prefill"].threshold.value == int(prompts * scaling_share())
    assert found["decode"].threshold.value == int(full.batch * scaling_share())


def test_copies_share_the_load(asked, best):
    two = replace(best, copies=2, capacity_per_s=2 * best.capacity_per_s)
    one, both = thresholds(asked, best, ""), thresholds(asked, two, "")
    assert {role: each.threshold.value for role, each in one.items()} == {
        role: each.threshold.value for role, each in both.items()
    }


def test_aggregated_servers_go_by_requests(asked):
    aggregated = next(each for each in search(asked).deployments() if not each.prefill)
    found = thresholds(asked, aggregated, "calibrated")
    assert {role: each.threshold.key for role, each in found.items()} == {"aggregated": "requests"}


def test_each_threshold_says_where_it_is_from(asked, best):
    for each in thresholds(asked, best, "bound").values():
        assert each.threshold.basis.startswith("bound: ")
        assert each.threshold.basis.endswith("the most within ttft=2000,itl=25,qps=45, times 0.8")
