"""What a plot shows: named points, each series with what its figures are."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmd_oke.results.row import Basis


@dataclass(frozen=True)
class Point:
    """One point; `label` (for example its concurrency) is written beside it where there is room."""

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True)
class Series:
    """Points that belong together, in the order in which a line joins them."""

    name: str
    points: Sequence[Point]
    basis: Basis

    @property
    def legend(self) -> str:
        """Its name and what its figures are: `8p-tp1-4d-tp2 (measured)`."""
        return legend(self.name, self.basis)


@dataclass(frozen=True)
class Samples:
    """Single values of one quantity, such as the time to first token of each request."""

    name: str
    values: Sequence[float]
    basis: Basis

    @property
    def legend(self) -> str:
        """Its name and what its figures are."""
        return legend(self.name, self.basis)


@dataclass(frozen=True)
class Box:
    """The part of a plot that is asked for, such as what meets an SLO; a side that is None is open."""

    x_min: float | None = None
    x_max: float | None = None
    y_min: float | None = None
    y_max: float | None = None
    label: str = ""


def legend(name: str, basis: Basis) -> str:
    """How a legend names a series."""
    return f"{name} ({basis.value})"
