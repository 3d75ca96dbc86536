"""How a program that is waited for hears of SIGTERM, and of Ctrl-C."""

import signal
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from llmd_oke.errors import Terminated
from llmd_oke.operations import child

PROGRAM = """
import os, signal
from llmd_oke.operations import child
with child._witness() as witness:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    print(witness.wait())
"""


class Process:
    """Waiting for it is interrupted as often as there are interrupts."""

    def __init__(self, *interrupts: BaseException) -> None:
        self._interrupts = list(interrupts)
        self.told = 0

    def communicate(self) -> tuple[str, str]:
        if self._interrupts:
            raise self._interrupts.pop()
        return "said", ""

    def terminate(self) -> None:
        self.told += 1


class Witness:
    def __init__(self, status: int | None) -> None:
        self._status = status

    def poll(self) -> int | None:
        return self._status


@pytest.mark.parametrize(
    ("interrupts", "witness", "told"),
    [
        ([Terminated()], None, 1),
        ([Terminated(), Terminated()], None, 1),
        ([Terminated()], -signal.SIGTERM, 0),
        ([KeyboardInterrupt()], -signal.SIGINT, 0),
        ([KeyboardInterrupt()], None, 0),
    ],
)
def test_a_child_is_told_of_sigterm_once_unless_its_group_was(
    monkeypatch: pytest.MonkeyPatch, interrupts: list[BaseException], witness: int | None, told: int
):
    monkeypatch.setattr(child, "_witness", lambda: nullcontext(Witness(witness)))
    process: Any = Process(*interrupts)
    with pytest.raises(type(interrupts[0])):
        child.to_its_end(process)
    assert process.told == told


def test_a_signal_to_the_group_is_seen():
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, check=False, start_new_session=True, timeout=30)
    assert done.stdout == f"{-signal.SIGTERM}\n", done.stderr
