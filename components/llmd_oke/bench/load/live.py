"""What a stage looks like while it runs."""

from dataclasses import dataclass
from time import perf_counter

from llmd_oke.bench.generator.crews import Counts


@dataclass(frozen=True)
class Live:
    """One look at a running stage. Rates are of the time since the last look, achieved ones of what succeeded; they are
    in model time.

    `planned` and `offered_requests_per_s` are None where nothing says how many requests there will be.
    """

    stage: int
    stages: int
    label: str
    elapsed_s: float
    planned: int | None
    sent: int
    ended: int
    failures: int
    in_flight: int
    offered_requests_per_s: float | None
    achieved_requests_per_s: float
    output_tokens_per_s: float


class Meter:
    """Turns counts into rates."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self._looked_s = perf_counter()
        self._ended = 0
        self._tokens = 0

    def rates(self, counts: Counts, ended: int) -> tuple[float, float]:
        """Requests that ended and tokens that came since the last look, per second of model time."""
        now_s = perf_counter()
        passed_s = max(now_s - self._looked_s, 1e-3) / self._time_scale
        rates = (ended - self._ended) / passed_s, max(counts.tokens - self._tokens, 0) / passed_s
        self._looked_s, self._ended, self._tokens = now_s, ended, counts.tokens
        return rates
