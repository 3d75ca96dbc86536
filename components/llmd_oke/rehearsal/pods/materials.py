"""Puts a volume's files on disk so that readers see either all old or all new ones, as a kubelet does."""

import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from llmd_oke.rehearsal.pods.volumes import File

_versions = count(1)


def write_files(folder: Path, files: Mapping[str, File]) -> None:
    """Make `folder` hold exactly `files`: a new generation is written beside the old and one link swapped."""
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / "..data"
    old = folder / current.readlink() if current.is_symlink() else None
    new = folder / f"..{os.getpid()}-{next(_versions)}"
    for path, file in files.items():
        _write(new / path, file)
    new.mkdir(exist_ok=True)
    _swap(current, Path(new.name))
    _link_names(folder, {path.partition("/")[0] for path in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(file.mode)


def _swap(link: Path, target: Path) -> None:
    fresh = link.with_name("..data_new")
    fresh.symlink_to(target)
    fresh.replace(link)


def _link_names(folder: Path, names: set[str]) -> None:
    present = {entry.name for entry in folder.iterdir() if not entry.name.startswith("..")}
    for name in names - present:
        (folder / name).symlink_to(Path("..data") / name)
    for name in present - names:
        (folder / name).unlink()
