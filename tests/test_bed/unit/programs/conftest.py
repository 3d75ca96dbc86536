from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with no folder of programs set; nothing is downloaded into it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(folder))
    monkeypatch.delenv("LLMD_OKE_PROGRAMS", raising=False)
    monkeypatch.setenv("LLMD_OKE_DOWNLOADS", "none")
    return folder


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH besides the system's own, to put programs in."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def script(path: Path) -> Callable[..., Path]:
    """Put a shell script on PATH, or into another folder."""

    def put(name: str, body: str, folder: Path = path) -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return file

    return put


@pytest.fixture
def go_tool(script: Callable[..., Path]) -> Callable[[str], Path]:
    """Put a Go on PATH that does this when it is asked for more than its version."""
    return lambda body: script("go", f'[ "$1" = env ] && echo go1.26.8 && exit 0\n{body}')


@pytest.fixture
def go_program(path: Path) -> Callable[..., Path]:
    """Put a program on PATH with a list of Go modules in it, as `go build` writes it, after a false start."""

    def put(modules: str, name: str = "program") -> Path:
        text = b"s" * 16 + modules.encode() + b"e" * 16
        header = b"\xff Go buildinf:" + bytes([8, 2]) + bytes(16)
        false_start = b"\x7fELF\xff Go buildinf:"
        file = path / name
        file.write_bytes(false_start.ljust(160, b"\0") + header + _varint(8) + b"go1.26.8" + _varint(len(text)) + text)
        file.chmod(0o755)
        return file

    return put


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80, high]) if high else bytes([low])
