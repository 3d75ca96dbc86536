"""Download and verification of files, with progress."""

import base64
import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import PrewarmError, repeated, say
from .places import CacheFolder, RemoteFile, inside
from .web import CHUNK_BYTES, Web, with_tries, without_secrets

REPORT_PERIOD_S = 10.0
GIB = 2**30
MIB = 2**20
USUAL_PART_MIB = (128, 64, 32, 16, 8, 5, 10, 20, 25, 50, 100, 200, 250, 256, 500, 512, 1000, 1024)
"""Common part sizes of uploads in MiB, which are tried first: 128 MiB is the default of OCI's command line and SDKs,
the others are defaults of S3 clients.
"""

MAX_PART_SIZES = 32
"""Maximum number of part sizes that are tried; each needs another read of the file."""

CURE = "upload them in one part, or put a SHA256SUMS (as sha256sum writes it) beside them"
MAX_NAMES = 5
_UNITS = ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Download:
    """Download of files into a directory of a cache, with reports of its progress."""

    def __init__(self, web: Web, place: CacheFolder, folder: Path, name: str, files: Sequence[RemoteFile]) -> None:
        """Prepare the download of files into a directory of the cache of `place`; files that aren't verified yet are in
        its directory `unfinished`.

        Raises:
            UnsafeNameError: a file's name, or a symbolic link in the cache, leads out of the cache.
            PrewarmError: two files have one name, or some have no checksum.
        """
        _refuse_unverifiable([file.path for file in files if not file.check], len(files), "have no checksum")
        if len({file.path for file in files}) < len(files):
            raise PrewarmError("the listing has a file twice")
        self._web = web
        self._folder = folder
        self._unfinished = place.unfinished
        self._name = name
        self._files = files
        self._targets = {file.path: inside(folder, file.path, place.cache) for file in files}
        self._partials = {file.path: inside(self._unfinished, file.path, place.cache) for file in files}
        self._total_bytes = sum(file.size for file in files)
        self._unknown_part_files: list[str] = []
        self._start_s = time.monotonic()
        self._initial_bytes = 0

    def run(self, connections: int) -> None:
        """Download and verify the missing files over `connections` parallel connections.

        Raises:
            PrewarmError: the disk is too small, or a file can't be downloaded or verified.
        """
        self._initial_bytes = self._present_bytes()
        self._folder.mkdir(parents=True, exist_ok=True)
        room = os.statvfs(self._folder)
        free, need = room.f_bavail * room.f_frsize, self._total_bytes - self._initial_bytes
        if free < need:
            raise PrewarmError(f"{need / GIB:.1f} GiB are needed in {self._folder}, {free / GIB:.1f} GiB are free")
        with (
            repeated(lambda: say(self.report()), REPORT_PERIOD_S),
            ThreadPoolExecutor(connections) as pool,
        ):
            largest_first = sorted(self._files, key=lambda file: -file.size)
            for future in [pool.submit(self._fetch, file) for file in largest_first]:
                future.result()
        reason = "were uploaded in parts of a size that was not found"
        _refuse_unverifiable(sorted(self._unknown_part_files), len(self._files), reason)
        shutil.rmtree(self._unfinished, ignore_errors=True)
        say(self.report())
        counts = Counter(file.check for file in self._files)
        by_check = ", ".join(f"{count} by {check}" for check, count in sorted(counts.items()))
        say(f"{self._name}: all {len(self._files)} files have the announced checksums ({by_check})")

    def report(self) -> str:
        """Return the progress of the download as one line of text."""
        present, total = self._present_bytes(), self._total_bytes
        seconds = max(0.001, time.monotonic() - self._start_s)
        speed = max(0, present - self._initial_bytes) / seconds
        forecast = f", about {(total - present) / speed:.0f} s left" if speed > 0 and present < total else ""
        share = 100 * present / total if total else 100
        return f"{self._name}: {amount(present)} of {amount(total)} ({share:.0f} %), {amount(speed)}/s{forecast}"

    def _present_bytes(self) -> int:
        """Return the downloaded bytes of all files, including partial ones."""
        paths = ((self._targets[file.path], self._partials[file.path]) for file in self._files)
        return sum(min(max(map(_size, pair)), file.size) for pair, file in zip(paths, self._files, strict=True))

    def _fetch(self, file: RemoteFile) -> None:
        target, partial = self._targets[file.path], self._partials[file.path]
        if target.is_file() and target.stat().st_size == file.size:
            return
        for path in (target, partial):
            path.parent.mkdir(parents=True, exist_ok=True)
        with_tries(lambda: self._fetch_once(file, partial), without_secrets(file.url))
        if partial.is_file():
            partial.replace(target)

    def _fetch_once(self, file: RemoteFile, partial: Path) -> None:
        offset = _size(partial)
        if offset < file.size or offset == 0:
            self._web.download(file.url, partial, offset)
        size = partial.stat().st_size
        if size < file.size:
            raise OSError(f"the answer ended after {size} of {file.size} bytes")
        if size == file.size and has_digest(partial, file):
            return
        partial.unlink()
        if size == file.size and file.check == "md5-of-parts" and offset == 0:
            self._unknown_part_files.append(file.path)
            return
        raise OSError("the content is not what was announced")


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it doesn't exist."""
    return path.stat().st_size if path.is_file() else 0


