import time

from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.loads import frontier, served
from results_rows import row

PLACES = st.tuples(st.integers(0, 8), st.integers(0, 8))


def best(points):
    return frontier(points, lambda point: point[0], lambda point: point[1])


@given(st.lists(PLACES, max_size=30))
def test_a_pareto_frontier_has_exactly_the_points_that_no_other_dominates(points):
    def dominated(point):
        return any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)

    assert sorted(best(points)) == sorted(point for point in points if not dominated(point))


def test_a_pareto_frontier_is_sorted_by_falling_x_and_has_only_whole_points():
    assert best([(1, 3), (3, 1), (2, 2), (1, 1)]) == [(3, 1), (2, 2), (1, 3)]
    assert best([(None, 3), (1, None), (1, 1)]) == [(1, 1)]


def test_a_frontier_of_many_points_is_computed_quickly():
    began = time.process_time()
    best([(index * 7919 % 100_003, index * 104_729 % 100_003) for index in range(100_000)])
    assert time.process_time() - began < 5


def test_a_result_without_token_rate_or_with_many_failures_counts_as_not_served():
    assert served(row(concurrency=8, output_tokens_per_s=100.0))
    assert not served(row(concurrency=8, output_tokens_per_s=1000.0, failures=2))
    assert not served(row(concurrency=8, output_tokens_per_s=None))
