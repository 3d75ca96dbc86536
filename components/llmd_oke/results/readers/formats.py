"""Finding out what a file or folder of results is, and reading it."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import add
from pathlib import Path

from pydantic import ValidationError

from llmd_oke.errors import KitError
from llmd_oke.results import requests
from llmd_oke.results.files import explain
from llmd_oke.results.readers import bench_csv, bench_log, inference_perf, own, report_v01, report_v02, vllm_bench
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read, Rejected

SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".yaml", ".yml", ".log", ".txt"})

_OF_RECORDS = frozenset({".jsonl", ".csv"})


@dataclass(frozen=True)
class Format:
    """One format. Formats of one `family` tell of the same runs: in a folder only the first of them is read."""

    name: str
    family: str
    detect: Callable[[Source], bool]
    read: Callable[[Source, Hints], Read]


FORMATS = (
    Format("rows of llmd-oke", "report", own.detect, own.read),
    Format("llm-d benchmark report 0.2", "report", report_v02.detect, report_v02.read),
    Format("llm-d benchmark report 0.1", "report", report_v01.detect, report_v01.read),
    Format("inference-perf", "report", inference_perf.detect, inference_perf.read),
    Format("vllm bench serve", "vllm", vllm_bench.detect, vllm_bench.read),
    Format("log of j-pareto", "j-pareto", bench_log.detect, bench_log.read),
    Format("CSV of j-pareto", "j-pareto", bench_csv.detect, bench_csv.read),
)


def read(path: Path, hints: Hints | None = None) -> Read:
    """The rows of a file, or of all files below a folder, and what was rejected.

    Where a folder holds the same runs in several formats, they are read once, from the one that says most.

    Raises:
        KitError: there is nothing at `path`, or a file is no text.
    """
    hints = hints or Hints()
    if path.is_dir():
        return _read_folder(path, hints)
    source = Source(path)
    found = _format(source)
    if found is None:
        names = ", ".join(each.name for each in FORMATS)
        return Read(rejected=(source.broken or source.rejected(f"is in no known format ({names})"),))
    return _read(found, source, hints)


def read_all(paths: Iterable[Path], hints: Hints | None = None) -> Read:
    """The same for several files and folders.

    Raises:
        KitError: there is nothing at one of them, or a file is no text.
    """
    return reduce(add, (read(path, hints) for path in paths), Read())


def _read(found: Format, source: Source, hints: Hints) -> Read:
    """The rows of a file. One with a figure that is impossible is not read at all: who knows what the others are."""
    try:
        return found.read(source, hints)
    except ValidationError as error:
        return Read(rejected=(source.rejected(explain(error)),))
    except ArithmeticError as error:
        return Read(rejected=(source.rejected(f"has figures that nothing can be computed of: {error}"),))
    except csv.Error as error:
        return Read(rejected=(source.rejected(f"is no CSV that can be read: {error}"),))


def _format(source: Source) -> Format | None:
    return next((each for each in FORMATS if each.detect(source)), None)


def _read_folder(folder: Path, hints: Hints) -> Read:
    found = reduce(add, (_read_files(files, hints) for files in _folders(folder)), Read())
    if not found.rows and not found.rejected:
        return Read(rejected=(Rejected(str(folder), None, "holds no results"),))
    return found


def _folders(folder: Path) -> Iterator[list[Path]]:
    """The files of each folder below; links to folders are not followed, so that `latest` is no second run. Pipes and
    devices, which may never end, are no files.
    """
    for root, below, names in os.walk(folder):
        below.sort()
        paths = (Path(root, name) for name in sorted(names))
        yield [path for path in paths if path.suffix in SUFFIXES and path.is_file()]


def _read_files(paths: Sequence[Path], hints: Hints) -> Read:
    known: list[tuple[Format, Source]] = []
    rejected: list[Rejected] = []
    for path in paths:
        source = Source(path)
        try:
            found = _format(source)
        except KitError as error:
            rejected.append(source.rejected(error.message))
            continue
        if found:
            known.append((found, source))
        elif wrong := _unfinished(source):
            rejected.append(wrong)
    kept = _without_repeats(known)
    return reduce(add, (_read(found, source, hints) for found, source in kept), Read(rejected=tuple(rejected)))


def _unfinished(source: Source) -> Rejected | None:
    """What is wrong with a file of no known format that looks like results which were not written to their end."""
    is_empty = source.path.suffix in _OF_RECORDS and source.path.name != requests.FILE and not source.text.strip()
    return source.rejected("is empty") if is_empty else source.broken


def _without_repeats(known: list[tuple[Format, Source]]) -> Iterator[tuple[Format, Source]]:
    ranked = sorted(known, key=lambda entry: (entry[0].family, FORMATS.index(entry[0])))
    for _, members in groupby(ranked, key=lambda entry: entry[0].family):
        entries = list(members)
        best = [entry for entry in entries if entry[0] is entries[0][0]]
        stages = [entry for entry in best if not inference_perf.is_summary(entry[1].path)]
        yield from stages if stages and best[0][0].name == "inference-perf" else best
