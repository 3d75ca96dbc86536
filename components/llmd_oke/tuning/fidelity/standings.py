"""How a measurement stands to the latency figures that it is held against: fitted to it or not, of the same GPU and
image or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from llmd_oke.results.loads import Load, deployment
from llmd_oke.results.row import Basis, Row
from llmd_oke.tuning.servers.figures import LatencyFigures


class Standing(Enum):
    """Groups of measurements, which are never mixed; the errors of those that are `counted` speak for the figures."""

    HELD_OUT = "held out", True, "same model, GPU and image; the latency figures were not fitted to these"
    LEFT_OUT = "left out", True, "points of the fit, each predicted by a fit without its load (prefill: its TP)"
    IN_SAMPLE = "in sample", True, "the latency figures were fitted to these"
    OTHER_IMAGE = "another image", False, "same model and GPU, but another vLLM image than the figures' own"
    UNKNOWN_IMAGE = "image not told", False, "same model and GPU; which vLLM image was measured is not told"
    ASSUMED = "assumptions", False, "the simulation rests on bounds or assumptions here: no forecast"
    SET_ASIDE = "set aside", False, "points that are known not to be what they seem"
    OTHER_ACCELERATOR = "another accelerator", False, "measured on another GPU than the figures': no error of theirs"
    REHEARSED = "rehearsed only", False, "no measurement: event simulation against simulated servers of a rehearsal"

    def __init__(self, title: str, counted: bool, about: str) -> None:
        self.title = title
        self.counted = counted
        self.about = about

    @property
    def has_mean(self) -> bool:
        """Whether a mean error says anything: not over measurements of another GPU."""
        return self is not Standing.OTHER_ACCELERATOR


@dataclass(frozen=True)
class Known:
    """Latency figures, and what is known of the measurements behind them.

    `fitted` are the rows that they were fitted to, or None where that is not known: measurements of single servers are
    then taken for some of them, because errors of what a fit has seen must not pass for errors of what it has not.
    """

    figures: LatencyFigures
    fitted: tuple[Row, ...] | None
    set_aside: tuple[Row, ...] = ()

    @property
    def images(self) -> frozenset[str]:
        """The vLLM images that were measured for the figures."""
        own = {self.figures.image} if self.figures.image else {row.image for row in self.fitted or ()}
        return frozenset(image for image in own if image)

    def basis(self, row: Row) -> Basis:
        """What a simulation of the row's deployment is: bound where a role's figures are limits or assumptions."""
        sections = {"prefill": self.figures.prefill.basis, "decode": self.figures.decode.basis}
        needed = sections.values() if row.subject == "end-to-end" else [sections[row.subject]]
        return Basis.BOUND if Basis.BOUND in needed else Basis.CALIBRATED

    def standing(self, row: Row) -> Standing:
        """The group of a row."""
        if row.basis is not Basis.MEASURED:
            return Standing.REHEARSED
        if row.gpu != self.figures.gpu:
            return Standing.OTHER_ACCELERATOR
        if has_alike(self.set_aside, row):
            return Standing.SET_ASIDE
        if self.basis(row) is Basis.BOUND:
            return Standing.ASSUMED
        return Standing.IN_SAMPLE if self._may_be_fitted(row) else self._by_image(row.image)

    def _by_image(self, image: str | None) -> Standing:
        if image is None:
            return Standing.UNKNOWN_IMAGE
        return Standing.HELD_OUT if image in self.images else Standing.OTHER_IMAGE

    def _may_be_fitted(self, row: Row) -> bool:
        if self.fitted is not None:
            return has_alike(self.fitted, row)
        return row.subject != "end-to-end" and (not self.images or row.image in self.images)


def has_alike(rows: Sequence[Row], row: Row) -> bool:
    """Whether one of the rows is of the same deployment, image and load."""
    return any(other.image == row.image and alike(other, row) for other in rows)


def alike(row: Row, other: Row) -> bool:
    """Whether two rows are of the same deployment and load."""
    return Load(row, deployment(row)).same(Load(other, deployment(other)))
