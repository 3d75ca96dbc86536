"""Time for simulations that tests run: minutes of it pass in milliseconds."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from llmd_rehearsal.vllm.clocks import Handle


@dataclass
class _Planned:
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Model time that passes only when it is told to: simulations without waiting."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._order = count()
        self._planned: list[tuple[float, int, _Planned]] = []

    def now(self) -> float:
        """Model seconds since the clock's start."""
        return self._now_s

    def call_at(self, time_s: float, callback: Callable[[], None]) -> Handle:
        """Call back when `run` comes to that time."""
        planned = _Planned(callback)
        heapq.heappush(self._planned, (max(time_s, self._now_s), next(self._order), planned))
        return planned

    def resume_at(self, deadline_s: float) -> float:
        """Always the deadline: nothing is ever late."""
        return deadline_s

    def run(self, until_s: float = float("inf")) -> None:
        """Let time pass until `until_s`, or until nothing is planned any more."""
        while self._planned and self._planned[0][0] <= until_s:
            self._now_s, _, planned = heapq.heappop(self._planned)
            if planned.callback is not None:
                planned.callback()
        if until_s != float("inf"):
            self._now_s = until_s
