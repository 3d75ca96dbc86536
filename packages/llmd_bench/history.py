"""History of results: the runs of each stack, newest first, with the hashes of the configurations that they measured.

A history is a directory of reports as the benchmarks write it, or an S3-compatible bucket with the same names:
`<stack>/<time>/rows.jsonl` for smoke benchmarks (with a subdirectory per model if a stack has several) and
`<stack>/bench/<time>/rows.jsonl` for loads of `llmd-oke bench`, which may differ from each other.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Literal

from llmd_base.errors import KitError
from llmd_base.row import Basis, Row
from llmd_pods.prewarm.places import relative

from llmd_bench.comparison import Side
from llmd_bench.files import (
    REQUESTS_FILE,
    Hints,
    Latencies,
    ReadResults,
    Rejection,
    parse_rows,
)
from llmd_bench.stores import FileStore, FolderStore, safe_names

ROWS_FILE = "rows.jsonl"
"""Name of the file of rows that comparisons and the history read; a directory that contains it holds results."""

_RUN = re.compile(r"[^/]+/(?P<load>bench/)?(?P<time>\d{8}T\d{6}Z)/")
_HASH = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class StoredRun:
    """Files of one run of a stack: a smoke benchmark of all models of the stack, or the stages of a load."""

    store: FileStore
    stack: str
    time: str
    files: tuple[str, ...]
    kind: Literal["smoke", "load"] = "smoke"

    @property
    def name(self) -> str:
        """Reference to the run in commands, for example `dev:20260302T120000Z`."""
        return f"{self.stack}:{self.time}"

    @cached_property
    def found(self) -> ReadResults:
        """Result rows in the files of this benchmark run, and the lines of these files that aren't valid rows.

        Raises:
            KitError: the file store does not answer.
        """
        names = (name for name in self.files if name.endswith(f"/{ROWS_FILE}"))
        return reduce(add, (parse_rows(self.store.read(name), name) for name in names), ReadResults())

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of results in the run's files."""
        return self.found.rows

    @property
    def config_hashes(self) -> tuple[str, ...]:
        """Hashes of the deployed configurations, from the rows that have one."""
        return tuple(dict.fromkeys(row.origin.config_hash for row in self.rows if row.origin.config_hash))

    def latencies(self) -> Latencies:
        """Read the latencies of the run's single requests; empty if the run has no file of them."""
        latencies = Latencies()
        for name in self.files:
            if name.endswith(f"/{REQUESTS_FILE}"):
                latencies.add(self.store.read(name).decode(errors="replace").splitlines())
        return latencies


def stack_folder(stack: str) -> str:
    """Return the directory name of a stack's results; slashes of `organization/project/stack` become underscores."""
    return stack.replace("/", "_")


def stacks(store: FileStore) -> list[str]:
    """Return the names of the stacks that have runs in the history."""
    matches = (name for name in store.names("") if name.endswith(f"/{ROWS_FILE}") and _RUN.match(name))
    return sorted({name.split("/", 1)[0] for name in matches})


def runs(store: FileStore, stack: str, *, loads: bool = False) -> list[StoredRun]:
    """Return the runs of a stack, newest first: smoke benchmarks, and with `loads` the runs of `llmd-oke bench` too.

    Raises:
        KitError: the store does not answer.
    """
    files: dict[tuple[str, Literal["smoke", "load"]], list[str]] = {}
    for name in store.names(stack_folder(stack)):
        match = _RUN.match(name)
        if match and (loads or not match["load"]):
            files.setdefault((match["time"], "load" if match["load"] else "smoke"), []).append(name)
    whole = {key: names for key, names in files.items() if any(name.endswith(f"/{ROWS_FILE}") for name in names)}
    return [StoredRun(store, stack, time, tuple(whole[time, kind]), kind) for time, kind in sorted(whole, reverse=True)]


def find(store: FileStore, reference: str) -> list[StoredRun]:
    """Return the runs of a reference: `S:20260302T120000Z`, `S@latest`, `S@previous`, or `S@<configuration hash>`.

    A configuration hash (at least its first four digits) stands for all smoke benchmarks of that configuration, as
    repetitions of each other. A time may also stand for a load of `llmd-oke bench`; `latest` and `previous` only for
    smoke benchmarks, which all have the same load.

    Raises:
        KitError: no run matches; the message lists existing ones.
    """
    stack, mark, which = _split(reference)
    known = runs(store, stack, loads=mark == ":")
    if not known and stack in stacks(store):
        raise KitError(f"Stack {stack} has loads of `llmd-oke bench` only.", f"Name one by its time: {stack}:TIME.")
    if not known:
        names = ", ".join(stacks(store)) or "none"
        raise KitError(f"Stack {stack} has no results.", f"Stacks with results: {names}.")
    matches: list[StoredRun] = []
    if mark == ":":
        matches = [run for run in known if run.time == which]
    elif which in {"latest", "previous"}:
        matches = known[0:1] if which == "latest" else known[1:2]
    elif _HASH.fullmatch(which):
        matches = [run for run in known if any(digest.startswith(which) for digest in run.config_hashes)]
    if not matches:
        times = ", ".join(run.time for run in known[:5])
        raise KitError(f"Stack {stack} has no result {which}.", f"The newest are {times}.")
    return matches


