"""Requests as JSON Lines, one object each, written while a run goes on, so that nothing is lost with it."""

import json
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.errors import KitError

_DIGITS = 6
"""Of a second: microseconds, below what a clock of this kind can tell."""


def as_line(stage: int, record: RequestRecord) -> str:
    """One request of stage number `stage`, in seconds of model time.

    `due_s` and `sent_s` count from the start of the stage; all other times from `sent_s`.
    """
    content = {
        "stage": stage,
        "index": record.index,
        "due_s": _rounded(record.due_s),
        "sent_s": _rounded(record.started_s),
        "first_token_s": _rounded(record.ttft_s),
        "ended_s": _rounded(record.latency_s),
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "counted_by_server": record.counted_by_server,
        "failure": record.failure,
        "error": record.error,
        "status": record.status,
        "retry_after_s": record.retry_after_s,
        "only_ends": record.only_ends,
        "token_times_s": [round(time_s, _DIGITS) for time_s in record.event_times_s],
    }
    return json.dumps(content, separators=(",", ":"))


def write_file(path: Path, *stages: Iterable[RequestRecord]) -> None:
    """All requests of a run that has ended, stage by stage."""
    lines = (as_line(number, record) for number, stage in enumerate(stages) for record in stage)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(lines: Iterable[str], source: str = "requests") -> list[tuple[int, RequestRecord]]:
    """Requests with the number of their stage.

    A last line that was cut off, as when a program was killed while it wrote, is left out.

    Raises:
        KitError: another line can't be read.
    """
    found: list[tuple[int, RequestRecord]] = []
    failed: tuple[int, Exception] | None = None
    for number, line in enumerate(lines, 1):
        if failed:
            raise KitError(f"line {failed[0]} of {source} is no request: {failed[1]!r}") from failed[1]
        try:
            found.append(_record(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            failed = number, error
    return found


def _record(content: Mapping[str, Any]) -> tuple[int, RequestRecord]:
    return content["stage"], RequestRecord(
        index=content["index"],
        started_s=content["sent_s"],
        latency_s=content["ended_s"],
        event_times_s=array("d", content["token_times_s"]),
        input_tokens=content["input_tokens"],
        output_tokens=content["output_tokens"],
        counted_by_server=content["counted_by_server"],
        failure=Failure(content["failure"]) if content["failure"] else None,
        error=content["error"],
        due_s=content["due_s"],
        status=content["status"],
        retry_after_s=content["retry_after_s"],
        only_ends=content["only_ends"],
    )


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, _DIGITS)
