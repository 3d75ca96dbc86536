import json
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations import pulumi_cli
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli


def test_programs_that_pulumi_starts_find_the_kits_own_command_first_in_path():
    ended = pulumi_cli.run(["sh", "-c", "echo $PATH"], capture=True)
    assert ended.output.split(":")[0] == sysconfig.get_path("scripts")


class Counting:
    """A CLI that answers with a state that has one resource more each time that it is read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, argv: Sequence[str], capture: bool) -> CommandResult:
        if "export" in argv:
            self.read += 1
            return CommandResult(0, json.dumps({"deployment": {"resources": [{}] * self.read}}))
        return CommandResult(0, '{"steps": []}')


def test_the_pulumi_state_is_read_once_and_cached():
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", Counting())
    assert pulumi.export() == {"deployment": {"resources": [{}]}}
    pulumi.look()
    pulumi.preview()
    pulumi.outputs()
    assert len(replace(pulumi, refresh=True).resources()) == 1


CHANGES: dict[str, Callable[[PulumiCli], object]] = {
    "update": lambda pulumi: pulumi.up(yes=True),
    "destroy": lambda pulumi: pulumi.destroy(yes=True),
    "refresh": lambda pulumi: pulumi.read(["urn"]),
    "replace": lambda pulumi: pulumi.replace(["urn"]),
    "import": lambda pulumi: pulumi.import_state({}),
    "unprotect": lambda pulumi: pulumi.unprotect(["urn"]),
    "unlock": lambda pulumi: pulumi.unlock(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_pulumi_state_is_read_again_after_a_change(change: Callable[[PulumiCli], object]):
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", Counting())
    pulumi.export()
    change(pulumi)
    assert len(pulumi.resources()) == 2


def test_an_unreadable_pulumi_state_is_not_taken_for_an_empty_stack():
    pulumi = PulumiCli(Path("/p"), "prod", "pulumi", lambda *_: CommandResult(0, "{}"))
    with pytest.raises(KitError, match="state can't be read"):
        pulumi.resources()


PROGRAM = """
import os, signal
from llmd_oke.operations import pulumi_cli
with pulumi_cli._group_member() as member:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    print(pulumi_cli._is_running(member))
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
    signals: list[int] = []
    before = {item: signal.signal(item, lambda number, _: signals.append(number)) for item in (TERM, INT)}
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


TERM, INT = signal.SIGTERM, signal.SIGINT


def waited_for(
    monkeypatch: pytest.MonkeyPatch, *signals: int, alone: bool = True, at_start: int | None = None
) -> Process:
    """A process whose signals came to this process alone, or to all of its group."""
    monkeypatch.setattr(pulumi_cli, "_group_member", nullcontext)
    monkeypatch.setattr(pulumi_cli, "_is_running", lambda _: alone)
    process: Any = Process(*signals)

    def start() -> Any:
        if at_start:
            signal.raise_signal(at_start)
        return process

    pulumi_cli.run_to_end(start)
    return process


@pytest.mark.parametrize("signals", [(TERM,), (INT,), (TERM, TERM), (TERM, INT)])
def test_a_child_process_gets_only_the_first_of_many_signals(monkeypatch: pytest.MonkeyPatch, signals: tuple[int, ...]):
    assert waited_for(monkeypatch, *signals).told == [signals[0]]


def test_a_signal_is_handled_by_the_kit_after_the_child_has_ended(monkeypatch: pytest.MonkeyPatch, handled: list[int]):
    waited_for(monkeypatch, INT, TERM)
    assert handled == [TERM]


def test_a_child_process_gets_early_signals_but_none_that_its_group_got(monkeypatch: pytest.MonkeyPatch):
    assert waited_for(monkeypatch, TERM, TERM, alone=False).told == []
    assert waited_for(monkeypatch, INT, at_start=TERM).told == [TERM]


def test_output_of_a_child_process_that_is_silent_for_long_is_complete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pulumi_cli, "LOOK_S", 0.001)
    words = [sys.executable, "-c", "print('output'); import sys; sys.exit(3)"]
    ended = pulumi_cli.run_to_end(lambda: subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    assert ended == (3, "output\n", "")


def test_a_signal_sent_to_the_kits_process_group_is_detected():
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, capture_output=True, text=True, check=False, start_new_session=True, timeout=30)
    assert done.stdout == "False\n", done.stderr
