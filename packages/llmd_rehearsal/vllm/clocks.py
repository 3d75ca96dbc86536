"""Clocks of the simulation's time in model seconds, which run with wall time or independently of it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_LATE_S = 0.010
_SLIP_S = 1.0
_WINDOW_S = 5.0


class Handle(Protocol):
    """Handle of a call that a clock is to make at a later time, by which the call can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call, so that the clock will not make it."""
        ...


class ModelClock(Protocol):
    """Clock of the simulation in model seconds: a simulated server takes as many of them for its work as a real one
    takes seconds.
    """

    def now(self) -> float:
        """Model seconds since the clock's start (seconds that the work so far takes on real hardware)."""
        ...

    def call_at(self, time_s: float, callback: Callable[[], None]) -> Handle:
        """Call `callback` once the clock shows `time_s` model seconds, or at once if it shows more already."""
        ...

    def resume_at(self, deadline_s: float) -> float:
        """Return the time, in model seconds, at which the engine's next step starts, after a step that was due at
        `deadline_s`.

        The result is the deadline itself, so that delays don't accumulate, or the present time if the delay is too
        long.
        """
        ...


@dataclass
class Lag:
    """Delay of the simulated engines' steps in wall seconds, which shows whether the machine keeps up with the
    simulation.

    `steps`, `late_steps` (more than 10 ms late) and `slipped_s` (wall seconds of delays over 1 s, which aren't made up
    for) only grow.
    """

    steps: int = 0
    late_steps: int = 0
    slipped_s: float = 0.0
    _window_start_s: float = 0.0
    _window_s: float = 0.0
    _window_before_s: float = 0.0

    def record(self, lag_s: float, now_s: float) -> None:
        """Record that a step of an engine ended `lag_s` wall seconds late, at the wall time `now_s`."""
        self.steps += 1
        if lag_s > _LATE_S:
            self.late_steps += 1
        if now_s - self._window_start_s > _WINDOW_S:
            self._window_start_s, self._window_before_s, self._window_s = now_s, self._window_s, 0.0
        self._window_s = max(self._window_s, lag_s)

    @property
    def recent_s(self) -> float:
        """Greatest delay of a step, in wall seconds, within the last 5 to 10 seconds."""
        return max(self._window_s, self._window_before_s)


@dataclass
class WallClock:
    """Clock of the simulation on an event loop: one model second (one second of work on real hardware) takes `scale`
    wall seconds.
    """

    loop: asyncio.AbstractEventLoop
    scale: float
    lag: Lag = field(default_factory=Lag)
    stood_still_s: Callable[[], float] = lambda: 0.0
    """Function that returns the wall seconds that the loop's clock has left out so far while the process didn't run."""
    _start_s: float = 0.0
    _left_out_s: float = 0.0

    def __post_init__(self) -> None:
        self._start_s = self.loop.time()

    def now(self) -> float:
        """Model seconds since the clock's start (seconds that the work so far takes on real hardware)."""
        return (self.loop.time() - self._start_s) / self.scale

    def call_at(self, time_s: float, callback: Callable[[], None]) -> Handle:
        """Call `callback` once the clock shows `time_s` model seconds, or at once if it shows more already."""
        return self.loop.call_at(self._start_s + time_s * self.scale, callback)

    def resume_at(self, deadline_s: float) -> float:
        """Return the deadline of an engine's step, in model seconds, or the present model time if the loop is more than
        a wall second late.
        """
        now_s = self.loop.time()
        lag_s = now_s - self._start_s - deadline_s * self.scale
        left_out_s = self.stood_still_s() - self._left_out_s
        self._left_out_s += left_out_s
        self.lag.slipped_s += left_out_s
        self.lag.record(lag_s + left_out_s, now_s)
        if lag_s < _SLIP_S:
            return deadline_s
        self.lag.slipped_s += lag_s
        return self.now()
