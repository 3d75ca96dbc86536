"""Parser of loads in the notation of the command line: `poisson:45`, `closed:8,16,32`, `trace:requests.jsonl`,
`lognormal:4096,1200`.

Traces are JSON Lines or CSV with the columns of one of these formats:

- llmd-oke: `time_s`, `input_tokens`, `output_tokens`;
- Mooncake's published traces: `timestamp` (milliseconds), `input_length`, `output_length`
  (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces);
- Azure's published traces: `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens`
  (https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace).
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import cast

from llmd_base.errors import InvalidStack, KitError, Problem

from llmd_bench.load.records import Trim
from llmd_bench.load.workload import (
    ClosedLoop,
    ConstantRate,
    Conversations,
    Fixed,
    Length,
    LoadShape,
    LogNormal,
    Normal,
    PoissonRate,
    SharedPrefix,
    Trace,
    TraceEntry,
)

_MAX_PROBLEMS = 20

_INPUT = ("input_tokens", "input_length", "ContextTokens")
_OUTPUT = ("output_tokens", "output_length", "GeneratedTokens")

_Row = Mapping[str, object]


def read_trace(path: Path) -> Trace:
    """Read a trace file; times become relative to the first request.

    Raises:
        KitError: the file can't be read.
        InvalidStack: lines are invalid, or the file has no request; contains the first twenty problems.
    """
    entries: list[TraceEntry] = []
    problems: list[Problem] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"The trace {path} can't be read: {error}") from error
    for line, row in _rows(text):
        try:
            if isinstance(row, str):
                raise ValueError("it is no JSON object")
            entries.append(TraceEntry(_time_s(row), _tokens(row, _INPUT), _tokens(row, _OUTPUT)))
        except ValueError as error:
            accepted = "time_s, input_tokens and output_tokens, or Mooncake's or Azure's columns"
            problems.append(Problem(path.name, row if isinstance(row, str) else dict(row), accepted, str(error), line))
    if not entries and not problems:
        problems.append(Problem(path.name, None, "at least one request", "it is empty"))
    if problems:
        raise InvalidStack(problems[:_MAX_PROBLEMS], "the load can't be sent")
    entries.sort(key=lambda entry: entry.at_s)
    started_s = entries[0].at_s
    return Trace(tuple(TraceEntry(e.at_s - started_s, e.input_tokens, e.output_tokens) for e in entries), path.name)


def _rows(text: str) -> Iterator[tuple[int, _Row | str]]:
    """Yield line number and fields of each line; a line that is no JSON object is yielded as text."""
    lines = text.splitlines()
    if not text.lstrip().startswith("{"):
        for number, row in enumerate(csv.DictReader(lines), 2):
            yield number, cast("_Row", row)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                entry: object = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            yield number, cast("_Row", entry) if isinstance(entry, dict) else line


def _time_s(row: _Row) -> float:
    if "time_s" in row:
        return _number("time_s", row["time_s"])
    if "timestamp" in row:
        return _number("timestamp", row["timestamp"]) / 1000
    if "TIMESTAMP" not in row:
        raise ValueError("it has no time")
    whole, _, fraction = str(row["TIMESTAMP"]).strip().partition(".")  # Azure gives seven digits of a second
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


_SHAPES: Mapping[str, Callable[[float, int], LoadShape]] = {
    "closed": lambda value, _: ClosedLoop(round(value)),
    "constant": lambda value, _: ConstantRate(value),
    "poisson": PoissonRate,
}

_ACCEPTED_SHAPES = (
    "Give closed:USERS, constant:REQUESTS_PER_S, poisson:REQUESTS_PER_S (several values make a sweep) or trace:FILE."
)


def read_shapes(text: str, seed: int = 0) -> list[LoadShape]:
    """Parse one load shape for each value after the colon; `seed` is the random seed of Poisson arrivals.

    Raises:
        KitError: the text is no load shape, or its trace file can't be read.
    """
    kind, _, values = text.partition(":")
    if kind == "trace" and values:
        return [read_trace(Path(values))]
    shape = _SHAPES.get(kind)
    if shape is None or not values:
        raise KitError(f"{text!r} is no shape of load", _ACCEPTED_SHAPES)
    return [shape(number, seed) for number in _numbers(text, values, _ACCEPTED_SHAPES)]


def read_length(text: str) -> Length:
    """Parse a length in tokens such as `4096`, `normal:4096,512` or `lognormal:4096,1200` (mean and standard
    deviation).

    Raises:
        KitError: the text is no length.
    """
    accepted = "Give TOKENS, normal:MEAN,DEVIATION or lognormal:MEAN,DEVIATION."
    kind, mark, values = text.partition(":")
    if not mark and text.isdigit():
        return Fixed(int(text))
    distribution = {"normal": Normal, "lognormal": LogNormal}.get(kind)
    if distribution is None:
        raise KitError(f"{text!r} is no length", accepted)
    numbers = _numbers(text, values, accepted)
    if len(numbers) != 2:
        raise KitError(f"{text!r} has {len(numbers)} of two values", accepted)
    mean, stddev = numbers
    return distribution(mean, stddev)


def read_trim(text: str) -> Trim:
    """Parse which part of a stage is left out of the figures: `none`, `busy`, or the share of the time at each end,
    such as `0.2`.

    Raises:
        KitError: the text is none of these, or the share is 0.5 or more.
    """
    accepted = "Give none, busy, or a share below 0.5 such as 0.2."
    if text in {"none", "busy"}:
        return Trim(busy=text == "busy")
    (share,) = _numbers(text, text, accepted)[:1]
    if share >= 0.5:
        raise KitError(f"{text!r} would leave nothing", accepted)
    return Trim(head_share=share, tail_share=share)


def _numbers(text: str, values: str, accepted: str) -> list[float]:
    numbers: list[float] = []
    for value in values.split(","):
        try:
            numbers.append(float(value))
        except ValueError as error:
            raise KitError(f"{text!r} can't be read: {value!r} is no number", accepted) from error
    if not all(0 <= number < float("inf") for number in numbers):
        raise KitError(f"{text!r} has a value below 0 or without end", accepted)
    return numbers


def read_prefix(text: str) -> SharedPrefix:
    """Parse shared prompt prefixes `TOKENSxGROUPS`, such as `2048x10`.

    Raises:
        KitError: the text has another form.
    """
    tokens, groups = _pair(text, "Give TOKENSxGROUPS, such as 2048x10.")
    return SharedPrefix(groups, tokens)


def read_conversations(text: str) -> Conversations:
    """Parse conversations `AT_A_TIMExTURNS`, such as `64x5`.

    Raises:
        KitError: the text has another form.
    """
    return Conversations(*_pair(text, "Give AT_A_TIMExTURNS, such as 64x5."))


def _pair(text: str, accepted: str) -> tuple[int, int]:
    first, _, second = text.partition("x")
    if not (first.isdigit() and second.isdigit()):
        raise KitError(f"{text!r} can't be read", accepted)
    return int(first), int(second)
