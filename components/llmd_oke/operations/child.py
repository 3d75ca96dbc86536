"""A program that ends what it has begun before it ends: it is never left behind, and told only once to end."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from llmd_oke.errors import Terminated


def to_its_end(process: subprocess.Popen[str]) -> tuple[str | None, str | None]:
    """What it says until it ends, whatever interrupts the wait; an interrupt is handed on after that.

    Ctrl-C reaches it from the terminal. SIGTERM is passed on, unless all of the process group got it (`timeout`, a
    service manager): the Pulumi CLI takes a second signal for the wish to stop without saving.
    """
    interrupt: KeyboardInterrupt | None = None
    with _witness() as witness:
        while True:
            try:
                said = process.communicate()
            except KeyboardInterrupt as asked:
                if isinstance(asked, Terminated) and interrupt is None and witness.poll() is None:
                    process.terminate()
                interrupt = asked
                continue
            if interrupt:
                raise interrupt
            return said


@contextmanager
def _witness() -> Generator[subprocess.Popen[bytes]]:
    """A process of the same group, which signals to the group end, and which doesn't outlive this one."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as witness:
        try:
            yield witness
        finally:
            witness.kill()
