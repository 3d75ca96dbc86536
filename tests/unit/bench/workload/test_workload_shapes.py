import itertools

import pytest
from llmd_oke.bench.workload.shapes import ConstantRate, PoissonRate, arrivals_s


def test_a_constant_rate_sends_at_even_intervals():
    assert list(itertools.islice(arrivals_s(ConstantRate(4)), 4)) == [0, 0.25, 0.5, 0.75]


def test_a_poisson_rate_is_met_on_average_and_repeats_with_its_seed():
    first, again = (list(itertools.islice(arrivals_s(PoissonRate(50, seed=3)), 5001)) for _ in range(2))
    assert first == again == sorted(first)
    assert 5000 / first[-1] == pytest.approx(50, rel=0.05)
