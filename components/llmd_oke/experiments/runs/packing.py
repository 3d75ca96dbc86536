"""Which deployments are up at the same time: as many as the GPUs hold, so that servers start side by side."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")


def pack(
    things: Sequence[Thing], size: Callable[[Thing], int], capacity: int, fits: Callable[[Sequence[Thing]], bool]
) -> list[list[Thing]]:
    """Groups whose sizes sum up to `capacity` at most, by first fit decreasing (at most 11/9 of the fewest groups).

    `fits` has the last word on whether things go together; each thing must go alone. Equal sizes keep their order.
    """
    groups: list[list[Thing]] = []
    for thing in sorted(things, key=size, reverse=True):
        for group in groups:
            if sum(map(size, group)) + size(thing) <= capacity and fits([*group, thing]):
                group.append(thing)
                break
        else:
            groups.append([thing])
    return groups
