"""Progress of long operations, reported through an interface that hides the output's form.

An operation calls `step` when a new step begins and `detail` with the current step's state, at least every few seconds.
On a terminal the command line shows both; a log gets one line for each call.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Progress(Protocol):
    """Receiver of the progress of a long operation."""

    def step(self, text: str) -> None:
        """Report that a new step begins, for example `building kube-apiserver v1.34.2`."""
        ...

    def detail(self, text: str) -> None:
        """Report the state of the current step, for example `240 s, 812 of about 1900 packages`."""
        ...


class SilentProgress:
    """Receiver of progress that prints nothing."""

    def step(self, text: str) -> None:
        """Ignore that a new step of the operation begins."""

    def detail(self, text: str) -> None:
        """Ignore the state of the operation's current step."""


class PlainProgress:
    """Receiver of progress that prints one line per call, with the seconds since the start; for logs and pipes."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, started_s: float | None = None
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._began = clock() if started_s is None else started_s

    def step(self, text: str) -> None:
        """Print that a new step of the operation begins, after the seconds since the start."""
        self._print(text)

    def detail(self, text: str) -> None:
        """Print the state of the operation's current step, indented, after the seconds since the start."""
        self._print(f"  {text}")

    def _print(self, text: str) -> None:
        # One write for each line, as builds that run at the same time report from threads of their own.
        print(f"[{self._clock() - self._began:5.0f} s] {text}\n", end="", file=self._stream, flush=True)


class Ticker:
    """Rate limiter for progress that changes often: `tell` passes it on to a `Progress` at most every `interval_s`
    seconds.
    """

    def __init__(
        self, progress: Progress, interval_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._interval_s = interval_s
        self._clock = clock
        self._told_s = clock()
        self._phase = ""

    def tell(self, text: str, phase: str = "") -> None:
        """Report the state if `interval_s` seconds have passed since the last report, or if `phase` has changed."""
        now_s = self._clock()
        if phase != self._phase or now_s - self._told_s >= self._interval_s:
            self._phase, self._told_s = phase, now_s
            self._progress.detail(text)
