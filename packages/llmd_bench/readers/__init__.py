"""Readers of result files, one module for each tool; `read` detects the format of a file or directory."""

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from operator import add
from pathlib import Path

from llmd_base.documents import explain
from llmd_base.errors import KitError
from pydantic import ValidationError

from llmd_bench.files import REQUESTS_FILE, Hints, ReadResults, Rejection, scan_rows
from llmd_bench.readers import inference_perf, j_pareto, llm_d_report, vllm_bench
from llmd_bench.readers.source import SourceFile, one_row

__all__ = ["FORMATS", "Format", "read", "read_all"]


def detect_rows(source: SourceFile) -> bool:
    """Return whether the first line of a file contains the field names of a row."""
    first = source.text.lstrip().split("\n", 1)[0]
    return source.path.suffix in {".jsonl", ".csv"} and "subject" in first and "gpus_counted" in first


SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".yaml", ".yml", ".log", ".txt"})

_OF_RECORDS = frozenset({".jsonl", ".csv"})


@dataclass(frozen=True)
class Format:
    """File format of results. Formats of one `family` describe the same runs: if a directory has files of several of
    them, only those of the first format are read.
    """

    name: str
    family: str
    detect: Callable[[SourceFile], bool]
    read: Callable[[SourceFile, Hints], ReadResults]


FORMATS = (
    Format("rows of llmd-oke", "report", detect_rows, lambda source, _: scan_rows(source.path)),
    Format(
        "llm-d benchmark report 0.2",
        "report",
        partial(llm_d_report.detect, version="0.2", section="results"),
        partial(one_row, llm_d_report.row_v02),
    ),
    Format(
        "llm-d benchmark report 0.1",
        "report",
        partial(llm_d_report.detect, version="0.1", section="metrics"),
        partial(one_row, llm_d_report.row_v01),
    ),
    Format("inference-perf", "report", inference_perf.detect, partial(one_row, inference_perf.stage_row)),
    Format("vllm bench serve", "vllm", vllm_bench.detect, vllm_bench.read),
    Format("log of j-pareto", "j-pareto", j_pareto.detect_log, j_pareto.read_log),
    Format("CSV of j-pareto", "j-pareto", j_pareto.detect_csv, j_pareto.read_csv),
)


def read(path: Path, hints: Hints | None = None) -> ReadResults:
    """Read the rows of a file, or of all files below a directory, and collect rejected files and lines.

    If a directory holds the same runs in several formats, only the most detailed one is read.

    Raises:
        KitError: `path` doesn't exist, or a file is no text.
    """
    hints = hints or Hints()
    if path.is_dir():
        return _read_folder(path, hints)
    source = SourceFile(path)
    format_ = _format(source)
    if format_ is None:
        names = ", ".join(known.name for known in FORMATS)
        return ReadResults(rejected=(source.broken or source.rejected(f"is in no known format ({names})"),))
    return _read(format_, source, hints)


def read_all(paths: Iterable[Path], hints: Hints | None = None) -> ReadResults:
    """Read the rows of several files and directories, and collect rejected files and lines.

    Raises:
        KitError: a path doesn't exist, or a file is no text.
    """
    return reduce(add, (read(path, hints) for path in paths), ReadResults())


def _read(format_: Format, source: SourceFile, hints: Hints) -> ReadResults:
    """Read the rows of a file. A file with an impossible figure is rejected as a whole, since its other figures can't
    be trusted.
    """
    try:
        return format_.read(source, hints)
    except ValidationError as error:
        return ReadResults(rejected=(source.rejected(explain(error)),))
    except ArithmeticError as error:
        return ReadResults(rejected=(source.rejected(f"has figures that nothing can be computed of: {error}"),))
    except csv.Error as error:
        return ReadResults(rejected=(source.rejected(f"is no CSV that can be read: {error}"),))


def _format(source: SourceFile) -> Format | None:
    return next((known for known in FORMATS if known.detect(source)), None)


def _read_folder(folder: Path, hints: Hints) -> ReadResults:
    """Read all files below a directory. Symbolic links to directories aren't followed, so that `latest` isn't a second
    run; pipes and devices, whose reading may never end, are skipped.
    """
    result = ReadResults()
    for root, below, names in os.walk(folder):
        below.sort()
        paths = (Path(root, name) for name in sorted(names))
        result += _read_files([path for path in paths if path.suffix in SUFFIXES and path.is_file()], hints)
    if not result.rows and not result.rejected:
        return ReadResults(rejected=(Rejection(str(folder), None, "holds no results"),))
    return result


def _read_files(paths: Sequence[Path], hints: Hints) -> ReadResults:
    """Read the files of one directory; runs that several formats of a family describe are read from the first of these
    formats.
    """
    known: list[tuple[Format, SourceFile]] = []
    rejected: list[Rejection] = []
    for path in paths:
        source = SourceFile(path)
        try:
            format_ = _format(source)
        except KitError as error:
            rejected.append(source.rejected(error.message))
            continue
        may_be_empty = path.suffix not in _OF_RECORDS or path.name == REQUESTS_FILE
        if format_:
            known.append((format_, source))
        elif not may_be_empty and not source.text.strip():
            rejected.append(source.rejected("is empty"))
        elif source.broken:
            rejected.append(source.broken)
    known.sort(key=lambda entry: (entry[0].family, FORMATS.index(entry[0])))
    result = ReadResults(rejected=tuple(rejected))
    for _, members in groupby(known, key=lambda entry: entry[0].family):
        entries = list(members)
        best = [entry for entry in entries if entry[0] is entries[0][0]]
        stages = [entry for entry in best if inference_perf.STAGE.search(entry[1].path.name)]
        for format_, source in stages if stages and best[0][0].name == "inference-perf" else best:
            result += _read(format_, source, hints)
    return result
