"""Request traces from files: when requests came, and how long they were.

JSON Lines or CSV, with the columns of any of these:

- ours: `time_s`, `input_tokens`, `output_tokens`;
- Mooncake's published traces: `timestamp` (milliseconds), `input_length`, `output_length`
  (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces);
- Azure's published traces: `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens`
  (https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace).
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import cast

from llmd_oke.bench.workload.shapes import Trace, TraceEntry
from llmd_oke.errors import KitError, Problem, Refused

_MOST_PROBLEMS = 20

_INPUT = ("input_tokens", "input_length", "ContextTokens")
_OUTPUT = ("output_tokens", "output_length", "GeneratedTokens")

_Row = Mapping[str, object]


def read_trace(path: Path) -> Trace:
    """Read a trace; times count from its first request.

    Raises:
        KitError: the file can't be read.
        Refused: lines can't be read, or there is none; carries the first twenty of them.
    """
    entries: list[TraceEntry] = []
    problems: list[Problem] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"The trace {path} can't be read: {error}") from error
    for line, row in _rows(text):
        try:
            entries.append(_entry(row))
        except ValueError as error:
            accepted = "time_s, input_tokens and output_tokens, or Mooncake's or Azure's columns"
            problems.append(Problem(path.name, row if isinstance(row, str) else dict(row), accepted, str(error), line))
    if not entries and not problems:
        problems.append(Problem(path.name, None, "at least one request", "it is empty"))
    if problems:
        raise Refused(problems[:_MOST_PROBLEMS], "the load can't be sent")
    entries.sort(key=lambda entry: entry.at_s)
    began_s = entries[0].at_s
    return Trace(tuple(TraceEntry(e.at_s - began_s, e.input_tokens, e.output_tokens) for e in entries), path.name)


def _rows(text: str) -> Iterator[tuple[int, _Row | str]]:
    """Lines with their numbers; a line that is no object comes as it stands."""
    lines = text.splitlines()
    if not text.lstrip().startswith("{"):
        for number, row in enumerate(csv.DictReader(lines), 2):
            yield number, cast("_Row", row)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _object(line)


def _object(line: str) -> _Row | str:
    try:
        found: object = json.loads(line)
    except ValueError:
        return line
    return cast("_Row", found) if isinstance(found, dict) else line


def _entry(row: _Row | str) -> TraceEntry:
    if isinstance(row, str):
        raise ValueError("it is no JSON object")
    return TraceEntry(_time_s(row), _tokens(row, _INPUT), _tokens(row, _OUTPUT))


def _time_s(row: _Row) -> float:
    if "time_s" in row:
        return _number("time_s", row["time_s"])
    if "timestamp" in row:
        return _number("timestamp", row["timestamp"]) / 1000
    if "TIMESTAMP" in row:
        return _moment_s(str(row["TIMESTAMP"]))
    raise ValueError("it has no time")


def _moment_s(text: str) -> float:
    """Azure gives seven digits of a second; Python takes six."""
    whole, _, fraction = text.strip().partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction[:6] or 0}")


def _tokens(row: _Row, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = row.get(name)
        if value not in {None, ""}:
            tokens = int(_number(name, value))
            if tokens < 1:
                raise ValueError(f"{name} is {tokens}, at least 1 token is needed")
            return tokens
    return None


def _number(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        raise ValueError(f"{name} is no number") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} is {number}")
    return number
