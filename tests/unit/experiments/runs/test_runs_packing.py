"""Which deployments are up at the same time."""

from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.experiments.runs.packing import pack


def test_large_ones_go_first_and_small_ones_beside_them():
    assert pack([1, 2, 4, 8, 3, 4, 5], int, 16, lambda _: True) == [[8, 5, 3], [4, 4, 2, 1]]


def test_what_does_not_go_together_goes_apart():
    assert pack([4, 4], int, 16, lambda some: len(some) < 2) == [[4], [4]]


@given(st.lists(st.integers(1, 16), max_size=20))
def test_everything_is_packed_once_and_nothing_overflows(sizes: list[int]):
    groups = pack(sizes, int, 16, lambda _: True)
    assert sorted(size for group in groups for size in group) == sorted(sizes)
    assert all(sum(group) <= 16 for group in groups)
