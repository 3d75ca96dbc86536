"""One stage of load: what it is, under which conditions, and what it came to."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from llmd_oke.bench.deployment.metrics import Stability
from llmd_oke.bench.generator.driving import WHOLE, Share
from llmd_oke.bench.records.health import Health
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.records.windows import NOTHING_TRIMMED, Trim, Window
from llmd_oke.bench.workload.shapes import LoadShape


@dataclass(frozen=True)
class Stage:
    """One load. It ends after `requests`, or once `duration_s` of model time is over, whichever comes first.

    A trace ends by itself; all other shapes need one of the two.
    """

    shape: LoadShape
    requests: int | None = None
    duration_s: float | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """What to call it."""
        return self.label or str(self.shape)


@dataclass(frozen=True)
class StageResult:
    """What a stage came to. Everything but `health`, `started` and `wall_s` is in model time.

    - `records`: every request that was sent, by index, also those outside of the window;
    - `window`: the part that counts;
    - `interrupted`: the run was ended before the stage was over;
    - `shortfall`: why it is not the load that was asked for, or None. Such a stage is no measurement: what was sent of
      it may be shown, and never becomes a row;
    - `second_try_because`: the shortfall of a first try, whose requests are not among these.
    """

    stage: Stage
    records: tuple[RequestRecord, ...] = field(repr=False)
    health: Health
    window: Window
    planned: int | None = None
    started: datetime | None = None
    wall_s: float = 0.0
    interrupted: bool = False
    shortfall: str | None = None
    second_try_because: str | None = None

    @cached_property
    def counted(self) -> tuple[RequestRecord, ...]:
        """Requests that were sent in the window: those whose latencies count."""
        return tuple(record for record in self.records if self.window.has(record))

    @property
    def requests_per_s(self) -> float:
        """Answers that ended whole in the window, per second."""
        return _rate(self.window.ended(self.records), self.window)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens that arrived in the window, per second."""
        return _rate(self.window.tokens(self.records), self.window)

    @property
    def concurrency(self) -> float:
        """Requests in flight on average in the window."""
        return self.window.in_flight(self.records)


def undisturbed(result: StageResult, stable: Stability) -> StageResult:
    """The same, as no measurement where model servers restarted meanwhile."""
    return replace(result, shortfall=result.shortfall or str(stable)) if stable.restarted else result


def unmeasured(results: Iterable[StageResult]) -> list[str]:
    """The stages that are no measurement, each with the reason."""
    return [f"{result.stage.name}: {result.shortfall}" for result in results if result.shortfall]


def sweep(
    shape: Callable[[float], LoadShape],
    values: Iterable[float],
    *,
    requests: int | None = None,
    duration_s: float | None = None,
) -> list[Stage]:
    """One stage for each value, for example of a rate: `sweep(PoissonRate, (1, 5, 10), duration_s=120)`."""
    return [Stage(shape(value), requests, duration_s) for value in values]


@dataclass(frozen=True)
class Conditions:
    """How stages are run.

    - `time_scale`: wall seconds for a second of model time, for simulated servers that run on another clock;
    - `trim`: what of each stage doesn't count;
    - `rest_s`: wall seconds between two stages;
    - `request_timeout_s`: wall seconds for one request;
    - `share`: the part of every stage that this program sends, where others send the rest at the same time;
    - `start_at`: tells when the first stage begins, in seconds of the epoch, so that several programs begin together;
      it is asked once this one is ready to send.
    """

    time_scale: float = 1.0
    trim: Trim = NOTHING_TRIMMED
    rest_s: float = 0.0
    request_timeout_s: float = 300.0
    share: Share = WHOLE
    start_at: Callable[[], Awaitable[float]] | None = None


AS_IT_IS = Conditions()
"""All of it, at once, in real time."""


def _rate(amount: float, window: Window) -> float:
    return amount / window.duration_s if window.duration_s else 0.0
