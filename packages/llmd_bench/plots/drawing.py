"""Common style of all charts: series, labels, colours for light and dark pages, and reproducible SVG."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, cast

from llmd_base.errors import KitError
from llmd_base.row import Basis


@dataclass(frozen=True)
class ChartPoint:
    """Point of a chart; `label` (for example the concurrency) is written beside it if there is room."""

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True)
class ChartSeries:
    """Series of points, in the order in which a line joins them."""

    name: str
    points: Sequence[ChartPoint]
    basis: Basis

    @property
    def legend(self) -> str:
        """Legend entry with the basis of the figures: `8p-tp1-4d-tp2 (measured)`."""
        return legend(self.name, self.basis)


@dataclass(frozen=True)
class Samples:
    """Samples of one quantity, such as the time to first token of each request."""

    name: str
    values: Sequence[float]
    basis: Basis

    @property
    def legend(self) -> str:
        """Legend entry with the basis of the samples: `A (measured)`."""
        return legend(self.name, self.basis)


@dataclass(frozen=True)
class Box:
    """Rectangle in a chart that marks the required values, such as an SLO; a side that is None is open."""

    x_min: float | None = None
    x_max: float | None = None
    y_min: float | None = None
    y_max: float | None = None
    label: str = ""


def legend(name: str, basis: Basis) -> str:
    """Return the legend entry of a series: its name with the basis of its figures."""
    return f"{name} ({basis.value})"


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

_PLACES = ((5, 5, "left", "bottom"), (-5, 5, "right", "bottom"), (5, -5, "left", "top"), (-5, -5, "right", "top"))
"""Offsets in points and alignments of a label relative to its point, in order of preference."""

_SIZE = 7.5


def add_labels(axes: "Axes", points: Iterable[ChartPoint]) -> None:
    """Write each point's label where it covers no other label and no point; leave the label out if there is no room."""
    known = list(points)
    if not any(point.label for point in known):
        return  # drawing for the layout takes as long as all the rest
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.draw_without_rendering()
    from matplotlib.transforms import Bbox  # noqa: PLC0415 - slow to import

    places = axes.transData.transform([(point.x, point.y) for point in known])
    taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for point in known:
        if point.label:
            _place(axes, point, taken)


def _place(axes: "Axes", point: ChartPoint, taken: "list[Bbox]") -> None:
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


SIZE_IN = (7.2, 4.3)
"""Width and height without legend in inches, at 72 points an inch: fits a page's column and a sheet of paper."""

PANEL_IN = 2.1
"""Height of each stacked plot in inches."""

LEGEND_ROW_IN = 0.2

INK = "#0a0b0c"
"""Placeholder for the text colour, replaced by `currentColor` in the SVG, so that a chart fits light and dark pages."""

COLOURS = ("#3a82c9", "#e0752f", "#2aa38a", "#c8528f", "#8a70d6", "#a98f1c", "#5b9aa8", "#cf5252")
"""Colours of series, distinguishable on white and on black; for colour-blind readers in combination with markers."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "llmd-oke",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
}

_STANDALONE = (
    "<style>svg.llmd-oke-chart{max-width:100%;height:auto}"
    "@media (prefers-color-scheme:dark){svg.llmd-oke-chart:root{color:#e4e7ea;background:#15181c}}</style>"
)


def chart(
    draw: "Callable[[Axes], None]", *, title: str, x_label: str, y_label: str, labelled: Sequence[ChartPoint] = ()
) -> str:
    """Return the SVG of a plot that `draw` draws on the given axes; the legend is below the plot.

    The labels of `labelled` are written beside their points as far as there is room, in order.

    Raises:
        KitError: matplotlib is not installed.
    """
    with _figure(SIZE_IN[1]) as figure:
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        draw(axes)
        _add_legend(figure, axes)
        add_labels(axes, labelled)
        return _svg(figure)


def stacked_charts(draws: "Mapping[str, Callable[[Axes], None]]", *, title: str, x_label: str) -> str:
    """Return the SVG of stacked plots with a common x axis; keys of `draws` are the labels of the y axes. The legend is
    that of the last plot.

    Raises:
        KitError: matplotlib is not installed.
    """
    with _figure(PANEL_IN * len(draws)) as figure:
        axes: Any = figure.subplots(len(draws), sharex=True, squeeze=False)[:, 0]
        for panel, (y_label, draw) in zip(axes, draws.items(), strict=True):
            panel.set(ylabel=y_label)
            draw(panel)
        axes[0].set(title=title)
        axes[-1].set(xlabel=x_label)
        _add_legend(figure, axes[-1])
        return _svg(figure)


@contextmanager
def _figure(height_in: float) -> "Generator[Figure]":
    """Create a figure in the common style, as a context manager.

    Raises:
        KitError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - slow to import, and an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise KitError("Charts need matplotlib, which is not installed.", "Install llmd-oke[analysis].") from error
    with cast("Any", mpl).rc_context(_STYLE):
        yield Figure(figsize=(SIZE_IN[0], height_in), dpi=72, layout="constrained")


def _add_legend(figure: "Figure", axes: "Axes") -> None:
    handles, names = axes.get_legend_handles_labels()
    if handles:
        columns = max(1, min(3, 108 // (max(map(len, names)) + 6)))
        figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * math.ceil(len(names) / columns))
        figure.legend(handles, names, loc="outside lower center", ncols=columns)


def _svg(figure: "Figure") -> str:
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    opening, rest = svg.split(">", 1)
    return f'{opening} class="llmd-oke-chart" role="img">{_STANDALONE}{rest}'


def log_scale(axes: "Axes", which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers as tick labels."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415 - slow to import

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def line_style(basis: Basis) -> str:
    """Return matplotlib's line style for a basis: solid for measured, dashed for calibrated, dotted for bound."""
    return {Basis.MEASURED: "-", Basis.CALIBRATED: "--", Basis.BOUND: ":"}[basis]
