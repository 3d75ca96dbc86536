import pytest
from llmd_oke.results.confidence import difference_interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-5)


def test_the_interval_is_welchs():
    """Reference: mean difference 3.5, variances 4/4 and 1/3, freedom 4.6, computed by hand."""
    low, high = difference_interval([10.0, 12.0, 14.0, 12.0], [15.0, 16.0, 15.5]) or (0, 0)
    assert (low + high) / 2 == pytest.approx(3.5)
    error = (8 / 3 / 4 + 0.25 / 3) ** 0.5
    freedom = (8 / 3 / 4 + 0.25 / 3) ** 2 / ((8 / 3 / 4) ** 2 / 3 + (0.25 / 3) ** 2 / 2)
    assert (high - low) / 2 == pytest.approx(error * t_quantile(0.975, freedom))


def test_of_a_single_run_nothing_is_said():
    assert difference_interval([1.0], [1.0, 2.0]) is None


def test_equal_runs_have_an_interval_without_width():
    assert difference_interval([1.0, 1.0], [2.0, 2.0]) == (1, 1)
