"""Waiting with a limit, for things that can only be asked again and again."""

import time
from collections.abc import Callable, Iterator

_POLL_S = 0.02


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true within the limit; it is asked every 20 ms."""
    return any(condition() for _ in intervals(timeout_s, _POLL_S))


def intervals(timeout_s: float, pause_s: float) -> Iterator[float]:
    """The seconds waited so far, again after each pause, until the limit."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < timeout_s:
        yield waited
        time.sleep(pause_s)
