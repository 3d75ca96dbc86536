"""A folder of rendered files, written anew each time: files that it didn't write are never changed or removed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llmd_pods.errors import KitError

RECORD = ".llmd-oke-render.json"
"""Names the files that were written."""

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\.yaml")


@dataclass(frozen=True)
class FolderChanges:
    """What was done to a folder, by names of files."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]


def write_folder(folder: Path, files: Mapping[str, str]) -> FolderChanges:
    """Makes a folder hold these files, and none that an earlier call has written and that is no longer among them.

    The record names files before they are there and until they are gone, so that a call that was interrupted is
    continued by the next one.

    Raises:
        KitError: a file of such a name is there that was not written by an earlier call, or the record can't be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = _recorded(folder)
    if foreign := sorted(name for name in files if name not in before and (folder / name).exists()):
        remedy = "Render into an empty folder, or remove them."
        raise KitError(f"{folder} has files that `llmd-oke render` did not write: {', '.join(foreign)}.", remedy)
    _record(folder, before | files.keys())
    changed = [name for name, text in files.items() if not _is(folder / name, text)]
    for name in changed:
        _write(folder / name, files[name])
    removed = sorted(before - files.keys())
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    _record(folder, files.keys())
    unchanged = files.keys() - set(changed)
    return FolderChanges(tuple(sorted(changed)), tuple(sorted(unchanged)), tuple(removed))


def _recorded(folder: Path) -> set[str]:
    path = folder / RECORD
    if not path.exists():
        return set()
    try:
        value: Any = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError):
        value = None
    names = cast("dict[str, Any]", value).get("files") if isinstance(value, dict) else None
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in cast("list[Any]", names)
    ):
        raise KitError(f"{path} doesn't name the files that were written.", "Render into an empty folder.")
    return set(cast("list[str]", names))


def _record(folder: Path, names: Iterable[str]) -> None:
    text = json.dumps({"files": sorted(names)}, indent=1)
    if not _is(folder / RECORD, text):
        _write(folder / RECORD, text)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()


def _write(path: Path, text: str) -> None:
    """A reader finds the file whole; a link is replaced, not followed."""
    unfinished = path.with_name(f".{path.name.removeprefix('.')}.unfinished")
    unfinished.unlink(missing_ok=True)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
