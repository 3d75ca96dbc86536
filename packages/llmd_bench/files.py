"""Files of results: rows as JSON Lines or CSV, which are read back without loss, and latencies of single requests."""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard, cast

from llmd_base.documents import explain
from llmd_base.errors import KitError
from llmd_base.metrics import LATENCIES
from llmd_base.row import Arrival, Basis, Origin, Quantiles, Row, Scope
from pydantic import ValidationError


@dataclass(frozen=True)
class Rejection:
    """Part of a results file that can't be read as a row, with the reason; `line` is None if the whole file is
    rejected.
    """

    file: str
    line: int | None
    why: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.why}"


@dataclass(frozen=True)
class ReadResults:
    """Rows that were read from a results file or directory, and the parts that could not be read."""

    rows: tuple[Row, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    def __add__(self, other: "ReadResults") -> "ReadResults":
        return ReadResults(self.rows + other.rows, self.rejected + other.rejected)


@dataclass(frozen=True)
class CatalogueNames:
    """Names of models by repository, and names of GPU products, in the catalogue, so that rows of all tools use the
    same names.
    """

    models: Mapping[str, str] = field(default_factory=dict[str, str])
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hints:
    """Facts that a results file may lack. Values in the file take precedence; a fact in neither place stays unknown.

    `gpus` is the number of GPUs that servers use, `gpus_reserved` the number that pods request. `basis` is the basis of
    other tools' figures: `calibrated` if the tools measured simulated servers.
    """

    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_reserved: int | None = None
    tensor_parallel_size: int | None = None
    topology: str | None = None
    copies: int | None = None
    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: str | None = None
    block_size: int | None = None
    router_profile: str | None = None
    draft_tokens: int | None = None
    subject: Scope | None = None
    arrival: Arrival | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    max_num_seqs: int | None = None
    basis: Basis = Basis.MEASURED
    notes: tuple[str, ...] = ()
    names: CatalogueNames = field(default_factory=CatalogueNames)


MAX_BYTES = 64 * 2**20
"""Maximum size in bytes of a file of rows or of a report: about fifty thousand rows, which take 3 s to read."""

MAX_REQUEST_BYTES = 2**30
"""Maximum size in bytes of a file of single requests: about ten million token times."""

_NESTED: Mapping[str, tuple[str, ...]] = {
    "origin": tuple(Origin.model_fields),
    **{name: tuple(Quantiles.model_fields) for name in (latency.name for latency in LATENCIES)},
}


def _columns() -> Iterator[tuple[str, str | None]]:
    for name in Row.model_fields:
        for part in _NESTED.get(name, (None,)):
            yield name, part


COLUMNS: tuple[str, ...] = tuple(name if part is None else f"{name}_{part}" for name, part in _columns())
"""Columns of a CSV file of rows, in order: column `ttft_ms_p50` is `ttft_ms.p50` of a row."""


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV if the file's name ends in `.csv`, otherwise as JSON Lines; the file is replaced atomically.

    Raises:
        KitError: the file can't be written.
    """
    text = StringIO()
    if path.suffix == ".csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for document in (row.model_dump(mode="json") for row in rows):
            values = (document[name] if part is None else document[name][part] for name, part in _columns())
            writer.writerow(map(_cell, values))
    else:
        text.writelines(f"{row_json(row)}\n" for row in rows)
    make_folder(path.parent)
    write_whole(path, text.getvalue())


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text atomically, so that a reader never sees a part. Symbolic links and devices (/dev/stdout)
    are written in place.

    Raises:
        KitError: the file can't be written.
    """
    stays = path.is_symlink() or (path.exists() and not path.is_file())
    unfinished = path if stays else path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="")
        if not stays:
            unfinished.replace(path)
    except OSError as error:
        if not stays:
            unfinished.unlink(missing_ok=True)  # frees the space for a retry on a full disk
        raise KitError(f"{path} can't be written: {error.strerror}") from error


def point(link: Path, target: str) -> None:
    """Create or replace the symbolic link `link` to `target` atomically, so that readers always find it."""
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(link)


def make_folder(path: Path) -> None:
    """Create a directory for results unless it exists; called before the measurement, so that errors appear early.

    Raises:
        KitError: the directory can't be created or isn't writable.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KitError(f"Folder {path} can't be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise KitError(f"Nothing can be written into folder {path}.")


def row_json(row: Row) -> str:
    """Return a row as one line of JSON without the fields that have their default value."""
    return json.dumps(row.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a file that `write_rows` wrote.

    Raises:
        KitError: the file doesn't exist or has invalid lines; the message names all of these.
    """
    result = scan_rows(path)
    if result.rejected:
        raise KitError("\n".join(map(str, result.rejected)))
    return list(result.rows)


