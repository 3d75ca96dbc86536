"""How far a forecast is from what was seen under the same load."""

from collections.abc import Iterator, Sequence

from llmd_oke.results.errors import Compared, compared
from llmd_oke.results.row import Basis, Row

FIGURES = ("ttft_ms.mean", "itl_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "output_tokens_per_s", "tpsg")


def compare(forecast: Row, seen: Row) -> Iterator[Compared]:
    """The figures that both have."""
    return compared(FIGURES, forecast, seen)


def beyond(figures: Sequence[Compared], forecast: Row, tolerance: float) -> list[Compared]:
    """The figures that are further off than allowed; none of bounds, which are no forecasts."""
    return [] if forecast.basis is Basis.BOUND else [each for each in figures if abs(each.error) > tolerance]
