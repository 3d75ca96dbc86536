"""Workloads: classes of prompt and output lengths with weights, given on the command line or computed from a trace."""

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import KitError

MAX_CLASSES = 64
"""Maximum number of classes, of equally many requests each, to which a trace is condensed."""

FORM = "ISL/OSL such as 4096/256, or classes with weights such as 0.7:4096/256,0.3:512/128"
_CLASS = re.compile(r"(?:(\d+(?:\.\d+)?):)?(\d+)/(\d+)")


@dataclass(frozen=True)
class Lengths:
    """Class of requests in a workload: its weight, and its prompt and output lengths in tokens."""

    weight: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True)
class WorkloadClasses:
    """Workload of several classes of requests. `prefix_cache_hit_share` is the part of each prompt that is in the
    prefix cache of the prefill server's GPUs, `host_hit_share` the part that is in its node's memory.
    """

    classes: tuple[Lengths, ...]
    prefix_cache_hit_share: float = 0.0
    host_hit_share: float = 0.0
    requests_per_s: float | None = None
    """Mean request rate of a trace per second; None for a workload that isn't a trace."""

    @property
    def input_tokens(self) -> float:
        """Mean prompt length of the workload's requests in tokens."""
        return self.mean(c.input_tokens for c in self.classes)

    @property
    def output_tokens(self) -> float:
        """Mean output length of the workload's requests in tokens."""
        return self.mean(c.output_tokens for c in self.classes)

    @property
    def context_tokens(self) -> float:
        """Mean context in tokens of the sequences in a decode step: prompt and half of the output, with classes of
        requests weighted by their number of steps.
        """
        contexts = (c.output_tokens * (c.input_tokens + c.output_tokens / 2) for c in self.classes)
        return self.mean(contexts) / self.output_tokens

    @property
    def longest_input_tokens(self) -> float:
        """Length of the workload's longest prompt in tokens."""
        return max(c.input_tokens for c in self.classes)

    def kept_tokens(self, block_size: int) -> float:
        """Return the mean number of tokens in the KV cache of a decoding sequence, counted as its whole length in
        blocks; classes are weighted by their number of steps.
        """
        lengths = (math.ceil((c.input_tokens + c.output_tokens) / block_size) * block_size for c in self.classes)
        weighted = (c.output_tokens * tokens for c, tokens in zip(self.classes, lengths, strict=True))
        return self.mean(weighted) / self.output_tokens

    def mean(self, values: Iterable[float]) -> float:
        """Return the mean of values, one for each class of requests, by the weights of the classes."""
        weights = [c.weight for c in self.classes]
        return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)

    def scaled(self, input_factor: float = 1.0, output_factor: float = 1.0) -> "WorkloadClasses":
        """Return the workload with all prompt and output lengths multiplied by factors."""
        classes = tuple(
            Lengths(c.weight, c.input_tokens * input_factor, c.output_tokens * output_factor) for c in self.classes
        )
        return replace(self, classes=classes)

    def __str__(self) -> str:
        """Return the workload as text: `4096/256`, or the mean lengths of several classes, and the cached shares of
        prompt tokens.
        """
        lengths = f"{self.input_tokens:.0f}/{self.output_tokens:.0f}"
        several = f" on average of {len(self.classes)} classes" if len(self.classes) > 1 else ""
        cached = f", {self.prefix_cache_hit_share:.0%} of prompt tokens cached" if self.prefix_cache_hit_share else ""
        kept = f", {self.host_hit_share:.0%} from the nodes' memory" if self.host_hit_share else ""
        return lengths + several + cached + kept


def of_lengths(input_tokens: float, output_tokens: float) -> WorkloadClasses:
    """Return a workload with requests of one prompt and output length."""
    return WorkloadClasses((Lengths(1.0, input_tokens, output_tokens),))


def parse(text: str) -> WorkloadClasses:
    """Parse a workload in the notation of the command line, such as `4096/256`.

    Raises:
        KitError: the text has another form.
    """
    classes: list[Lengths] = []
    for part in text.split(","):
        match = _CLASS.fullmatch(part.strip())
        if match is None or int(match[2]) < 1 or int(match[3]) < 1 or float(match[1] or 1) <= 0:
            raise KitError(f"{part.strip()!r} is no workload.", f"Accepted: {FORM}.")
        classes.append(Lengths(float(match[1] or 1), float(match[2]), float(match[3])))
    return WorkloadClasses(tuple(classes))


def read_trace(path: Path) -> WorkloadClasses:
    """Return the workload of a trace: JSON Lines or CSV with the columns `input_tokens`, `output_tokens` and optionally
    `at_s`.

    Raises:
        KitError: the file can't be read, or lines are not requests; the message names all of them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"{path} can't be read: {error}") from error
    requests: list[tuple[float, float, float | None]] = []
    wrong: list[str] = []
    rows: Iterable[tuple[int, Any]] = enumerate(csv.DictReader(StringIO(text)), 2)
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    for line, entry in rows if path.suffix == ".csv" else lines:
        try:
            requests.append(_request(entry))
        except (KeyError, TypeError, ValueError) as error:
            missing = isinstance(error, KeyError)
            wrong.append(f"{path}:{line}: {f'there is no {error.args[0]}' if missing else error}")
    if wrong:
        raise KitError("\n".join(wrong), "Each line needs input_tokens and output_tokens of at least 1.")
    if not requests:
        raise KitError(f"{path} has no requests.")
    times = [time_s for _, _, time_s in requests if time_s is not None]
    span_s = max(times) - min(times) if len(times) == len(requests) else 0.0
    return WorkloadClasses(_condensed(requests), requests_per_s=(len(times) - 1) / span_s if span_s > 0 else None)


def _request(entry: Any) -> tuple[float, float, float | None]:
    """Read lengths and time of one request."""
    fields = cast("dict[str, Any]", json.loads(entry) if isinstance(entry, str) else entry)
    lengths = float(fields["input_tokens"]), float(fields["output_tokens"])
    if min(lengths) < 1:
        msg = f"lengths of {lengths[0]:g} and {lengths[1]:g} tokens"
        raise ValueError(msg)
    at_s = fields.get("at_s")
    return *lengths, None if at_s is None or at_s == "" else float(at_s)


def _condensed(requests: Sequence[tuple[float, float, float | None]]) -> tuple[Lengths, ...]:
    """Return classes of equally many requests, alike in their lengths."""
    ordered = sorted(request[:2] for request in requests)
    edges = [round(len(ordered) * i / MAX_CLASSES) for i in range(MAX_CLASSES + 1)]
    groups = [ordered[start:end] for start, end in itertools.pairwise(edges) if end > start]
    return tuple(
        Lengths(
            len(group) / len(ordered),
            sum(input_tokens for input_tokens, _ in group) / len(group),
            sum(output_tokens for _, output_tokens in group) / len(group),
        )
        for group in groups
    )
