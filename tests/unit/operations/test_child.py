"""How a program that is waited for hears of SIGTERM, and of Ctrl-C."""

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest
from llmd_oke.operations import child

PROGRAM = """
import os, signal
from llmd_oke.operations import child
with child._witness() as witness:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    print(child._lives_on(witness))
"""


class Process:
    """Signals come to this process while it is waited for, a look later each, and it ends when all have come."""

    returncode = 0

    def __init__(self, *signals: int) -> None:
        self._signals = list(signals)
        self.told: list[int] = []

    def communicate(self, timeout: float) -> tuple[str, str]:
        if not self._signals:
            return "said", ""
        signal.raise_signal(self._signals.pop(0))
        raise subprocess.TimeoutExpired("program", timeout)

    def send_signal(self, number: int) -> None:
        self.told.append(number)


@pytest.fixture(autouse=True)
def handled() -> Generator[list[int]]:
    """Signals that are handled as they were before."""
    found: list[int] = []
    before = {each: signal.signal(each, lambda number, _: found.append(number)) for each in (TERM, INT)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


TERM, INT = signal.SIGTERM, signal.SIGINT


def waited_for(monkeypatch: pytest.MonkeyPatch, *signals: int, alone: bool = True) -> Process:
    """A process whose signals came to this process alone, or to all of its group."""
    monkeypatch.setattr(child, "_witness", nullcontext)
    monkeypatch.setattr(child, "_lives_on", lambda _: alone)
    process: Any = Process(*signals)
    child.to_its_end(lambda: process)
    return process


@pytest.mark.parametrize("signals", [(TERM,), (INT,), (TERM, TERM), (TERM, INT)])
def test_a_child_is_told_once(monkeypatch: pytest.MonkeyPatch, signals: tuple[int, ...]):
    assert waited_for(monkeypatch, *signals).told == [signals[0]]


def test_a_child_that_heard_it_with_its_group_is_not_told_again(monkeypatch: pytest.MonkeyPatch):
    assert waited_for(monkeypatch, TERM, TERM, alone=False).told == []


def test_signals_are_handled_once_it_has_ended(monkeypatch: pytest.MonkeyPatch, handled: list[int]):
    waited_for(monkeypatch, INT, TERM)
    assert handled == [TERM]


def test_a_signal_that_comes_before_it_runs_is_passed_on_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child, "_witness", nullcontext)
    monkeypatch.setattr(child, "_lives_on", lambda _: True)
    process: Any = Process(INT)

    def start() -> Any:
        signal.raise_signal(TERM)
        return process

    child.to_its_end(start)
    assert process.told == [TERM]


def test_a_program_that_says_nothing_for_long_loses_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child, "LOOK_S", 0.001)
    words = [sys.executable, "-c", "print('output'); import sys; sys.exit(3)"]
    assert child.to_its_end(lambda: subprocess.Popen(words, stdout=subprocess.PIPE, text=True)) == (3, "output\n", "")


def test_a_signal_to_the_group_is_seen():
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, check=False, start_new_session=True, timeout=30)
    assert done.stdout == "False\n", done.stderr
