"""Files of a support archive or of a folder of logs, which may be hostile: nothing is extracted, sizes and numbers are
limited, links are not followed, and names lead to no path.
"""

import gzip
import mmap
import os
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from llmd_base.errors import KitError

Content = bytes | mmap.mmap
SourceFile = tuple[str, Content]
"""File of a support archive or of a folder of logs: its path there, and its content."""

MAX_ARCHIVE_BYTES = 256 * 2**20
"""Largest size of an archive's content; `llmd-oke support` writes 64 MiB at most."""

MAX_FILES = 20_000

MAPPED_BYTES = 64 * 2**20
"""Size in bytes from which on a log is mapped into memory instead of read; smaller ones are read, because a program
that truncates its mapped log would end this process.
"""

_SUFFIXES = (".log", ".txt", ".json", ".prom")
_WHOLE_ARCHIVE = "llmd-oke support writes another one."


class _Limited(gzip.GzipFile):
    """Decompressed content of a file that ends with an error after `MAX_ARCHIVE_BYTES`, whatever sizes it claims."""

    given = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes; none at the end.

        Raises:
            KitError: the content is too large.
        """
        part = super().read(size)
        self.given += len(part)
        if self.given > MAX_ARCHIVE_BYTES:
            raise KitError(f"{self.name} has more than {MAX_ARCHIVE_BYTES // 2**20} MiB.", _WHOLE_ARCHIVE)
        return part


def open_source(path: Path) -> Generator[SourceFile]:
    """Yield the files of a support archive (`.tar.gz`), of a folder, or a single log; each is valid until the next.
    Logs may be compressed (`.gz`).

    Raises:
        KitError: there is no such file, it is no archive, or it is damaged or too large.
    """
    if path.is_dir():
        yield from _folder(path)
    elif not path.is_file():
        raise KitError(f"{path} is no file and no folder.", "An archive of `llmd-oke support`, a log, or a folder.")
    elif path.name.endswith((".tar.gz", ".tgz")):
        yield from _archive(path)
    else:
        yield from _contents([(f"logs/{path.name}", path)])


def _archive(path: Path) -> Iterator[SourceFile]:
    try:
        with _Limited(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_FILES:
                    raise KitError(f"{path} has more than {MAX_FILES:,} files.", _WHOLE_ARCHIVE)
                content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if content is not None:
                    yield member.name.partition("/")[2], content.read(MAX_ARCHIVE_BYTES)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise KitError(f"{path} is no whole archive: {error}.", _WHOLE_ARCHIVE) from error


def _folder(path: Path) -> Iterator[SourceFile]:
    found: list[tuple[str, Path]] = []
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            file = Path(folder) / name
            if any(suffix in name for suffix in _SUFFIXES) and file.is_file() and not file.is_symlink():
                found.append((str(file.relative_to(path)), file))
        if len(found) > MAX_FILES:
            raise KitError(f"{path} has more than {MAX_FILES:,} files.", "Name a folder with the logs alone.")
    yield from _contents(found)


def _contents(files: Iterable[tuple[str, Path]]) -> Iterator[SourceFile]:
    for name, path in files:
        if path.suffix == ".gz":
            yield name.removesuffix(".gz"), _decompressed(path)
            continue
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < MAPPED_BYTES:
                yield name, file.read()
                continue
            with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content:
                yield name, content


def _decompressed(path: Path) -> bytes:
    """Return the content of a compressed log, such as kubelet's rotated ones."""
    try:
        with _Limited(path) as file:
            return file.read(MAX_ARCHIVE_BYTES + 1)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise KitError(
            f"{path} is no whole log: {error}.", "Leave it out, or decompress what there is of it."
        ) from error
