"""Which server gets the next request."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from random import Random

from llmd_oke.tuning.simulation.deployment import Policy
from llmd_oke.tuning.simulation.engine import Engine

Pick = Callable[[Sequence[Engine]], Engine]


def picker(policy: Policy, random: Random) -> Pick:
    """The choice that a policy makes among servers; it sees their state as it is now, without delay."""
    if policy == "random":
        return lambda engines: engines[int(random.random() * len(engines))]
    load: Callable[[Engine], int] = attrgetter("waiting" if policy == "queue" else "assigned")

    def least(engines: Sequence[Engine]) -> Engine:
        if len(engines) == 1:
            return engines[0]
        loads = list(map(load, engines))
        fewest = min(loads)
        best = [engine for engine, count in zip(engines, loads, strict=True) if count == fewest]
        return best[int(random.random() * len(best))]

    return least
