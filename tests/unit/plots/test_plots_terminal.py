from llmd_base.row import Basis
from llmd_bench.plots.charts import scatter_text
from llmd_bench.plots.drawing import ChartPoint, ChartSeries

SERIES = [
    ChartSeries("agg", [ChartPoint(10, 100), ChartPoint(20, 50)], Basis.MEASURED),
    ChartSeries("disagg", [ChartPoint(15, 120)], Basis.CALIBRATED),
]


def plot(series):
    return scatter_text(series, width=60, height=20, x_label="TPSU", y_label="TPSG")


def test_a_terminal_plot_fits_its_size_and_has_no_colour_codes():
    lines = plot(SERIES).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in plot(SERIES)


def test_a_terminal_plots_legend_has_its_own_series_with_their_basis():
    assert plot(SERIES).splitlines()[-2:] == ["  ● agg (measured)", "  ■ disagg (calibrated)"]
    assert plot(SERIES[1:]).count("■") == 0


def test_an_empty_terminal_plot_says_that_it_has_no_data():
    assert plot([]) == "no data"


def test_each_axis_of_a_terminal_plot_has_its_label_and_round_values():
    first, *_, below, _, _ = plot(SERIES).splitlines()
    assert (first, below.strip()) == ("TPSG", "TPSU")
    assert all(f"{mark}┤" in plot(SERIES) for mark in (60, 80, 100, 120))
