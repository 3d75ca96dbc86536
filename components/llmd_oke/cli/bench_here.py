"""`llmd-oke bench` from this machine."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import typer
from rich.markup import escape

from llmd_oke.bench.deployment.metrics import stability
from llmd_oke.bench.generator.addresses import address_of
from llmd_oke.bench.load.checks import check
from llmd_oke.bench.load.stage import StageResult, undisturbed, unmeasured
from llmd_oke.bench.load.stages import run_stages
from llmd_oke.bench.records.lines import as_line, write_file
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.reporting.rows import stage_row
from llmd_oke.cli import bench_view, console
from llmd_oke.cli.bench_target import Subject
from llmd_oke.cli.bench_wanted import Timing, Wanted
from llmd_oke.cli.tables import Fitting
from llmd_oke.errors import KitError
from llmd_oke.results.files import make_folder, write_rows
from llmd_oke.results.row import Basis, Row


@dataclass(frozen=True)
class Files:
    """Where to keep requests and rows; None for not at all."""

    requests: Path | None
    rows: Path | None


def run(subject: Subject, wanted: Wanted, timing: Timing, processes: int, files: Files, *, as_json: bool) -> None:
    """Load, keep and show; ends with the exit code that belongs to the result.

    Raises:
        KitError: the load can't be run, or a file can't be written.
    """
    stages, conditions = wanted.stages(), wanted.conditions(timing)
    workload = wanted.workload(subject.input_tokens, subject.output_tokens)
    address_of(subject.target)
    check(stages, workload, processes)
    if files.rows:
        make_folder(files.rows.parent)
    before = subject.servers()
    with _Lines(files.requests) as lines, bench_view.Watch() as watch:
        load = run_stages(
            subject.target,
            stages,
            workload,
            limit_s=wanted.whole_limit_s(len(stages), timing.time_scale),
            processes=processes,
            on_progress=watch,
            on_records=lines,
            conditions=conditions,
        )
        results = asyncio.run(load)
    stable = stability(before, subject.servers())
    results = [undisturbed(result, stable) for result in results]
    if any(result.second_try_because for result in results) and files.requests and files.requests.is_file():
        write_file(files.requests, *(result.records for result in results))  # without those of first tries
    rows = _rows(results, subject, timing.basis, wanted.seed, workload.run)
    if as_json:
        typer.echo(_json(results, rows, timing.basis))
    else:
        console.output().print(Fitting(bench_view.table(results, timing.basis)))
    if files.rows and rows:
        write_rows(rows, files.rows)
    _tell(results, rows, files)
    short = [*unmeasured(results), *(f"{stage.name}: not begun" for stage in stages[len(results) :])]
    bench_view.show_unmeasured(short)
    _exit(results, failed=bool(short))


def _rows(results: Sequence[StageResult], subject: Subject, basis: Basis, seed: int, run: str) -> list[Row]:
    if subject.facts is None:
        return []
    whole = (result for result in results if not result.shortfall)
    return [stage_row(result, **subject.facts, basis=basis, seed=seed, run=run) for result in whole]


def _json(results: Sequence[StageResult], rows: Sequence[Row], basis: Basis) -> str:
    stages = [bench_view.summary(result) for result in results]
    dumped = [one.model_dump(mode="json", exclude_defaults=True) for one in rows]
    return json.dumps({"basis": basis, "stages": stages, "rows": dumped}, indent=2)


def _tell(results: Sequence[StageResult], rows: Sequence[Row], files: Files) -> None:
    for remark in bench_view.remarks(results):
        console.errors().print(f"[yellow]note[/] {escape(remark)}", soft_wrap=True)
    if files.rows and not rows and not any(result.shortfall for result in results):
        console.errors().print("[yellow]note[/] no rows were written: give --gpu and --gpus", soft_wrap=True)
    for name, path in (("requests", files.requests), ("rows", files.rows if rows else None)):
        if path:
            console.errors().print(f"{name}  {path}", soft_wrap=True, markup=False)


def _exit(results: Sequence[StageResult], *, failed: bool) -> None:
    if any(result.interrupted for result in results):
        raise typer.Exit(console.INTERRUPTED)
    if failed or not any(record.succeeded for result in results for record in result.records):
        raise typer.Exit(1)


class _Lines:
    """Writes requests to a file as they end; a file that can't be written any more ends the writing, not the run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> "_Lines":
        if self._path:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise KitError(f"{self._path} can't be written: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def __call__(self, stage: int, records: Sequence[RequestRecord]) -> None:
        """Write these down."""
        if self._file is None:
            return
        try:
            self._file.writelines(f"{as_line(stage, record)}\n" for record in records)
            self._file.flush()
        except OSError as error:
            self._file = None
            console.errors().print(f"[yellow]note[/] {self._path} can't be written any more: {error.strerror}")
