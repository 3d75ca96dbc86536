"""How far a forecast is from what was seen under the same load."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmd_oke.results.metrics import METRICS, Metric
from llmd_oke.results.row import Basis, Row

FIGURES = ("ttft_ms.mean", "itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "output_tokens_per_s", "tpsg")


@dataclass(frozen=True)
class Compared:
    """One figure, as it was forecast and as it was seen."""

    metric: Metric
    predicted: float
    seen: float

    @property
    def error(self) -> float:
        """Predicted over seen, less one."""
        return self.predicted / self.seen - 1


def compare(forecast: Row, seen: Row) -> Iterator[Compared]:
    """The figures that both have."""
    for metric in (METRICS[name] for name in FIGURES):
        predicted, found = metric.of(forecast), metric.of(seen)
        if predicted is not None and found:
            yield Compared(metric, predicted, found)


def beyond(compared: Sequence[Compared], forecast: Row, tolerance: float) -> list[Compared]:
    """The figures that are further off than allowed; none of bounds, which are no forecasts."""
    return [] if forecast.basis is Basis.BOUND else [each for each in compared if abs(each.error) > tolerance]
