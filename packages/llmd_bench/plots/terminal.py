"""Plots for a terminal."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from llmd_pods.errors import KitError

from llmd_bench.plots.drawing import Series

_MARKERS = "●■▲◆▼○□△◇▽"


def scatter_text(series: Sequence[Series], *, width: int, height: int, x_label: str, y_label: str) -> str:
    """The points of all series as plain text of at most `width` columns and `height` lines, legend below.

    Raises:
        KitError: plotext is not installed.
    """
    shown = [
        (one_series, marker) for one_series, marker in zip(series, cycle(_MARKERS), strict=False) if one_series.points
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
    return "\n".join([y_label, _text(figure), x_label.rjust(width), *legend])


def _round_values(least: float, most: float) -> list[float]:
    """About five values between two, at a distance of 1, 2 or 5 times a power of ten; the value itself of one."""
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


def _text(figure: Any) -> str:
    return "\n".join(line.rstrip() for line in figure.build().string(colorless=True).splitlines())
