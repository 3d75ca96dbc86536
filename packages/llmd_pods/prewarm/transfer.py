"""Downloading files, with progress."""

import base64
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from . import PrewarmError, say
from .places import RemoteFile, inside
from .web import Web, with_tries, without_secrets

CHUNK_BYTES = 8 * 2**20
REPORT_PERIOD_S = 10.0
GIB = 2**30
PARTIAL = ".partial"
"""End of the name of a file that is not whole."""

MIB = 2**20
USUAL_PART_MIB = (128, 64, 32, 16, 8, 5, 10, 20, 25, 50, 100, 200, 250, 256, 500, 512, 1000, 1024)
"""Sizes of parts that are tried first: 128 MiB is that of OCI's command line and SDKs, others are of S3 clients."""

MOST_PART_SIZES = 32
"""Each is another reading of the file."""

CURE = "upload them in one part, or put a SHA256SUMS (as sha256sum writes it) beside them"
MOST_NAMES = 5
_UNITS = ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Transfer:
    """Downloads files into a folder and tells how far it is."""

    def __init__(self, web: Web, cache: Path, folder: Path, name: str, files: Sequence[RemoteFile]) -> None:
        """Takes files into a folder of a cache.

        Raises:
            UnsafeNameError: a file would lie elsewhere, links in the cache included.
            PrewarmError: two files would have one name, or some have no checksum.
        """
        _refuse_unverifiable([file.path for file in files if not file.check], len(files), "have no checksum")
        self._web = web
        self._folder = folder
        self._name = name
        self._files = files
        self._targets = _targets(cache, folder, files)
        self._total_bytes = sum(file.size for file in files)
        self._present_bytes = 0
        self._unknown_part_files: list[str] = []
        self._lock = threading.Lock()
        self._start_s = time.monotonic()
        self._initial_bytes = 0

    def run(self, connections: int) -> None:
        """Downloads what is missing."""
        self._present_bytes = self._initial_bytes = sum(self._bytes_of(file) for file in self._files)
        self._check_room()
        end = threading.Event()
        reporter = threading.Thread(target=self._report_until, args=(end,), daemon=True)
        reporter.start()
        try:
            with ThreadPoolExecutor(connections) as pool:
                largest_first = sorted(self._files, key=lambda file: -file.size)
                for future in [pool.submit(self._fetch, file) for file in largest_first]:
                    future.result()
        finally:
            end.set()
            reporter.join()
        reason = "were uploaded in parts of a size that was not found"
        _refuse_unverifiable(sorted(self._unknown_part_files), len(self._files), reason)
        say(self.report())
        counts = Counter(file.check for file in self._files)
        by_check = ", ".join(f"{count} by {check}" for check, count in sorted(counts.items()))
        say(f"{self._name}: all {len(self._files)} files have the announced checksums ({by_check})")

    def report(self) -> str:
        """How far it is, in a line."""
        with self._lock:
            present = self._present_bytes
        total = self._total_bytes
        seconds = max(0.001, time.monotonic() - self._start_s)
        speed = (present - self._initial_bytes) / seconds
        forecast = f", about {(total - present) / speed:.0f} s left" if speed > 0 and present < total else ""
        share = 100 * present / total if total else 100
        return f"{self._name}: {amount(present)} of {amount(total)} ({share:.0f} %), {amount(speed)}/s{forecast}"

    def _report_until(self, end: threading.Event) -> None:
        while not end.wait(REPORT_PERIOD_S):
            say(self.report())

    def _check_room(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        room = os.statvfs(self._folder)
        free, need = room.f_bavail * room.f_frsize, self._total_bytes - self._present_bytes
        if free < need:
            raise PrewarmError(f"{need / GIB:.1f} GiB are needed in {self._folder}, {free / GIB:.1f} GiB are free")

    def _bytes_of(self, file: RemoteFile) -> int:
        target = self._targets[file.path]
        for path in (target, _partial(target)):
            if path.is_file():
                return min(path.stat().st_size, file.size)
        return 0

    def _fetch(self, file: RemoteFile) -> None:
        target = self._targets[file.path]
        if target.is_file() and target.stat().st_size == file.size:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with_tries(lambda: self._fetch_once(file, _partial(target)), without_secrets(file.url))
        if _partial(target).is_file():
            _partial(target).rename(target)

    def _fetch_once(self, file: RemoteFile, partial: Path) -> None:
        offset = partial.stat().st_size if partial.is_file() else 0
        if offset < file.size:
            self._append(file, partial, offset)
        elif not partial.is_file():
            partial.touch()
        size = partial.stat().st_size
        if size < file.size:
            raise OSError(f"the answer ended after {size} of {file.size} bytes")
        if size == file.size and has_digest(partial, file):
            return
        partial.unlink()
        self._count(-min(size, file.size))
        if size == file.size and file.check == "md5-of-parts" and offset == 0:
            self._unknown_part_files.append(file.path)
            return
        raise OSError("the content is not what was announced")

    def _append(self, file: RemoteFile, partial: Path, offset: int) -> None:
        with self._web.open(file.url, {"Range": f"bytes={offset}-"} if offset else {}) as answer:
            is_partial = answer.status == 206
            if not is_partial:
                self._count(-offset)
            with partial.open("ab" if is_partial else "wb") as out:
                while chunk := answer.read(CHUNK_BYTES):
                    out.write(chunk)
                    self._count(len(chunk))

    def _count(self, size: int) -> None:
        with self._lock:
            self._present_bytes += size


def amount(size: float) -> str:
    """Bytes for people, in the unit that fits."""
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), (1, "B"))
    return f"{size / unit:.1f} {name}"


