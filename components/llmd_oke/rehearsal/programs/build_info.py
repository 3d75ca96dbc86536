"""What Go writes into every program that it builds: the modules in it, with their versions.

The format is that of Go 1.18 and later, described in Go's package debug/buildinfo: a header of 32 bytes that begins
with a magic word, then the Go version and the list of modules, each as a length and that many bytes.
"""

import mmap
import re
from pathlib import Path

_MAGIC = b"\xff Go buildinf:"
_ALIGNMENT = 16
_HEADER = 32
_FLAGS = 15
_STRINGS_FOLLOW = 0x2
_SENTINEL = 16
_STAMP = re.compile(r"BuildRef=(v\d+\.\d+\.\d+\S*?)[\"'\s]")


def module_version(program: Path, module: str) -> str | None:
    """The version of a module inside a program; None when the program has no such module or isn't Go's.

    A program that was built from the module's own checkout knows no version: then the release that its makers stamped
    into it (`BuildRef`) counts.
    """
    text = read(program)
    for line in (text or "").splitlines():
        kind, *fields = line.split("\t")
        if kind in {"mod", "dep"} and fields[0] == module:
            return fields[1] if fields[1] != "(devel)" else _stamp(text or "")
    return None


def read(program: Path) -> str | None:
    """The list of modules and build settings, one on each line; None for a program that has none."""
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _search(content)
    except (OSError, ValueError):
        return None


def _search(content: mmap.mmap) -> str | None:
    at = content.find(_MAGIC)
    while at >= 0:
        if at % _ALIGNMENT == 0 and content[at + _FLAGS] & _STRINGS_FOLLOW:
            _, after = _string(content, at + _HEADER)
            modules, _ = _string(content, after)
            return modules[_SENTINEL:-_SENTINEL].decode(errors="replace")
        at = content.find(_MAGIC, at + 1)
    return None


def _string(content: mmap.mmap, at: int) -> tuple[bytes, int]:
    """The string at an offset, its length written as a varint before it, and the offset after it."""
    length = shift = 0
    while True:
        byte = content[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return content[at : at + length], at + length


def _stamp(text: str) -> str | None:
    match = _STAMP.search(text)
    return match[1] if match else None
