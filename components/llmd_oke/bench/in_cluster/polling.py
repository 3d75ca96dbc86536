"""Waiting for what others write to the cluster."""

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def polled(
    ask: Callable[[], Found | None],
    limit_s: float,
    pause_s: float,
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> Found | None:
    """The first answer that is one, None if there is none in time; `pause` and `clock` are for tests."""
    deadline_s = clock() + limit_s
    while clock() < deadline_s:
        found = ask()
        if found is not None:
            return found
        pause(pause_s)
    return None
