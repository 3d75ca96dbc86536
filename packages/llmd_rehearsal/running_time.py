"""Running time: seconds in which this process could run. Probes, leases and time limits of the test-bed use it, so that
none expires because the machine stood still (suspended virtual machine, stopped processes, an overcommitted
hypervisor).

A thread reads the clock four times a second. If it is more than half a second late, the process didn't run, and the
rest of the delay doesn't count. Other processes may wait for a processor while this one runs; the kernel reports that
waiting time for each thread (proc/PID/task/TID/schedstat).
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
"""Delay in seconds of the ticking thread that is considered normal; so much of each standstill counts as running time,
which never decreases.
"""

_UNMEASURED_SHARE = 0.1
"""Share of a time limit in which starvation isn't measured: to read what the kernel says of each thread, for every
probe, took half of the node agent's processor time.
"""

_T = TypeVar("_T")


class RunningTime:
    """Clock that stands still while this process can't run: a long gap between two calls of `tick`, which is called
    every quarter of a second, isn't counted. `clock` measures the seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = (clock(), 0.0)

    def tick(self) -> None:
        """Note that the process runs at this moment."""
        now_s = self._clock()
        self._state = (now_s, self._stood_still_s(now_s))

    def now(self) -> float:
        """Return the running time in seconds since an arbitrary start."""
        now_s = self._clock()
        return now_s - self._stood_still_s(now_s)

    @property
    def stood_still_s(self) -> float:
        """Seconds so far in which the process couldn't run."""
        return self._stood_still_s(self._clock())

    def _stood_still_s(self, now_s: float) -> float:
        ticked_s, before_s = self._state
        return before_s + max(0.0, now_s - ticked_s - TICK_S - MIN_S)


@cache
def of_process() -> RunningTime:
    """Return the clock of this process's running time, which a thread advances since the first call."""
    running = RunningTime()

    def tick() -> None:
        while True:
            time.sleep(TICK_S)
            running.tick()

    threading.Thread(target=tick, name="running time", daemon=True).start()
    return running


def now() -> float:
    """Return the seconds since an arbitrary start in which this process could run; replaces `time.monotonic()` for time
    limits.
    """
    return of_process().now()


class RunningLoop(asyncio.SelectorEventLoop):
    """Event loop whose timers, sleeps and timeouts don't count time in which this process couldn't run."""

    def time(self) -> float:
        """Return this process's running time in seconds, the loop's clock."""
        return now()


class Starvation:
    """Time for which threads of these processes were ready to run and waited for a processor, since the object's
    creation.
    """

    def __init__(self, pids: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._pids, self._proc = tuple(pids), proc
        self._before = self._waited_ns()

    @property
    def seconds(self) -> float:
        """Seconds for which the thread that waited longest has waited for a processor."""
        waited = self._waited_ns()
        return max((waited[thread] - ns for thread, ns in self._before.items() if thread in waited), default=0) / 1e9

    def _waited_ns(self) -> dict[Path, int]:
        waited: dict[Path, int] = {}
        for pid in self._pids:
            with suppress(OSError, IndexError):
                for thread in (self._proc / str(pid) / "task").iterdir():
                    waited[thread] = int((thread / "schedstat").read_text().split()[1])
        return waited


async def within(work: Awaitable[_T], limit_s: float, processes: Callable[[], Iterable[int]] | None = None) -> _T:
    """Return the result of `work`, which may take `limit_s` seconds in which this process could run. If `processes`
    returns process ids, time in which these processes or this one waited for a processor doesn't count either, once the
    work has taken a tenth of the limit; most work is done before, without the measurement of that time.

    Raises:
        TimeoutError: `work` took longer.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    started_s = loop.time()
    try:
        if processes and (await asyncio.wait({task}, timeout=limit_s * _UNMEASURED_SHARE))[0]:
            return task.result()
        starvation = Starvation((os.getpid(), *processes()) if processes else ())
        while (left_s := limit_s - (loop.time() - started_s) + starvation.seconds) > 0:
            if (await asyncio.wait({task}, timeout=left_s))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
