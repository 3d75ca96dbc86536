"""Plots for a terminal."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from llmd_oke.errors import KitError
from llmd_oke.plots.series import Series

_MARKERS = "●■▲◆▼○□△◇▽"


def scatter_text(series: Sequence[Series], *, width: int, height: int, x_label: str, y_label: str) -> str:
    """The points of all series as plain text of at most `width` columns and `height` lines, legend below.

    Raises:
        KitError: plotext is not installed.
    """
    shown = [(each, marker) for each, marker in zip(series, cycle(_MARKERS), strict=False) if each.points]
    legend = [f"  {marker} {each.legend}" for each, marker in shown]
    if not shown:
        return "no data"
    figure = _figure(width, max(height - len(legend), 8))
    for each, marker in shown:
        figure.draw(
            figure.signal([point.x for point in each.points], [point.y for point in each.points], marker=marker)
        )
    figure.label(x_label, axis="x")
    figure.label(y_label, axis="y")
    return "\n".join([_text(figure), *legend])


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
