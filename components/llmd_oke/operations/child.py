"""A program that ends what it has begun before it ends: it is never left behind, and told only once to end."""

import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

LOOK_S = 0.5
GROUP_S = 1.0
"""How long a signal to a process group may take to reach all of it: `timeout` and service managers send it to their own
child first, and to the others after that.
"""


def to_its_end(start: Callable[[], subprocess.Popen[str]]) -> tuple[int, str, str]:
    """Starts a program and waits until it ends, whatever signals come; gives its exit code, output and errors.

    Ctrl-C and SIGTERM are handled after that. The first one is passed on, unless all of the process group got it (a
    terminal, `timeout`, a service manager): the Pulumi CLI takes a second signal for the wish to stop without saving.
    Signals are for the main thread, which this has to be called from.
    """
    with _held_back() as came, _witness() as witness:
        process, told = start(), False
        while True:
            try:
                output, errors = process.communicate(timeout=LOOK_S)
                return process.returncode, output or "", errors or ""
            except subprocess.TimeoutExpired:
                if came and not told:
                    told = True
                    if _lives_on(witness):
                        process.send_signal(came[0])


@contextmanager
def _held_back() -> Generator[list[int]]:
    """Signals that come during the block. The last one is raised after it, for whoever handles it otherwise."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[-1])


@contextmanager
def _witness() -> Generator[subprocess.Popen[bytes]]:
    """A process of the same group, which signals to the group end, and which doesn't outlive this one."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as witness:
        try:
            yield witness
        finally:
            witness.kill()


def _lives_on(witness: subprocess.Popen[bytes]) -> bool:
    """Whether it was not signalled. One that was is not seen to be dead at once."""
    try:
        witness.wait(GROUP_S)
    except subprocess.TimeoutExpired:
        return True
    return False