def parse_rows(content: bytes, name: str) -> ReadResults:
    """Parse rows from the bytes of JSON Lines, and collect the invalid lines; `name` is the name of the source in their
    messages.
    """
    if len(content) > MAX_BYTES:
        return ReadResults(rejected=(Rejection(name, None, f"is larger than {MAX_BYTES // 2**20} MiB"),))
    return _scan(_json_entries(content.decode("utf-8", errors="replace")), name)


def scan_rows(path: Path) -> ReadResults:
    """Read the rows of a file, and collect the invalid lines.

    Raises:
        KitError: the file can't be read.
    """
    text = read_text(path)
    return _scan(_csv_entries(text) if path.suffix == ".csv" else _json_entries(text), str(path))


def _scan(entries: Iterable[tuple[int, object]], name: str) -> ReadResults:
    rows: list[Row] = []
    rejected: list[Rejection] = []
    for line, entry in entries:
        try:
            row = Row.model_validate(entry if isinstance(entry, dict) else json.loads(cast("str", entry)))
        except ValidationError as error:
            rejected.append(Rejection(name, line, explain(error)))
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            rejected.append(Rejection(name, line, f"is not JSON: {why}"))
        else:
            if why := row.nothing_measured:
                rejected.append(Rejection(name, line, f"measured nothing: {why}"))
            else:
                rows.append(row)
    return ReadResults(tuple(rows), tuple(rejected))


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes.

    Raises:
        KitError: the file doesn't exist, can't be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise KitError(f"{path}: {error.strerror}") from error
    if len(content) > most:
        raise KitError(f"{path} is larger than {most // 2**20} MiB, which no file of results is.")
    return content


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark.

    Raises:
        KitError: the file doesn't exist, is larger than `MAX_BYTES`, or is no UTF-8.
    """
    try:
        return read_bytes(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KitError(f"{path} is no text: {error.reason} at byte {error.start}") from error


def _json_entries(text: str) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _cell(value: object) -> str:
    """Return the CSV cell of a value: empty for None; JSON for numbers and for text that is empty, begins with a quote
    or bracket, or contains control characters.
    """
    if value is None:
        return ""
    if isinstance(value, str) and value and value[0] not in '"[' and min(value) >= " ":
        return value
    return json.dumps(value, ensure_ascii=False)


def _csv_entries(text: str) -> Iterator[tuple[int, object]]:
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    header = next(reader, list[str]())
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        if cells:
            yield line, _entry(header, cells)


def _entry(header: list[str], cells: list[str]) -> dict[str, Any]:
    places = dict(zip(COLUMNS, _columns(), strict=True))
    entry: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=False):
        name, part = places.get(column, (column, None))
        if cell == "":
            continue
        value: object = json.loads(cell) if cell[0] in '"[' else cell
        if part is None:
            entry[name] = value
        else:
            entry.setdefault(name, {})[part] = value
    return entry


REQUESTS_FILE = "requests.jsonl"

LONGEST_S = 1e9
"""Maximum time in seconds that counts as valid: about thirty years."""


@dataclass
class Latencies:
    """Latencies of successful requests in milliseconds as on real hardware, also where servers were simulated at
    another speed: times to the first token, and times between stream events.
    """

    ttft_ms: list[float] = field(default_factory=list[float])
    itl_ms: list[float] = field(default_factory=list[float])

    def add(self, lines: Iterable[str]) -> None:
        """Add the latencies of requests, given as lines of a file of single requests; lines that are no request, such
        as a truncated last line, are skipped.
        """
        for line in lines:
            record = json_object(line) or {}
            ttft_s = record.get("first_token_s")
            if record.get("failure") is None and _is_time(ttft_s):
                self.ttft_ms.append(1000 * float(ttft_s))
                times_s: object = None if record.get("only_ends") else record.get("token_times_s")
                known = cast("list[object]", times_s) if isinstance(times_s, list) else []
                if all(map(_is_time, known)):
                    times = cast("list[float]", known)
                    self.itl_ms.extend(1000 * (later - earlier) for earlier, later in pairwise(times))


def _is_time(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of seconds between 0 and `LONGEST_S`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LONGEST_S


def json_object(line: str) -> Mapping[str, Any] | None:
    """Return the object of a line of JSON; None if the line contains no JSON object, such as a truncated last line."""
    try:
        content: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else None
