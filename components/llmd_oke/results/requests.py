"""Latencies of single requests, as `requests.jsonl` beside a report has them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeGuard, cast

FILE = "requests.jsonl"

LONGEST_S = 1e9
"""A time beyond it is none; a run of thirty years."""


@dataclass
class Latencies:
    """Of the requests that succeeded, in milliseconds of model time: first tokens, and gaps between events."""

    ttft_ms: list[float] = field(default_factory=list[float])
    itl_ms: list[float] = field(default_factory=list[float])

    def add(self, lines: Iterable[str]) -> None:
        """Take in the lines of a file; a line that is no request, as after a crash, is left out."""
        for line in lines:
            record = _object(line)
            ttft_s = record.get("first_token_s")
            if record.get("failure") is None and _is_time(ttft_s):
                self.ttft_ms.append(1000 * float(ttft_s))
                times_s: object = None if record.get("only_ends") else record.get("token_times_s")
                known = cast("list[object]", times_s) if isinstance(times_s, list) else []
                if all(map(_is_time, known)):
                    times = cast("list[float]", known)
                    self.itl_ms.extend(1000 * (later - earlier) for earlier, later in pairwise(times))


def _is_time(value: object) -> TypeGuard[float]:
    """Whether it is a time in seconds that a run can have."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LONGEST_S


def _object(line: str) -> Mapping[str, Any]:
    try:
        content: object = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else {}
