"""SIGTERM (of a service manager, a cancelled job, `timeout`) ends a command as Ctrl-C does, with its own exit code."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from llmd_oke.cli import console

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""


@dataclass
class Heeded:
    """Whether SIGTERM has come."""

    came: bool = False

    def code(self, code: int) -> int:
        """The exit code of a command that ended with this one."""
        return TERMINATED if self.came and code == console.INTERRUPTED else code


@contextmanager
def heeded() -> Generator[Heeded]:
    """Lets SIGTERM interrupt what runs in the block; children end as that ends them."""
    found = Heeded()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        found.came = True
        signal.raise_signal(signal.SIGINT)  # event loops handle Ctrl-C in a way of their own

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield found
    finally:
        signal.signal(signal.SIGTERM, before)
