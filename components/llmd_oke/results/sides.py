"""From what a user names to what is compared: files, folders, or runs of a history."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.results.comparison import Side
from llmd_oke.results.history import FolderStore, Store, find, is_reference
from llmd_oke.results.readers import read
from llmd_oke.results.reading import Hints, Read, Rejected
from llmd_oke.results.requests import FILE, Latencies
from llmd_oke.results.row import Basis

MOST_ROWS = 20_000


@dataclass(frozen=True)
class Loaded:
    """A side with what was not readable, and a way to its single requests, which are large."""

    side: Side
    rejected: tuple[Rejected, ...] = ()
    latencies: Callable[[], Latencies] = field(default=Latencies, repr=False)

    @property
    def basis(self) -> Basis:
        """What its figures are, at worst."""
        return max(self.side.bases, key=list(Basis).index)


def load_side(name: str, store: Store, hints: Hints) -> Loaded:
    """A side by the name of a file, a folder, or a run of the history (`dev@latest`).

    Raises:
        KitError: there is no such thing, or it has no rows.
    """
    path = Path(name)
    if not path.exists() and name.endswith(("@", ":")):
        raise KitError(f"{name} doesn't say which run.", f"Give {name[:-1]}@latest, {name[:-1]}@previous or another.")
    loaded = _from_history(name, store) if is_reference(name) and not path.exists() else _from_path(name, path, hints)
    if len(loaded.side.rows) > MOST_ROWS:
        raise KitError(f"{name} has {len(loaded.side.rows)} rows; {MOST_ROWS} can be compared.", "Name fewer files.")
    if not loaded.side.rows:
        reasons = "\n".join(map(str, loaded.rejected[:10]))
        raise KitError(f"{name} has no results.", reasons or None)
    return loaded


def open_store(address: str) -> Store:
    """The history at a folder or at `s3://<bucket>/<prefix>`.

    Raises:
        KitError: it can't be used.
    """
    if address.startswith("s3://"):
        from llmd_oke.results.s3 import s3_store  # noqa: PLC0415 - httpx is slow to import

        return s3_store(address, os.environ)
    return FolderStore(Path(address))


def _from_history(name: str, store: Store) -> Loaded:
    found = find(store, name)

    def latencies() -> Latencies:
        every = Latencies()
        for run in found:
            own = run.latencies()
            every.ttft_ms += own.ttft_ms
            every.itl_ms += own.itl_ms
        return every

    every = reduce(add, (run.found for run in found), Read())
    return Loaded(Side(name, every.rows), every.rejected, latencies)


def _from_path(name: str, path: Path, hints: Hints) -> Loaded:
    found = read(path, hints)

    def latencies() -> Latencies:
        every = Latencies()
        for file in sorted(path.rglob(FILE)) if path.is_dir() else [path.with_name(FILE)]:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as lines:
                    every.add(lines)
        return every

    return Loaded(Side(name, found.rows), found.rejected, latencies)
