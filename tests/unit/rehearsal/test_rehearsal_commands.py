"""Commands inside a rehearsal, and Ctrl-C."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.world import World


@pytest.fixture(autouse=True)
def interrupted_inside(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C is pressed while the command runs, here in no namespace."""

    @contextlib.contextmanager
    def process_inside(*_: Any, **__: Any) -> Iterator[subprocess.Popen[str]]:
        command = subprocess.Popen(["sleep", "1000"], text=True, start_new_session=True)
        with command as process, monkeypatch.context() as pressed:
            pressed.setattr(process, "wait", _press)
            try:
                yield process
            finally:
                process.kill()

    monkeypatch.setattr(World, "process_inside", process_inside)


def _press() -> int:
    raise KeyboardInterrupt


def test_an_interruptible_command_ends_with_the_exit_code_of_ctrl_c(tmp_path: Path):
    assert rehearsal.run_command(tmp_path, "s", ["sleep", "1000"], interruptible=True) == 130


def test_ctrl_c_ends_what_runs_any_other_command(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        rehearsal.run_command(tmp_path, "s", ["sleep", "1000"])


def test_policies_that_the_machine_cannot_enforce_are_among_what_is_not_real(tmp_path: Path):
    assert rehearsal.unpoliced(tmp_path) == ()
    (tmp_path / "network-policies").write_text("")
    assert rehearsal.unpoliced(tmp_path) == ()
    (tmp_path / "network-policies").write_text("nf_tables: Protocol not supported")
    (told,) = rehearsal.unpoliced(tmp_path)
    assert told.startswith("NetworkPolicies (declared; not enforced")
    assert "nf_tables: Protocol not supported" in told
