import re
from xml.etree import ElementTree as ET

import pytest
from llmd_base.row import Basis
from llmd_bench.plots.charts import MAX_STEPS, agreement_svg, distribution_svg, lines_svg, scatter_svg, scatter_text
from llmd_bench.plots.drawing import INK, Box, ChartPoint, ChartSeries, Samples

MEASURED = ChartSeries(
    "8p-tp1-4d-tp2",
    [ChartPoint(20, 900, "C=64"), ChartPoint(40, 700, "C=32"), ChartPoint(30, 100, "C=8")],
    Basis.MEASURED,
)
BOUND = ChartSeries("memory", [ChartPoint(20, 2000), ChartPoint(40, 1500)], Basis.BOUND)


def scatter(series, **options):
    return scatter_svg(series, title="T & <U>", x_label="TPSU", y_label="TPSG", **options)


def texts(svg):
    root = ET.fromstring(svg)  # noqa: S314 - it was drawn here
    return [item.text or "" for item in root.iter() if item.tag.endswith("}text")]


def test_equal_chart_inputs_give_equal_bytes():
    assert scatter([MEASURED, BOUND], frontier=True) == scatter([MEASURED, BOUND], frontier=True)


def test_an_svg_refers_to_no_other_file_and_inherits_the_text_colour_of_its_page():
    svg = scatter([MEASURED])
    assert svg.startswith("<svg")
    assert not re.search(r'href="(?!#)|url\((?!#)|<script|<image', svg)
    assert "<dc:date" not in svg
    assert "currentColor" in svg
    assert INK not in svg


def test_the_legend_of_a_chart_has_the_basis_of_each_series_and_the_box_of_targets():
    assert {"8p-tp1-4d-tp2 (measured)", "memory (bound)"} <= set(texts(scatter([MEASURED, BOUND])))
    assert "SLO" in texts(scatter([MEASURED], box=Box(x_min=25, y_min=300, label="SLO")))


def test_names_in_charts_are_escaped_and_never_parsed_as_formulas():
    series = ChartSeries("$x$ <b>&", [ChartPoint(1, 1)], Basis.MEASURED)
    shown = texts(scatter([series]))
    assert "$x$ <b>& (measured)" in shown
    assert "T & <U>" in shown


def test_only_points_on_a_pareto_frontier_are_labelled_and_no_bounds_are_on_it():
    shown = texts(scatter([MEASURED], frontier=True))
    assert {"C=64", "C=32", "Pareto frontier (measured)"} <= set(shown)
    assert "C=8" not in shown
    assert "Pareto frontier (bound)" not in texts(scatter([MEASURED, BOUND], frontier=True))
    assert not [text for text in texts(scatter([BOUND], frontier=True)) if "frontier" in text]


def test_a_chart_omits_point_labels_that_would_overlap():
    crowd = ChartSeries("crowd", [ChartPoint(1, 1, f"C={index}") for index in range(50)], Basis.MEASURED)
    labels = [text for text in texts(scatter([crowd])) if text.startswith("C=")]
    assert 0 < len(labels) < 10


TERMINAL = [
    ChartSeries("agg", [ChartPoint(10, 100), ChartPoint(20, 50)], Basis.MEASURED),
    ChartSeries("disagg", [ChartPoint(15, 120)], Basis.CALIBRATED),
]


def plot(series):
    return scatter_text(series, width=60, height=20, x_label="TPSU", y_label="TPSG")


def test_an_empty_chart_or_terminal_plot_says_that_it_has_no_data():
    assert "no data" in texts(scatter([]))
    assert plot([]) == "no data"


def test_a_terminal_plot_fits_its_size_and_has_no_colour_codes():
    lines = plot(TERMINAL).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in plot(TERMINAL)


def test_a_terminal_plot_has_labelled_axes_and_a_legend_with_each_basis():
    first, *_, below, agg, disagg = plot(TERMINAL).splitlines()
    assert (first, below.strip()) == ("TPSG", "TPSU")
    assert all(f"{mark}┤" in plot(TERMINAL) for mark in (60, 80, 100, 120))
    assert (agg, disagg) == ("  ● agg (measured)", "  ■ disagg (calibrated)")
    assert "■" not in plot(TERMINAL[1:])


@pytest.mark.parametrize("log", [False, True])
def test_logarithmic_and_linear_axes_of_a_line_chart_have_plain_numbers(log):
    series = ChartSeries("a", [ChartPoint(rate, 10.0**rate) for rate in (1, 2, 3)], Basis.CALIBRATED)
    svg = lines_svg([series], title="t", x_label="requests/s", y_label="ms", y_log=log)
    assert "1000" in texts(svg)
    assert "mathdefault" not in svg


def test_a_chart_of_a_large_distribution_ends_at_its_largest_value():
    samples = Samples("a", [1.0 + index for index in range(20 * MAX_STEPS)], Basis.MEASURED)
    svg = distribution_svg([samples], title="t", x_label="ms")
    assert len(svg) < 200_000
    assert "20000" in texts(svg)


def test_distributions_over_decades_have_a_logarithmic_axis_and_may_have_zeros():
    svg = distribution_svg([Samples("a", [0.01, 1, 150], Basis.MEASURED)], title="t", x_label="ms")
    assert {"0.01", "0.1", "1", "10", "100"} <= set(texts(svg))
    assert "a (measured)" in texts(distribution_svg([Samples("a", [0, 100], Basis.MEASURED)], title="t", x_label="ms"))


def drawn(*points):
    series = ChartSeries("held out", [ChartPoint(x, y) for x, y in points], Basis.CALIBRATED)
    return agreement_svg([series], title="TPSG", x_label="measured", y_label="simulated")


def test_a_predicted_measured_chart_has_a_diagonal_and_axes_by_the_range_of_values():
    svg = drawn((100, 110), (200, 190))
    assert "equal" in svg
    assert "held out (calibrated)" in svg
    assert ">140<" in svg
    assert ">2000<" in drawn((10, 10), (5000, 5000))
