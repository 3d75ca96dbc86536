"""What a load from inside the cluster leaves in the reports: rows, requests, and the files of another tool."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.load.stage import StageResult
from llmd_oke.bench.records.lines import write_file
from llmd_oke.errors import KitError
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.prewarm.places import inside
from llmd_oke.results.files import make_folder, write_rows
from llmd_oke.results.history import ROWS_FILE, safe_names, stack_folder
from llmd_oke.results.readers import read
from llmd_oke.results.reading import Hints, Read
from llmd_oke.results.requests import FILE as REQUESTS_FILE
from llmd_oke.results.row import Row
from llmd_oke.stack.smoke import conditions

TOOL_FOLDER = "inference-perf"
"""Of the files of a tool, below a load's folder."""


@dataclass(frozen=True)
class Measured:
    """Rows, and what else is kept: requests of each stage, files of a tool by relative path."""

    rows: tuple[Row, ...]
    stages: tuple[StageResult, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Keeping:
    """The folder of a load's results; `hints` are what the files of a tool don't tell."""

    folder: Path
    hints: Hints


@dataclass(frozen=True)
class Kept:
    """The rows of a load that was kept, and what of a tool's files was not readable; `unmeasured` are the stages of
    which not all was sent, each with the reason: they have no row.
    """

    found: Read
    interrupted: bool = False
    unmeasured: tuple[str, ...] = ()


def new_folder(reports: Path, stack: str) -> Path:
    """Where a run of now is kept."""
    return reports / stack_folder(stack) / "bench" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def hints(plan: Plan, model: ModelPlan, how: Circumstances) -> Hints:
    """What the files of a tool don't tell."""
    return Hints(
        model=model.model.repository,
        gpu=plan.pools[0].shape.gpu.product,
        gpus=model.gpus,
        topology=str(model.topology),
        copies=len(model.units),
        **conditions(plan, model),
        basis=how.basis,
    )


@contextmanager
def folder_for_results(path: Path) -> Generator[None]:
    """A folder that is there before anything is measured, and goes again where nothing was put into it.

    Raises:
        KitError: it can't be made, or nothing can be written into it.
    """
    make_folder(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.rmdir()


def keep(measured: Measured, keeping: Keeping) -> Kept:
    """Writes rows, requests and files of a tool below a folder; gives all rows, those of the files too.

    Raises:
        KitError: something can't be written.
    """
    folder, found = keeping.folder, Read(measured.rows)
    try:
        if measured.files:
            _write_files(measured.files, folder / TOOL_FOLDER)
            found += read(folder / TOOL_FOLDER, keeping.hints)
        write_rows(found.rows, folder / ROWS_FILE)
        if measured.stages:
            write_file(folder / REQUESTS_FILE, *(stage.records for stage in measured.stages))
    except OSError as error:
        raise KitError(f"{error.filename or folder} can't be written: {error.strerror}") from error
    return Kept(found)


def _write_files(files: Mapping[str, str], folder: Path) -> None:
    """Writes files by their relative paths; none of them lies outside of the folder."""
    for name, text in files.items():
        with safe_names("The pod's result"):
            path = inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
