"""What happens when: the events of one simulation, in order of time."""

import heapq
from collections.abc import Callable
from typing import Any


class Calendar:
    """Planned calls. Those of one moment come in the order in which they were planned, so that runs repeat exactly."""

    __slots__ = ("_heap", "_order", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call with that argument at a time that isn't past."""
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, call, argument))

    def run(self) -> None:
        """Let time pass until nothing is planned any more."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            self.now_s, _, call, argument = pop(heap)
            call(argument)
