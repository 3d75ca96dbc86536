from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with no folder of programs set."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(folder))
    monkeypatch.delenv("LLMD_OKE_PROGRAMS", raising=False)
    return folder


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH besides the system's own, to put programs in."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def script(path: Path) -> Callable[[str, str], Path]:
    """Puts a shell script on PATH."""

    def put(name: str, body: str) -> Path:
        file = path / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return file

    return put
