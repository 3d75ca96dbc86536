"""Places of models in a cache, and the files that models are made of."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ENCODINGS = "encodings"
"""Folder of vocabularies in a cache, and prefix of their names in a bucket."""

ADAPTERS = "adapters"
"""Folder of adapters in a cache, by model and commit."""

REHEARSED_VOCABULARY = "LLMD_OKE_REHEARSED_VOCABULARY_SHA256"
"""Variable with the digest of the file that a rehearsal has in place of the real vocabulary."""

LONGEST_PART = 255
"""Bytes of a file's name, on all file systems of Linux."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to be had. `check` is how its content is judged (`sha256`, `git`, `md5`, `md5-of-parts`, or empty where
    its source says nothing to judge by), `digest` by what.
    """

    path: str
    size: int
    url: str
    check: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Listing:
    """All files of a model at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


class UnsafeNameError(Exception):
    """A name from a listing, a store or a pod that does not stay in its folder."""


def relative(name: str) -> PurePosixPath:
    """Return a file's name that somebody else chose as a path that stays below whatever folder it is put into.

    Raises:
        UnsafeNameError: it is absolute, or has `..`, `.`, an empty part, a backslash, or a character that no name has.
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
    """Return the path of a file whose name somebody else chose: below `folder`, whatever links there point to.

    Args:
        folder: the folder that the name is relative to.
        name: relative, with `/` between its parts.
        root: what links may not leave; the folder itself if left out.

    Raises:
        UnsafeNameError: the name, or a link on its way, leads elsewhere.
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
    """Place of one model in a cache."""

    cache: Path
    repository: str
    revision: str

    @property
    def _name(self) -> str:
        return "models--" + self.repository.replace("/", "--")

    @property
    def folder(self) -> Path:
        """The model's folder in Hugging Face's layout."""
        return inside(self.cache / "hub", self._name, self.cache)

    @property
    def record(self) -> Path:
        """File with the list of all that is complete: written last, read first."""
        return inside(self.cache / ".llmd-oke", f"{self._name}@{self.revision}.json", self.cache)

    @property
    def commit(self) -> str:
        """The commit that is found without naming any."""
        return (self.folder / "refs" / "main").read_text()

    @property
    def lock(self) -> Path:
        """File that is there while one program fills the model's folder."""
        return self.cache / ".llmd-oke" / f"{self._name}.lock"

    @property
    def unfinished(self) -> Path:
        """The folder of this model's files that are not verified yet, its vocabulary too: other models share that."""
        return inside(self.cache / ".llmd-oke", f"{self._name}.unfinished", self.cache)

    def snapshot(self, commit: str) -> Path:
        """Return the folder of one commit."""
        return inside(self.folder / "snapshots", commit, self.cache)

    def is_complete(self) -> bool:
        """Check that every file of the record is there with its size. Their contents were judged when they came."""
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
        """Check that files lie in the cache with their sizes. Their contents were judged when they came."""
        paths = [(inside(self.cache, file.path), file.size) for file in files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def point_to(self, commit: str) -> None:
        """Make the commit the one that is found without naming any."""
        reference = self.folder / "refs" / "main"
        if not reference.is_file() or reference.read_text() != commit:
            write_whole(reference, commit)

    def finish(self, listing: Listing) -> None:
        """Write down that all files are there."""
        self.point_to(listing.commit)
        sizes = {file.path: file.size for file in listing.files}
        write_whole(self.record, json.dumps({"commit": listing.commit, "files": sizes}, indent=1))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.urandom(16).hex()}")
    partial.write_text(text)
    partial.rename(path)
