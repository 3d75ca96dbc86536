"""Latencies of single requests, as `requests.jsonl` beside a report has them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

FILE = "requests.jsonl"


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
            if record.get("failure") is None and isinstance(ttft_s, (int, float)):
                self.ttft_ms.append(1000 * float(ttft_s))
                times_s = () if record.get("only_ends") else record.get("token_times_s") or ()
                self.itl_ms.extend(1000 * (later - earlier) for earlier, later in pairwise(times_s))


def _object(line: str) -> Mapping[str, Any]:
    try:
        content: object = json.loads(line)
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else {}
