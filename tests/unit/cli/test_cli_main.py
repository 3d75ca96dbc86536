import errno
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from llmd_oke.cli import console
from llmd_rehearsal import cli as rehearsal_commands
from llmd_rehearsal import running_rehearsals


def test_an_interrupted_command_prints_the_word_interrupted_once(kit: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rehearsal_commands, "require_project", interrupted)
    assert kit("rehearse", "status") == (130, "", "interrupted\n")


def test_rehearse_run_leaves_the_interrupted_message_to_the_command_it_runs(kit: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running_rehearsals, "run_command", lambda *_, **__: console.INTERRUPTED)
    assert kit("rehearse", "run", "--", "llmd-oke", "bench") == (130, "", "")


@pytest.mark.parametrize("of_ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["raised", "ignored"])
def test_sigterm_ends_a_command_like_ctrl_c_with_its_own_exit_code(
    kit: Any, monkeypatch: pytest.MonkeyPatch, of_ctrl_c: Any
):
    monkeypatch.setattr(rehearsal_commands, "require_project", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGINT, of_ctrl_c)
    try:
        assert kit("rehearse", "status") == (143, "", "interrupted\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_os_error_is_reported_in_a_sentence_with_the_file(kit: Any, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied", "/some/file")

    monkeypatch.setattr(rehearsal_commands, "require_project", refused)
    assert kit("rehearse", "status") == (1, "", "error /some/file: Permission denied.\n")
    _, shown, _ = kit("rehearse", "status", "--json")
    assert json.loads(shown) == {"error": "/some/file: Permission denied.", "remedy": None}


def test_a_full_disk_is_reported_in_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        words = [sys.executable, "-m", "llmd_oke", "--help"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error No space left on device.\n")


def test_a_closed_output_pipe_is_no_error():
    words = [sys.executable, "-m", "llmd_oke", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (141, "")
