"""Labels beside points, as many as there is room for."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmd_oke.plots.series import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

_PLACES = ((5, 5, "left", "bottom"), (-5, 5, "right", "bottom"), (5, -5, "left", "top"), (-5, -5, "right", "top"))
"""Offsets in points and alignments, the best place first."""

_SIZE = 7.5


def add_labels(axes: "Axes", points: Iterable[Point]) -> None:
    """Write each point's label where it covers no other label and no point; leave it out where there is no room."""
    known = list(points)
    if not any(point.label for point in known):
        return  # drawing for the layout takes as long as all the rest
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.draw_without_rendering()
    taken = [_around(axes, point) for point in known]
    for point in known:
        if point.label:
            _place(axes, point, taken)


def _around(axes: "Axes", point: Point) -> "Bbox":
    from matplotlib.transforms import Bbox  # noqa: PLC0415 - slow to import

    x, y = axes.transData.transform((point.x, point.y))
    return Bbox.from_extents(x - 4, y - 4, x + 4, y + 4)


def _place(axes: "Axes", point: Point, taken: "list[Bbox]") -> None:
    for right, up, horizontal, vertical in _PLACES:
        text = axes.annotate(
            point.label,
            (point.x, point.y),
            (right, up),
            textcoords="offset points",
            ha=horizontal,
            va=vertical,
            fontsize=_SIZE,
            alpha=0.8,
        )
        box = text.get_window_extent()
        if axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1) and not box.count_overlaps(taken):
            taken.append(box)
            return
        text.remove()
