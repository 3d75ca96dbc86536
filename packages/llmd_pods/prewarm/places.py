"""Paths of models in a cache, listings of their files, and checks of file names from outside."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ENCODINGS = "encodings"
"""Directory of vocabularies in a cache, and prefix of their names in a bucket."""

ADAPTERS = "adapters"
"""Directory of adapters in a cache, by model and commit."""

REHEARSED_VOCABULARY = "LLMD_OKE_REHEARSED_VOCABULARY_SHA256"
"""Environment variable with the SHA-256 of the file that replaces the real vocabulary in a rehearsal."""

LONGEST_PART = 255
"""Maximum length of a file name in bytes, on all file systems of Linux."""


@dataclass(frozen=True)
class RemoteFile:
    """File to download. `check` is the method of verification (`sha256`, `git`, `md5`, `md5-of-parts`, or empty if the
    source has no checksum), `digest` the expected value.
    """

    path: str
    size: int
    url: str
    check: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Listing:
    """Files of a model at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


class UnsafeNameError(Exception):
    """Error for a file name from outside that leads out of its directory."""


def relative(name: str) -> PurePosixPath:
    """Return a file name from outside as a relative path that stays below its directory.

    Raises:
        UnsafeNameError: the name is absolute, has `..`, `.`, an empty or a too long part, a backslash, or a control
            character.
    """
    parts = name.split("/")
    reasons = {
        "is absolute": name.startswith("/"),
        "leaves its folder": ".." in parts,
        "has an empty part or a `.`": bool({"", "."} & set(parts)),
        "has a backslash": "\\" in name,
        "has a control character": not name.isprintable(),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is None and max(len(part.encode()) for part in parts) > LONGEST_PART:
        reason = f"has a part of more than {LONGEST_PART} bytes"
    if reason:
        raise UnsafeNameError(f"{name[:LONGEST_PART]!r} {reason}")
    return PurePosixPath(name)


def inside(folder: Path, name: str, root: Path | None = None) -> Path:
    """Return the path of a file below `folder`, whose name comes from outside.

    Args:
        folder: directory that the name is relative to.
        name: relative path with `/` as separator.
        root: directory that symbolic links may not lead out of; `folder` by default.

    Raises:
        UnsafeNameError: the name, or a symbolic link on the path, leads out of the directory.
    """
    path = folder / relative(name)
    limit = (root or folder).resolve()
    try:
        stays = path.resolve().is_relative_to(limit)
    except RuntimeError:  # links in a circle
        stays = False
    if not stays:
        raise UnsafeNameError(f"{name!r} leaves {root or folder} by a link")
    return path


@dataclass(frozen=True)
class CacheFolder:
    """Paths of one model's files in a cache of weights, in the layout of Hugging Face's cache."""

    cache: Path
    repository: str
    revision: str

    @property
    def _name(self) -> str:
        return "models--" + self.repository.replace("/", "--")

    @property
    def folder(self) -> Path:
        """Directory of the model in the cache, in Hugging Face's layout."""
        return inside(self.cache / "hub", self._name, self.cache)

    @property
    def record(self) -> Path:
        """File with commit, names and sizes of a complete model; written last, read first."""
        return inside(self.cache / ".llmd-oke", f"{self._name}@{self.revision}.json", self.cache)

    @property
    def commit(self) -> str:
        """Commit that `refs/main` points to, the default for programs that name no revision."""
        return (self.folder / "refs" / "main").read_text()

    @property
    def lock(self) -> Path:
        """File that exists while a program fills the model's directory."""
        return self.cache / ".llmd-oke" / f"{self._name}.lock"

    @property
    def unfinished(self) -> Path:
        """Directory of the model's files that aren't verified yet, including its vocabulary, whose final directory is
        shared with other models.
        """
        return inside(self.cache / ".llmd-oke", f"{self._name}.unfinished", self.cache)

    def snapshot(self, commit: str) -> Path:
        """Return the directory with the model's files at one commit."""
        return inside(self.folder / "snapshots", commit, self.cache)

    def is_complete(self) -> bool:
        """Return whether every recorded file of the model exists with its recorded size, and if so, point `refs/main`
        to the recorded commit. Contents are not read, since each file was verified after its download.
        """
        try:
            record = json.loads(self.record.read_text())
            folder = self.snapshot(record["commit"])
            sizes = {inside(folder, path, self.cache): size for path, size in record["files"].items()}
            whole = all(path.stat().st_size == size for path, size in sizes.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UnsafeNameError):
            return False
        if whole:
            self.point_to(record["commit"])
        return whole

    def has(self, files: Sequence[RemoteFile]) -> bool:
        """Return whether the files exist in the cache with the listed sizes; contents are not read, since each file was
        verified after its download.
        """
        paths = [(inside(self.cache, file.path), file.size) for file in files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def point_to(self, commit: str) -> None:
        """Point the model's `refs/main` to the commit, the default for programs that name no revision."""
        reference = self.folder / "refs" / "main"
        if not reference.is_file() or reference.read_text() != commit:
            write_whole(reference, commit)

    def finish(self, listing: Listing) -> None:
        """Record in the cache that all files of the listing are complete, which later starts of the program rely on."""
        self.point_to(listing.commit)
        sizes = {file.path: file.size for file in listing.files}
        write_whole(self.record, json.dumps({"commit": listing.commit, "files": sizes}, indent=1))


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.urandom(16).hex()}")
    partial.write_text(text)
    partial.rename(path)
