import pytest
from llmd_oke.results.comparison import Side
from llmd_oke.results.row import Basis
from llmd_oke.results.sides import Loaded
from results_rows import row


@pytest.mark.parametrize(
    ("bases", "worst"),
    [
        ([Basis.MEASURED], Basis.MEASURED),
        ([Basis.MEASURED, Basis.CALIBRATED], Basis.CALIBRATED),
        ([Basis.BOUND, Basis.MEASURED], Basis.BOUND),
    ],
)
def test_a_side_is_worth_no_more_than_its_least_certain_figure(bases, worst):
    assert Loaded(Side("a", tuple(row(basis=basis) for basis in bases))).basis == worst
