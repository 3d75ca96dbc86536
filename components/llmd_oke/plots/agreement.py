"""A chart of what was predicted against what was seen: on the diagonal both agree."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from llmd_oke.plots.drawing import COLOURS, INK, MARKERS, chart, log_scale, marker_face
from llmd_oke.plots.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN = 1.15
"""Room beyond the smallest and the largest value."""

LINEAR_FACTOR = 10
"""Between the limits of axes; beyond it they are logarithmic."""


def agreement_svg(series: Sequence[Series], *, title: str, x_label: str, y_label: str) -> str:
    """Points (x as seen, y as predicted, all above 0) and their diagonal, on equal axes.

    The axes are logarithmic where values differ by more than a factor of ten.

    Raises:
        KitError: matplotlib is not installed.
    """
    values = [value for each in series for point in each.points for value in (point.x, point.y)]
    limits = (min(values) / MARGIN, max(values) * MARGIN)

    def draw(axes: "Axes") -> None:
        if limits[1] > LINEAR_FACTOR * limits[0]:
            log_scale(axes, "x")
            log_scale(axes, "y")
        axes.plot(limits, limits, color=INK, linewidth=1.0, alpha=0.5, label="equal")
        for each, colour, marker in zip(series, cycle(COLOURS), cycle(MARKERS), strict=False):
            _draw(axes, each, colour, marker)
        axes.set_xlim(*limits)
        axes.set_ylim(*limits)

    return chart(draw, title=title, x_label=x_label, y_label=y_label)


def _draw(axes: "Axes", series: Series, colour: str, marker: str) -> None:
    axes.plot(
        [point.x for point in series.points],
        [point.y for point in series.points],
        color=colour,
        linestyle="",
        marker=marker,
        markersize=5,
        markerfacecolor=marker_face(series.basis, colour),
        label=series.legend,
    )
