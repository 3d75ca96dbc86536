import pytest
from llmd_oke.results.errors import compared, mean_absolute_error, worst
from results_rows import row


def test_an_error_is_predicted_over_seen_less_one():
    (found,) = compared(["output_tokens_per_s"], row(output_tokens_per_s=900.0), row(output_tokens_per_s=750.0))
    assert found.error == pytest.approx(0.2)


def test_a_mean_error_counts_both_directions():
    up = compared(["output_tokens_per_s"], row(output_tokens_per_s=110.0), row(output_tokens_per_s=100.0))
    down = compared(["output_tokens_per_s"], row(output_tokens_per_s=70.0), row(output_tokens_per_s=100.0))
    assert mean_absolute_error([*up, *down]) == pytest.approx((0.1 + 0.3) / 2)


def test_the_worst_is_furthest_off_in_either_direction():
    figures = [
        each
        for value in (120.0, 70.0, 110.0)
        for each in compared(["tpsg"], row(output_tokens_per_s=value), row(output_tokens_per_s=100.0))
    ]
    assert worst(figures).error == pytest.approx(-0.3)


def test_figures_that_one_side_lacks_are_not_compared():
    assert list(compared(["goodput_share"], row(), row())) == []
