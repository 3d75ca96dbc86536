"""Scores with their uncertainty, and two deployments on the same questions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.bench.evals.comparison import interval, pair


def test_the_exact_test_is_the_binomial_tail():
    """Six lost, none won: 1 in 64."""
    paired = pair([False] * 6 + [True] * 94, [True] * 100)
    assert (paired.lost, paired.won) == (6, 0)
    assert paired.p_value == pytest.approx(1 / 64)
    assert paired.worse
    assert paired.difference == pytest.approx(-0.06)


def test_as_many_won_as_lost_is_not_worse():
    paired = pair([True, False, True, True], [False, True, True, True])
    assert not paired.worse


def test_a_single_question_lost_may_be_chance():
    assert not pair([False] + [True] * 99, [True] * 100).worse


def test_results_of_different_lengths_are_not_compared():
    with pytest.raises(ValueError, match="argument 2"):
        pair([True, True], [True])


def test_an_interval_reproduces_a_published_example():
    """Wilson score interval of 81 in 263: 0.2553 to 0.3662 (Newcombe, Statistics in Medicine 17, 1998, table I)."""
    low, high = interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_chance_is_never_outside_nought_and_one(answers):
    these, those = zip(*answers, strict=True)
    assert 0 <= pair(these, those).p_value <= 1
