"""`llmd-oke` in the tests' own process, and a script in the place of the Pulumi CLI."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from llmd_oke.cli import main


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line with these words; return its exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llmd-oke", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capfd.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def put_pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a script into the test's folder, which is the Pulumi CLI on PATH."""

    def put(script: str) -> None:
        (tmp_path / "pulumi").write_text(script)
        (tmp_path / "pulumi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put
