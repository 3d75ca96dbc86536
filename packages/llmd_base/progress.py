"""Progress of long work, reported without knowing who listens.

Whoever works calls `step` when something new begins and `detail` with news of it, at least every few seconds; the
command line shows both on a terminal, a plain text log gets one line for each.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Progress(Protocol):
    """Listener to work that takes a while."""

    def step(self, text: str) -> None:
        """Note that something new begins: `building kube-apiserver v1.34.2`."""
        ...

    def detail(self, text: str) -> None:
        """Note news of the current step: `240 s, 812 of about 1900 packages`."""
        ...


class SilentProgress:
    """Listener that says nothing."""

    def step(self, text: str) -> None:
        """Ignore the step."""

    def detail(self, text: str) -> None:
        """Ignore the news."""


class PlainProgress:
    """One line per event with the seconds since the start, for logs and pipes."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, started_s: float | None = None
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._began = clock() if started_s is None else started_s

    def step(self, text: str) -> None:
        """Print the step."""
        self._print(text)

    def detail(self, text: str) -> None:
        """Print the news, indented under its step."""
        self._print(f"  {text}")

    def _print(self, text: str) -> None:
        print(f"[{self._clock() - self._began:5.0f} s] {text}", file=self._stream, flush=True)


class Ticker:
    """Limiter that passes news on at most every `interval_s` seconds, for work that has some all the time."""

    def __init__(
        self, progress: Progress, interval_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._interval_s = interval_s
        self._clock = clock
        self._told_s = clock()
        self._phase = ""

    def tell(self, text: str, phase: str = "") -> None:
        """Pass the news on, if it is time or the first news of a phase."""
        now_s = self._clock()
        if phase != self._phase or now_s - self._told_s >= self._interval_s:
            self._phase, self._told_s = phase, now_s
            self._progress.detail(text)