def amount(size: float) -> str:
    """Return a number of bytes as text with a fitting unit, such as GiB."""
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), (1, "B"))
    return f"{size / unit:.1f} {name}"


def _refuse_unverifiable(paths: Sequence[str], count: int, reason: str) -> None:
    if paths:
        names = ", ".join(paths[:MAX_NAMES]) + (", ..." if len(paths) > MAX_NAMES else "")
        raise PrewarmError(f"{len(paths)} of {count} files can't be verified, because they {reason}: {names}; {CURE}")


def has_digest(path: Path, file: RemoteFile) -> bool:
    """Return whether a file has the announced checksum. For a file that was uploaded in parts, possible part sizes are
    tried.
    """
    if file.check == "md5-of-parts":
        sizes = part_sizes(file.size, int(file.digest.rpartition("-")[2]))
        return any(digest_of_parts(path, size) == file.digest for size in sizes)
    header = f"blob {path.stat().st_size}\0".encode() if file.check == "git" else b""
    digest = hashlib.new("sha1" if file.check == "git" else file.check, header, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    found = base64.b64encode(digest.digest()).decode() if file.check == "md5" else digest.hexdigest()
    return found == file.digest


def part_sizes(size: int, parts: int) -> list[int]:
    """Return the possible part sizes in bytes (whole MiB) of a file of `size` bytes in `parts` parts, common sizes
    first; all parts but the last have equal size.
    """
    if parts == 1:
        return [size]
    smallest, above = -(-size // parts), -(-size // (parts - 1))
    usual = [mib * MIB for mib in USUAL_PART_MIB]
    all_sizes = range(-(-smallest // MIB) * MIB, above, MIB)
    return [part for part in dict.fromkeys([*usual, *all_sizes]) if smallest <= part < above][:MAX_PART_SIZES]


def digest_of_parts(path: Path, part_bytes: int) -> str:
    """Return the checksum that Object Storage gives an object uploaded in parts: the MD5 of the parts' MD5s, and the
    number of parts.
    """
    digests: list[bytes] = []
    with path.open("rb") as content:
        for _ in range(0, path.stat().st_size, part_bytes):
            digest, rest_bytes = hashlib.md5(usedforsecurity=False), part_bytes
            while rest_bytes and (chunk := content.read(min(CHUNK_BYTES, rest_bytes))):
                digest.update(chunk)
                rest_bytes -= len(chunk)
            digests.append(digest.digest())
    whole = hashlib.md5(b"".join(digests), usedforsecurity=False).digest()
    return f"{base64.b64encode(whole).decode()}-{len(digests)}"