def _targets(cache: Path, folder: Path, files: Sequence[RemoteFile]) -> dict[str, Path]:
    """Where files come to lie, by their names; the unfinished ones beside them are checked with them."""
    targets = {file.path: inside(folder, file.path, cache) for file in files}
    names = [name for file in files for name in (file.path, f"{file.path}{PARTIAL}")]
    if len(set(names)) < len(names):
        raise PrewarmError("the listing has a file twice, or one with the name of another's unfinished part")
    for file in files:
        inside(folder, f"{file.path}{PARTIAL}", cache)
    return targets


def _partial(target: Path) -> Path:
    return target.with_name(target.name + PARTIAL)


def _refuse_unverifiable(paths: Sequence[str], count: int, reason: str) -> None:
    if paths:
        names = ", ".join(paths[:MOST_NAMES]) + (", ..." if len(paths) > MOST_NAMES else "")
        raise PrewarmError(f"{len(paths)} of {count} files can't be verified, because they {reason}: {names}; {CURE}")


def has_digest(path: Path, file: RemoteFile) -> bool:
    """Whether a file has the content that its source announced. Parts have one size, all but the last."""
    if file.check != "md5-of-parts":
        return content_digest(path, file.check) == file.digest
    sizes = part_sizes(file.size, int(file.digest.rpartition("-")[2]))
    return any(digest_of_parts(path, size) == file.digest for size in sizes)


def part_sizes(size: int, parts: int) -> list[int]:
    """The sizes in bytes, whole MiB, that as many parts of a file may have had; usual ones first."""
    if parts == 1:
        return [size]
    smallest, above = -(-size // parts), -(-size // (parts - 1))
    usual = [mib * MIB for mib in USUAL_PART_MIB]
    all_sizes = range(-(-smallest // MIB) * MIB, above, MIB)
    return [part for part in dict.fromkeys([*usual, *all_sizes]) if smallest <= part < above][:MOST_PART_SIZES]


def digest_of_parts(path: Path, part_bytes: int) -> str:
    """The checksum that Object Storage gives what is uploaded in parts: the MD5 of their MD5s, and their number."""
    digests: list[bytes] = []
    with path.open("rb") as content:
        while part := _md5_of_part(content, part_bytes):
            digests.append(part)
    whole = hashlib.md5(b"".join(digests), usedforsecurity=False).digest()
    return f"{base64.b64encode(whole).decode()}-{len(digests)}"


def _md5_of_part(content: BinaryIO, part_bytes: int) -> bytes:
    """The MD5 of what comes next; empty at the end."""
    digest, rest_bytes = hashlib.md5(usedforsecurity=False), part_bytes
    while rest_bytes and (chunk := content.read(min(CHUNK_BYTES, rest_bytes))):
        digest.update(chunk)
        rest_bytes -= len(chunk)
    return digest.digest() if rest_bytes < part_bytes else b""


def content_digest(path: Path, check: str) -> str:
    """The digest of a file in the way of its source: `sha256`, `git` or `md5`."""
    header = f"blob {path.stat().st_size}\0".encode() if check == "git" else b""
    digest = hashlib.new("sha1" if check == "git" else check, header, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return base64.b64encode(digest.digest()).decode() if check == "md5" else digest.hexdigest()
