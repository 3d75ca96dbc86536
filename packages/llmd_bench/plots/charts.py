"""Charts as SVG: scatter plots with Pareto frontier, lines, distributions, predicted against measured figures; and
scatter plots as terminal text.

Legend entries state the basis of the figures.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from llmd_base.errors import KitError
from llmd_base.row import Basis

from llmd_bench.loads import frontier as frontier_of
from llmd_bench.plots.drawing import (
    COLOURS,
    INK,
    MARKERS,
    Box,
    ChartPoint,
    ChartSeries,
    Samples,
    chart,
    line_style,
    log_scale,
    stacked_charts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_STEPS = 1000
"""Maximum number of points of a distribution's line; more would enlarge the file without visible difference."""

_TERMINAL_MARKERS = "●■▲◆▼○□△◇▽"

_MARKED_PERCENTS = (50, 90, 99)


def scatter_svg(
    series: Sequence[ChartSeries],
    *,
    title: str,
    x_label: str,
    y_label: str,
    frontier: bool = False,
    box: Box | None = None,
) -> str:
    """Draw a scatter plot whose points are joined in their order, with labels where there is room, and return its SVG.

    With `frontier` the Pareto frontier (larger x and y are better) is drawn as a step line and only its points are
    labelled: one frontier of measured points, one of calibrated ones, none of bounds. `box` is drawn behind the points.

    Raises:
        KitError: matplotlib is not installed.
    """

    def draw(axes: "Axes") -> None:
        _draw_series(axes, series, faint=frontier)
        if frontier:
            _draw_frontiers(axes, series)
        _draw_box(axes, box)
        axes.margins(0.08)

    best = [point for _, points in _frontiers(series) for point in points]
    labelled = best if frontier else [point for one_series in series for point in one_series.points]
    return chart(draw, title=title, x_label=x_label, y_label=y_label, labelled=labelled)


def lines_svg(
    series: Sequence[ChartSeries],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_log: bool = False,
) -> str:
    """Draw lines with a marker at each point, and return the SVG; the y axis begins at zero unless it is logarithmic.

    Raises:
        KitError: matplotlib is not installed.
    """

    def draw(axes: "Axes") -> None:
        if y_log:
            log_scale(axes, "y")
        _draw_series(axes, series)
        if not y_log:
            axes.set_ylim(bottom=0)

    return chart(draw, title=title, x_label=x_label, y_label=y_label)


