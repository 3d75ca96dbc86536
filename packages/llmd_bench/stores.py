"""Stores of result files by name: a directory, or a bucket (`llmd_bench.s3`)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from llmd_base.errors import KitError
from llmd_pods.prewarm.places import UnsafeNameError, inside

from llmd_bench.files import MAX_REQUEST_BYTES, read_bytes

UNSAFE_NAME_REMEDY = "Names of results stay below their folder: look at who wrote this one, and remove it."


class FileStore(Protocol):
    """Store of files by name; names are relative paths with `/` as separator."""

    def names(self, below: str) -> list[str]:
        """Return the sorted names of all files below a directory.

        Raises:
            KitError: the store doesn't answer or refuses the request.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            KitError: the file doesn't exist, or the store doesn't answer.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file.

        Raises:
            KitError: the store refuses the file or doesn't answer.
        """
        ...


@dataclass(frozen=True)
class FolderStore:
    """Store in a directory; symbolic links in it, such as `latest`, are not followed."""

    root: Path

    def names(self, below: str) -> list[str]:
        """Return the sorted names of all files below a directory of the store."""
        folder = self._path(below) if below else self.root
        paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return sorted(str(PurePosixPath(path.relative_to(self.root))) for path in paths)

    def read(self, name: str) -> bytes:
        """Return the content of a file of the store."""
        path = self._path(name)
        if path.is_symlink():
            raise KitError(f"{path} is a link, which a history doesn't follow.")
        return read_bytes(path, MAX_REQUEST_BYTES)

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file of the store."""
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise KitError(f"{path}: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        with safe_names(str(self.root)):
            return inside(self.root, name)


@contextmanager
def safe_names(where: str) -> Generator[None]:
    """Convert an `UnsafeNameError` inside the `with` block into an error that names the store.

    Raises:
        KitError: a name leads out of its directory.
    """
    try:
        yield
    except UnsafeNameError as error:
        raise KitError(f"{where}: the name {error}.", UNSAFE_NAME_REMEDY) from error
