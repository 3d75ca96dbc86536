"""When requests are sent."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each of whom sends the next request when the answer to the last one has ended."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed:{self.concurrency}"


@dataclass(frozen=True)
class ConstantRate:
    """Requests at even intervals, whether earlier ones have been answered or not."""

    requests_per_s: float

    def __str__(self) -> str:
        return f"constant:{self.requests_per_s:g}"


@dataclass(frozen=True)
class PoissonRate:
    """Requests of independent users: gaps drawn from an exponential distribution."""

    requests_per_s: float
    seed: int = 0

    def __str__(self) -> str:
        return f"poisson:{self.requests_per_s:g}"


@dataclass(frozen=True)
class TraceEntry:
    """One recorded request: seconds after the first one, and its lengths where the trace tells them."""

    at_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Trace:
    """Requests at recorded times, in ascending order; its lengths, where it has some, go before the workload's."""

    entries: tuple[TraceEntry, ...]
    name: str = "trace"

    def __str__(self) -> str:
        return f"trace:{self.name}"


OpenLoop = ConstantRate | PoissonRate | Trace
LoadShape = ClosedLoop | OpenLoop


def arrivals_s(shape: OpenLoop) -> Iterator[float]:
    """Moments at which requests of an open loop are sent, in seconds of model time after its start.

    Only a trace ends.
    """
    if isinstance(shape, Trace):
        return (entry.at_s for entry in shape.entries)
    if isinstance(shape, ConstantRate):
        return (count / shape.requests_per_s for count in itertools.count())
    random = Random(shape.seed)  # noqa: S311 - load, not secrets
    return itertools.accumulate((random.expovariate(shape.requests_per_s) for _ in itertools.count()), initial=0.0)
