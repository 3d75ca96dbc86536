"""How far predicted figures are from those that were seen under the same load, one by one and over many."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from llmd_oke.results.metrics import METRICS, Metric
from llmd_oke.results.row import Row


@dataclass(frozen=True)
class Compared:
    """One figure, as it was predicted and as it was seen."""

    metric: Metric
    predicted: float
    seen: float

    @property
    def error(self) -> float:
        """Predicted over seen, less one."""
        return self.predicted / self.seen - 1


def compared(names: Iterable[str], predicted: Row, seen: Row) -> Iterator[Compared]:
    """Those of the named metrics (`ttft_ms.mean`) that both rows have."""
    for metric in (METRICS[name] for name in names):
        forecast, found = metric.of(predicted), metric.of(seen)
        if forecast is not None and found:
            yield Compared(metric, forecast, found)


def mean_absolute_error(figures: Sequence[Compared]) -> float:
    """The mean of the errors without their signs (MAPE as a share), of one figure or more."""
    return fmean(abs(each.error) for each in figures)


def worst(figures: Sequence[Compared]) -> Compared:
    """The figure that is furthest off, of one or more."""
    return max(figures, key=lambda each: abs(each.error))
