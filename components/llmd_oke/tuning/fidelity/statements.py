"""Published statements about throughput, which give a range at a speed and no row, against the event simulation."""

from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke.progress import Progress
from llmd_oke.results.row import Basis
from llmd_oke.tuning.proving.checks import Outcome, check_findings
from llmd_oke.tuning.proving.findings import Sweep, Throughput, published_findings
from llmd_oke.tuning.search.asking import known_shape


@dataclass(frozen=True)
class Statement:
    """A statement at one point: what is simulated there, and how far that is outside of the published range."""

    text: str
    source: str
    at: str
    published: tuple[float | None, float | None]
    simulated: float | None
    basis: Basis

    @property
    def error(self) -> float | None:
        """Distance to the nearer end of the range, as a share of it; 0 within, None where it is not reached."""
        if self.simulated is None:
            return None
        least, most = self.published
        if least is not None and self.simulated < least:
            return self.simulated / least - 1
        return self.simulated / most - 1 if most is not None and self.simulated > most else 0.0


def statements(model: str, gpu: str, progress: Progress | None = None) -> tuple[Statement, ...]:
    """The statements about a model on a GPU; some seconds of simulation with the kit's own latency figures."""
    found = published_findings()
    asked = tuple(
        finding
        for finding in found.findings
        if isinstance(finding.evaluate, Throughput) and _is_of(found.sweeps[finding.evaluate.sweep], model, gpu)
    )
    return tuple(_statements(check_findings(found.model_copy(update={"findings": asked}), progress)))


def _is_of(sweep: Sweep, model: str, gpu: str) -> bool:
    return (sweep.model, known_shape(sweep.shape).gpu.product) == (model, gpu)


def _statements(outcomes: list[Outcome]) -> Iterator[Statement]:
    for each in outcomes:
        asked = each.finding.evaluate
        if isinstance(asked, Throughput):
            at = f"{each.at:g} {each.unit}"
            yield Statement(each.finding.statement, each.finding.source, at, asked.published, each.value, each.basis)
