"""One program at a time: locks on files, which the kernel lets go of with the process that holds them."""

import contextlib
import fcntl
from collections.abc import Generator
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.waiting import intervals

_PAUSE_S = 0.1


@contextlib.contextmanager
def exclusive(lock_file: Path, work: str, progress: Progress, timeout_s: float) -> Generator[None]:
    """Holds the lock during the block. `work` says what another holder does: `update the stack`.

    Raises:
        KitError: another program held it all through `timeout_s`.
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