def steps_svg(panels: Mapping[str, Sequence[ChartSeries]], *, title: str, x_label: str) -> str:
    """Draw step lines in stacked plots with a common x axis, and return the SVG. Keys of `panels` are the labels of the
    y axes; series of the same name have the same colour in all plots; the legend is that of the last plot.

    Raises:
        KitError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(series.name for panel in reversed([*panels.values()]) for series in panel))
    colours = dict(zip(names, cycle(COLOURS), strict=False))

    def draw(axes: "Axes", panel: Sequence[ChartSeries]) -> None:
        for series in panel:
            x, y = [point.x for point in series.points], [point.y for point in series.points]
            style, colour = line_style(series.basis), colours[series.name]
            axes.step(x, y, where="post", color=colour, linestyle=style, label=series.legend)
        axes.set_ylim(bottom=0)

    draws = {y_label: partial(draw, panel=panel) for y_label, panel in panels.items()}
    return stacked_charts(draws, title=title, x_label=x_label)


def distribution_svg(samples: Sequence[Samples], *, title: str, x_label: str) -> str:
    """Draw cumulative distributions (share of samples up to each value), with lines at 50, 90 and 99 %, and return the
    SVG.

    The x axis is logarithmic if positive samples differ by more than a factor of twenty; zeros are then left of the
    axis.

    Raises:
        KitError: matplotlib is not installed.
    """

    above_zero = [value for sample_set in samples for value in sample_set.values if value > 0]

    def draw(axes: "Axes") -> None:
        if above_zero and max(above_zero) / min(above_zero) > 20:
            log_scale(axes, "x")
        for sample_set, colour in zip(samples, cycle(COLOURS), strict=False):
            ordered = sorted(sample_set.values)
            stride = math.ceil(len(ordered) / MAX_STEPS) or 1
            indices = [*reversed(range(len(ordered) - 1, -1, -stride))]  # the largest is always among them
            x, y = [ordered[index] for index in indices], [100 * ((index + 1) / len(ordered)) for index in indices]
            axes.step(x, y, where="post", color=colour, linestyle=line_style(sample_set.basis), label=sample_set.legend)
        for percent in _MARKED_PERCENTS:
            axes.axhline(percent, color=INK, linewidth=0.7, linestyle=":", alpha=0.5)
        axes.set_ylim(0, 101)
        axes.set_yticks([0, 25, 75, *_MARKED_PERCENTS])

    return chart(draw, title=title, x_label=x_label, y_label="Share of samples (%)")


def _draw_series(axes: "Axes", series: Sequence[ChartSeries], *, faint: bool = False, joined: bool = True) -> None:
    if not any(one_series.points for one_series in series):
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", alpha=0.6)
    for one_series, colour, marker in zip(series, cycle(COLOURS), cycle(MARKERS), strict=False):
        axes.plot(
            [point.x for point in one_series.points],
            [point.y for point in one_series.points],
            color=colour,
            linestyle=line_style(one_series.basis) if joined else "",
            linewidth=0.9 if faint else 1.6,
            marker="" if joined and one_series.basis is Basis.BOUND else marker,
            markersize=5,
            markerfacecolor=colour if one_series.basis is Basis.MEASURED else "none",
            label=one_series.legend,
        )


def _frontiers(series: Sequence[ChartSeries]) -> Iterator[tuple[Basis, list[ChartPoint]]]:
    for basis in (Basis.MEASURED, Basis.CALIBRATED):
        points = [point for one_series in series if one_series.basis is basis for point in one_series.points]
        best = frontier_of(points, lambda point: point.x, lambda point: point.y)
        if best:
            yield basis, best


def _draw_frontiers(axes: "Axes", series: Sequence[ChartSeries]) -> None:
    for basis, points in _frontiers(series):
        axes.step(
            [point.x for point in points],
            [point.y for point in points],
            where="post",
            color=INK,
            linewidth=1.8,
            linestyle=line_style(basis),
            alpha=0.55,
            zorder=1.5,
            label=f"Pareto frontier ({basis.value})",
        )


def _draw_box(axes: "Axes", box: Box | None) -> None:
    if box is None:
        return
    x_limits, y_limits = axes.get_xlim(), axes.get_ylim()
    x = (_or(box.x_min, x_limits[0]), _or(box.x_max, x_limits[1]))
    y = (_or(box.y_min, y_limits[0]), _or(box.y_max, y_limits[1]))
    axes.fill_between(x, y[0], y[1], color=COLOURS[2], alpha=0.12, linewidth=0, zorder=0.5, label=box.label or None)
    axes.set_xlim(min(x_limits[0], x[0]), max(x_limits[1], x[1]))
    axes.set_ylim(min(y_limits[0], y[0]), max(y_limits[1], y[1]))


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


MARGIN = 1.15
"""Factor by which axes extend beyond the smallest and the largest value."""

LINEAR_FACTOR = 10
"""Maximum ratio of the limits of linear axes; axes with a larger ratio are logarithmic."""


def agreement_svg(series: Sequence[ChartSeries], *, title: str, x_label: str, y_label: str) -> str:
    """Draw predicted (y) against measured (x) figures, all above 0, with the diagonal and equal axes, and return the
    SVG.

    The axes are logarithmic if the values differ by more than a factor of ten.

    Raises:
        KitError: matplotlib is not installed.
    """
    values = [value for one_series in series for point in one_series.points for value in (point.x, point.y)]
    limits = (min(values) / MARGIN, max(values) * MARGIN)

    def draw(axes: "Axes") -> None:
        if limits[1] > LINEAR_FACTOR * limits[0]:
            log_scale(axes, "x")
            log_scale(axes, "y")
        axes.plot(limits, limits, color=INK, linewidth=1.0, alpha=0.5, label="equal")
        _draw_series(axes, series, joined=False)
        axes.set_xlim(*limits)
        axes.set_ylim(*limits)

    return chart(draw, title=title, x_label=x_label, y_label=y_label)


def scatter_text(series: Sequence[ChartSeries], *, width: int, height: int, x_label: str, y_label: str) -> str:
    """Return a scatter plot of all series as plain text of at most `width` columns and `height` lines, with the legend
    below.

    Raises:
        KitError: plotext is not installed.
    """
    shown = [
        (one_series, marker)
        for one_series, marker in zip(series, cycle(_TERMINAL_MARKERS), strict=False)
        if one_series.points
    ]
    legend = [f"  {marker} {one_series.legend}" for one_series, marker in shown]
    if not shown:
        return "no data"
    figure = _figure(width, max(height - len(legend) - 2, 8))
    for one_series, marker in shown:
        figure.draw(
            figure.signal(
                [point.x for point in one_series.points], [point.y for point in one_series.points], marker=marker
            )
        )
    points = [point for one_series, _ in shown for point in one_series.points]
    for axis, values in (("x", [point.x for point in points]), ("y", [point.y for point in points])):
        marks = _round_values(min(values), max(values))
        figure.ruler(axis).ticks(marks, [f"{mark:,.10g}" for mark in marks])
    plot = figure.build().string(colorless=True)
    return "\n".join([y_label, *(line.rstrip() for line in plot.splitlines()), x_label.rjust(width), *legend])


def _round_values(least: float, most: float) -> list[float]:
    """Return about five axis ticks between two values, at intervals of 1, 2 or 5 times a power of ten; a single tick if
    the values are equal.
    """
    if least == most:
        return [least]
    power = 10.0 ** math.floor(math.log10((most - least) / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= most - least)
    return [round(count * step, 10) for count in range(math.ceil(least / step), math.floor(most / step) + 1)]


def _figure(width: int, height: int) -> Any:
    try:
        import plotext  # noqa: PLC0415 - slow to import, and an extra
    except ImportError as error:
        raise KitError(
            "Plots for a terminal need plotext, which is not installed.", "Install llmd-oke[analysis]."
        ) from error
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    return figure