def _split(reference: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"([^/@:]+)([@:])([^/@:]+)", reference)
    return (match.group(1), match.group(2), match.group(3)) if match else ("", "", "")


def copy_runs(source: FileStore, target: FileStore, stack: str, tell: Callable[[str], None]) -> list[StoredRun]:
    """Copy the runs of a stack that `target` lacks, call `tell` with the time of each, and return them. A run's file of
    rows is written last: an incomplete copy isn't found as a run.

    Raises:
        KitError: the stack has no runs, or a store does not answer.
    """
    known = runs(source, stack, loads=True)
    if not known:
        names = ", ".join(stacks(source)) or "none"
        raise KitError(f"Stack {stack} has no results to copy.", f"Stacks with results: {names}.")
    there = {(run.time, run.kind) for run in runs(target, stack, loads=True)}
    missing = [run for run in known if (run.time, run.kind) not in there]
    with safe_names(f"A result of {stack}"):
        for name in (name for run in missing for name in run.files):
            relative(name)
    for run in missing:
        tell(run.time)
        for name in sorted(run.files, key=lambda name: name.endswith(f"/{ROWS_FILE}")):
            target.write(name, source.read(name))
    return missing


MAX_ROWS = 20_000


@dataclass(frozen=True)
class SideResults:
    """Side of a comparison, with its rejected lines and a function that reads its single requests, which are large."""

    side: Side
    rejected: tuple[Rejection, ...] = ()
    latencies: Callable[[], Latencies] = field(default=Latencies, repr=False)

    @property
    def basis(self) -> Basis:
        """Least trusted basis of the figures on this side of a comparison. Measured ones are trusted most, calibrated
        ones less, bounds least.
        """
        return max(self.side.bases, key=list(Basis).index)


def load_side(name: str, store: FileStore, hints: Hints) -> SideResults:
    """Load a side from a file, a directory, or a run of the history (`dev@latest`).

    Raises:
        KitError: the name refers to nothing or to no rows.
    """
    path = Path(name)
    if not path.exists() and name.endswith(("@", ":")):
        raise KitError(f"{name} doesn't say which run.", f"Give {name[:-1]}@latest, {name[:-1]}@previous or another.")
    is_reference = _split(name) != ("", "", "") and not path.exists()
    loaded = _from_history(name, store) if is_reference else _from_path(name, path, hints)
    if len(loaded.side.rows) > MAX_ROWS:
        raise KitError(f"{name} has {len(loaded.side.rows)} rows; {MAX_ROWS} can be compared.", "Name fewer files.")
    if not loaded.side.rows:
        reasons = "\n".join(map(str, loaded.rejected[:10]))
        raise KitError(f"{name} has no results.", reasons or None)
    return loaded


def open_store(address: str) -> FileStore:
    """Open the history at a directory or at `s3://<bucket>/<prefix>`.

    Raises:
        KitError: the store's address or settings are invalid.
    """
    if address.startswith("s3://"):
        from llmd_bench.s3 import s3_store  # noqa: PLC0415 - needs an extra

        return s3_store(address, os.environ)
    return FolderStore(Path(address))


def _from_history(name: str, store: FileStore) -> SideResults:
    matches = find(store, name)

    def latencies() -> Latencies:
        every = Latencies()
        for run in matches:
            own = run.latencies()
            every.ttft_ms += own.ttft_ms
            every.itl_ms += own.itl_ms
        return every

    every = reduce(add, (run.found for run in matches), ReadResults())
    return SideResults(Side(name, every.rows), every.rejected, latencies)


def _from_path(name: str, path: Path, hints: Hints) -> SideResults:
    from llmd_bench.readers import read  # noqa: PLC0415 - not needed for runs of a history

    result = read(path, hints)

    def latencies() -> Latencies:
        every = Latencies()
        for file in sorted(path.rglob(REQUESTS_FILE)) if path.is_dir() else [path.with_name(REQUESTS_FILE)]:
            if file.is_file():
                with file.open(encoding="utf-8", errors="replace") as lines:
                    every.add(lines)
        return every

    return SideResults(Side(name, result.rows), result.rejected, latencies)
