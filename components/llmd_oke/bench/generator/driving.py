"""When each request of a load is sent."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from llmd_oke.bench.generator.sending import Sender


@dataclass(frozen=True)
class Share:
    """Part `index` of a load that `count` generators send together."""

    index: int = 0
    count: int = 1

    def of(self, amount: int) -> int:
        """This share of things that can't be divided, such as users."""
        return amount // self.count + (self.index < amount % self.count)

    def part(self, index: int, count: int) -> "Share":
        """This share divided again."""
        return Share(self.index * count + index, self.count * count)


WHOLE = Share()

PAUSE_AFTER_FAILURE_S = 0.1
"""Before a user of a closed loop tries again: a server that refuses at once would use up all requests in a moment."""

Due = tuple[int, float]
"""A request and the moment at which it is due."""


class OpenDriver:
    """Sends requests when they are due, whether earlier ones have been answered or not."""

    def __init__(self, sender: Sender, schedule: Iterator[Due]) -> None:
        self._sender = sender
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._next = next(schedule, None)
        self._pending = 0
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Return when all answers have ended."""
        self._await_next()
        await self._done.wait()

    def stop(self) -> None:
        """Send no more."""
        self._next = None
        self._done.set()

    def _await_next(self) -> None:
        if self._next is None or max(self._next[1], perf_counter()) >= self._sender.deadline_s:
            self._next = None
            self._check_done()
            return
        index, due_s = self._next
        self._sender.prepare(index)
        wait_s = due_s - perf_counter()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._send)
        else:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._next is None:
            return
        index, due_s = self._next
        self._next = next(self._schedule, None)
        self._pending += 1
        self._sender.send(index, due_s, self._on_end)
        self._await_next()

    def _on_end(self, _: bool) -> None:
        self._pending -= 1
        self._check_done()

    def _check_done(self) -> None:
        if self._next is None and not self._pending:
            self._done.set()


class ClosedDriver:
    """A number of users, each of whom sends the next request when the last answer has ended."""

    def __init__(self, sender: Sender, indices: Iterator[int], users: int, *, stop_s: float) -> None:
        self._sender = sender
        self._indices = indices
        self._users = users
        self._stop_s = min(stop_s, sender.deadline_s)
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Return when all answers have ended."""
        await asyncio.sleep(self._sender.origin_s - perf_counter())
        for _ in range(self._users):
            self._go_on(max(self._sender.origin_s, perf_counter()))
        if self._users:
            await self._done.wait()

    def stop(self) -> None:
        """Send no more."""
        self._stop_s = 0.0
        self._done.set()

    def _go_on(self, due_s: float) -> None:
        index = next(self._indices, None) if due_s < self._stop_s else None
        if index is None:
            self._users -= 1
            if not self._users:
                self._done.set()
            return
        self._sender.send(index, due_s, self._on_end)

    def _on_end(self, succeeded: bool) -> None:
        if succeeded:
            self._go_on(perf_counter())
        else:
            self._loop.call_later(PAUSE_AFTER_FAILURE_S, lambda: self._go_on(perf_counter()))


Driver = OpenDriver | ClosedDriver
