"""How requests arrive, and how long they are."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each of whom sends the next request when the last one is answered."""

    concurrency: int


@dataclass(frozen=True)
class ConstantRate:
    """Requests at even intervals."""

    requests_per_s: float


@dataclass(frozen=True)
class PoissonRate:
    """Requests of independent users: exponential gaps."""

    requests_per_s: float


@dataclass(frozen=True)
class RecordedTimes:
    """Requests at recorded moments, ascending, in seconds after the start."""

    times_s: Sequence[float]


Arrivals = ClosedLoop | ConstantRate | PoissonRate | RecordedTimes


@dataclass(frozen=True)
class RequestClass:
    """Requests of one size. Of `input_tokens`, `cached_tokens` are found in the prefix cache of any prefill server, as
    far as they fill its blocks; all of them are there where a decode benchmark fills prompts in.
    """

    input_tokens: int
    output_tokens: int
    weight: float = 1.0
    cached_tokens: int = 0
    prefix_tokens: int = 0
    """Tokens that prompts begin with and share with others of one of `prefixes` groups, each as likely. A server has
    them once it has computed such a prompt, and never loses them; `cached_tokens` are on every server."""
    prefixes: int = 0


Workload = Sequence[RequestClass]
"""The sizes of requests: drawn by weight, or one after the other where they arrive at recorded moments."""


def arrival_times_s(arrivals: ConstantRate | PoissonRate | RecordedTimes, random: Random) -> Iterator[float]:
    """Moments at which requests of an open loop arrive; without end, unless recorded."""
    if isinstance(arrivals, RecordedTimes):
        return iter(arrivals.times_s)
    if isinstance(arrivals, ConstantRate):
        return (count / arrivals.requests_per_s for count in itertools.count())
    return itertools.accumulate(random.expovariate(arrivals.requests_per_s) for _ in itertools.count())


def sizes(workload: Workload, arrivals: Arrivals, random: Random) -> Iterator[RequestClass]:
    """The size of each request in the order of arrival, without end."""
    if isinstance(arrivals, RecordedTimes) or len(workload) == 1:
        return itertools.cycle(workload)
    weights = [each.weight for each in workload]
    return itertools.chain.from_iterable(random.choices(workload, weights, k=1000) for _ in itertools.count())
