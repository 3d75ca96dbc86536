"""When requests are sent."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each of whom sends the next request when the answer to the last one has ended."""

    concurrency: int


@dataclass(frozen=True)
class ConstantRate:
    """Requests at even intervals, whether earlier ones have been answered or not."""

    requests_per_s: float


@dataclass(frozen=True)
class PoissonRate:
    """Requests of independent users: gaps drawn from an exponential distribution."""

    requests_per_s: float
    seed: int = 0


OpenLoop = ConstantRate | PoissonRate
LoadShape = ClosedLoop | OpenLoop


def arrivals_s(shape: OpenLoop) -> Iterator[float]:
    """Moments at which requests of an open loop are sent, in seconds of model time after its start; without end."""
    if isinstance(shape, ConstantRate):
        return (count / shape.requests_per_s for count in itertools.count())
    random = Random(shape.seed)  # noqa: S311 - load, not secrets
    return itertools.accumulate((random.expovariate(shape.requests_per_s) for _ in itertools.count()), initial=0.0)
