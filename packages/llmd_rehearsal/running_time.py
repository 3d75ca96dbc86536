"""Time in which this process ran. Probes, leases and limits of the test-bed go by it, so that nothing ends because the
machine stood still: a suspended virtual machine, stopped processes, a hypervisor that took the processors.

A thread looks at the clock four times a second. Where it comes more than half a second too late, the process did not
run, and the rest of what it missed does not count. Programs that this process waits for may be starved while it is not:
how long one of their threads waited for a processor is the kernel's own figure (proc/PID/task/TID/schedstat).
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

TICK_S = 0.25
MIN_S = 0.5
"""By so much a thread may be late that runs; so much of each standstill counts, and time never goes back."""

_T = TypeVar("_T")


class RunningTime:
    """Seconds in which whoever calls `tick` each quarter of a second did so; `clock` gives those that passed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = (clock(), 0.0)

    def tick(self) -> None:
        """Say that the process runs."""
        now_s = self._clock()
        self._state = (now_s, self._stood_still_s(now_s))

    def now(self) -> float:
        """Seconds, from any point in time, without those that nobody ticked in."""
        now_s = self._clock()
        return now_s - self._stood_still_s(now_s)

    @property
    def stood_still_s(self) -> float:
        """Seconds that did not count so far."""
        return self._stood_still_s(self._clock())

    def _stood_still_s(self, now_s: float) -> float:
        ticked_s, before_s = self._state
        return before_s + max(0.0, now_s - ticked_s - TICK_S - MIN_S)


@cache
def of_process() -> RunningTime:
    """The running time of this process, which a thread keeps from the first call on."""
    running = RunningTime()

    def tick() -> None:
        while True:
            time.sleep(TICK_S)
            running.tick()

    threading.Thread(target=tick, name="running time", daemon=True).start()
    return running


def now() -> float:
    """Seconds in which this process ran, from any point in time; stands in for `time.monotonic()` in limits."""
    return of_process().now()


class RunningLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers, sleeps and time-outs go by running time."""

    def time(self) -> float:
        """Seconds in which this process ran."""
        return now()


class Starvation:
    """Time for which threads of some processes were ready to run and got no processor, since this object was made."""

    def __init__(self, pids: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._pids, self._proc = tuple(pids), proc
        self._before = self._waited_ns()

    @property
    def seconds(self) -> float:
        """Seconds of the thread that waited longest."""
        waited = self._waited_ns()
        return max((waited[thread] - ns for thread, ns in self._before.items() if thread in waited), default=0) / 1e9

    def _waited_ns(self) -> dict[Path, int]:
        waited: dict[Path, int] = {}
        for pid in self._pids:
            with suppress(OSError, IndexError):
                for thread in (self._proc / str(pid) / "task").iterdir():
                    waited[thread] = int((thread / "schedstat").read_text().split()[1])
        return waited


async def within(work: Awaitable[_T], limit_s: float, *pids: int) -> _T:
    """The result of `work`, which may take `limit_s` of running time. Where processes are named that work on it, the
    time in which they or this one were starved doesn't count either.

    Raises:
        TimeoutError: it took longer.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    started_s, starvation = loop.time(), Starvation((os.getpid(), *pids) if pids else ())
    try:
        while (left_s := limit_s - (loop.time() - started_s) + starvation.seconds) > 0:
            if (await asyncio.wait({task}, timeout=left_s))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
