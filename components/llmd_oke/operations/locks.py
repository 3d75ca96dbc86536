"""Bounded waits: for a condition that is polled, or for another program's lock on a file."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress

_PAUSE_S = 0.1
_POLL_S = 0.02


@contextlib.contextmanager
def file_lock(lock_file: Path, work: str, progress: Progress, timeout_s: float) -> Generator[None]:
    """Hold an exclusive lock on a file during the block; the kernel releases the lock when the process ends.

    `work` describes, for messages, what another holder of the lock does, such as `update the stack`.

    Raises:
        KitError: another program holds the lock for longer than `timeout_s` seconds.
    """
    with lock_file.open("w") as lock:
        for waited_s in intervals(timeout_s, _PAUSE_S):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited_s < _PAUSE_S:
                    progress.step(f"waiting for another program to {work}")
        else:
            raise KitError(f"Another program has held {lock_file} for {timeout_s:.0f} s.")
        yield


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until `condition` returns true, which is checked every 20 ms; return False if it doesn't within `timeout_s`
    seconds.
    """
    return any(condition() for _ in intervals(timeout_s, _POLL_S))


def intervals(timeout_s: float, pause_s: float) -> Iterator[float]:
    """Yield the seconds since the start, then again after each pause of `pause_s` seconds, until
    `timeout_s` is over.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < timeout_s:
        yield waited
        time.sleep(pause_s)
