"""Rows as JSON Lines and as CSV; what is written is read back equal."""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from llmd_oke.config.shape_problems import in_words
from llmd_oke.errors import KitError
from llmd_oke.results.reading import Read, Rejected
from llmd_oke.results.row import Origin, Quantiles, Row

MOST_BYTES = 64 * 2**20
"""Of a file of rows or a report: about fifty thousand rows, which take 3 s to read."""

MOST_REQUEST_BYTES = 2**30
"""Of a file of single requests: some ten million token times."""

_NESTED: Mapping[str, tuple[str, ...]] = {
    "origin": tuple(Origin.model_fields),
    **{name: tuple(Quantiles.model_fields) for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")},
}


def _columns() -> Iterator[tuple[str, str | None]]:
    for name in Row.model_fields:
        for part in _NESTED.get(name, (None,)):
            yield name, part


COLUMNS: tuple[str, ...] = tuple(name if part is None else f"{name}_{part}" for name, part in _columns())
"""The columns of a CSV file: `ttft_ms_p50` is `ttft_ms.p50` of a row."""


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV where the name ends in `.csv`, as JSON Lines otherwise.

    The file appears whole or not at all.

    Raises:
        KitError: it can't be written.
    """
    text = _csv_text(rows) if path.suffix == ".csv" else "".join(f"{row_json(row)}\n" for row in rows)
    make_folder(path.parent)
    write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Write a file that a reader finds whole or not at all. Links and devices (/dev/stdout) stay what they are.

    Raises:
        KitError: it can't be written.
    """
    stays = path.is_symlink() or (path.exists() and not path.is_file())
    unfinished = path if stays else path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="")
        if not stays:
            unfinished.replace(path)
    except OSError as error:
        if not stays:
            unfinished.unlink(missing_ok=True)  # on a full disk it would take the room of the next try
        raise KitError(f"{path} can't be written: {error.strerror}") from error


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target` in one step, so that a reader never finds it missing."""
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(link)


def make_folder(path: Path) -> None:
    """Make a folder for results, if it isn't there; best before they are measured.

    Raises:
        KitError: it can't be made, or nothing can be written into it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KitError(f"Folder {path} can't be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise KitError(f"Nothing can be written into folder {path}.")


def row_json(row: Row) -> str:
    """One row as one line of JSON, without fields that are None or at their default."""
    return json.dumps(row.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def read_rows(path: Path) -> list[Row]:
    """All rows of a file that `write_rows` wrote.

    Raises:
        KitError: there is no such file, or some of it are no rows; all of these are named by line.
    """
    found = scan_rows(path)
    if found.rejected:
        raise KitError("\n".join(map(str, found.rejected)))
    return list(found.rows)


def parse_rows(content: bytes, name: str) -> Read:
    """The rows of JSON Lines that are already here, and the lines that are none; `name` is what these are called by."""
    if len(content) > MOST_BYTES:
        return Read(rejected=(Rejected(name, None, f"is larger than {MOST_BYTES // 2**20} MiB"),))
    return _scan(_json_entries(content.decode("utf-8", errors="replace")), name)


def scan_rows(path: Path) -> Read:
    """The rows of a file, and the lines that are none.

    Raises:
        KitError: the file can't be read.
    """
    text = read_text(path)
    return _scan(_csv_entries(text) if path.suffix == ".csv" else _json_entries(text), str(path))


def _scan(entries: Iterable[tuple[int, object]], name: str) -> Read:
    rows: list[Row] = []
    rejected: list[Rejected] = []
    for line, entry in entries:
        try:
            row = Row.model_validate(entry if isinstance(entry, dict) else json.loads(cast("str", entry)))
        except ValidationError as error:
            rejected.append(Rejected(name, line, explain(error)))
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            rejected.append(Rejected(name, line, f"is not JSON: {why}"))
        else:
            if why := row.nothing_measured:
                rejected.append(Rejected(name, line, f"measured nothing: {why}"))
            else:
                rows.append(row)
    return Read(tuple(rows), tuple(rejected))


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes.

    Raises:
        KitError: it is not there, or larger.
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
    """The text of a file.

    Raises:
        KitError: it is not there, too large, or no text.
    """
    try:
        return read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KitError(f"{path} is no text: {error.reason} at byte {error.start}") from error


def explain(error: ValidationError, whole: str = "row") -> str:
    """What pydantic found wrong, in one line; `whole` is what the thing itself is called."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or whole}: {in_words(each)}" for each in error.errors())


def _json_entries(text: str) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _csv_text(rows: Iterable[Row]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        document = row.model_dump(mode="json")
        writer.writerow([_cell(document[name] if part is None else document[name][part]) for name, part in _columns()])
    return text.getvalue()


def _cell(value: object) -> str:
    """None is an empty cell; text that could be mistaken for that or for JSON, or breaks a line, is written as JSON."""
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
