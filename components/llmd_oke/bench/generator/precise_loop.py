"""An event loop whose timers are precise.

asyncio rounds waits up to whole milliseconds, because epoll counts in these. `select` waits in microseconds, and the
epoll object itself can be waited for with it.
"""

import asyncio
import selectors
from select import select

_MAX_SELECT_FD = 1024


class PreciseSelector(selectors.EpollSelector):
    """Waits as long as it was asked to, to some ten microseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready within `timeout` seconds."""
        if timeout is not None and timeout > 0 and self.fileno() < _MAX_SELECT_FD:
            select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for one thread."""
    return asyncio.SelectorEventLoop(PreciseSelector())
