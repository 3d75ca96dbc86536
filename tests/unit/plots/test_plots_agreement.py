from llmd_oke.plots.agreement import agreement_svg
from llmd_oke.plots.series import Point, Series
from llmd_oke.results.row import Basis


def drawn(*points):
    series = Series("held out", [Point(x, y) for x, y in points], Basis.CALIBRATED)
    return agreement_svg([series], title="TPSG", x_label="measured", y_label="simulated")


def test_the_diagonal_and_the_series_are_in_the_legend():
    svg = drawn((100, 110), (200, 190))
    assert "equal" in svg
    assert "held out (calibrated)" in svg


def test_decades_are_drawn_on_logarithmic_axes():
    assert ">2000<" in drawn((10, 10), (5000, 5000))


def test_values_of_one_size_are_drawn_on_linear_axes():
    assert ">140<" in drawn((100, 110), (200, 190))
