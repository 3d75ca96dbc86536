"""Search of logs for the texts of signatures: all texts in one pass, and patterns only on lines that have one.

A pattern sees at most a part of a long line, and at most `MAX_LINES` lines of each log are tried for a signature, so
that no log makes the search slow.
"""

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, Implementation

from llmd_oke.catalogue.signatures import TextSignature

LONGEST_LINE = 2000
MAX_LINES = 100_000

_CHUNK_BYTES = 2**20
_TIME = re.compile(r"(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d|\b[IWEF]\d{4} \d\d:\d\d:\d\d")
"""Times of vLLM (`11-29 02:14:05`), of ISO 8601, and of klog (`E1129 02:14:05`)."""


@dataclass
class Hits:
    """Lines of one log that match one signature: their number, the last one, and the times of the first and last as
    written, None without one. `tried` counts the lines that contain one of the signature's texts, of which the last
    ends at byte `end` of the log.
    """

    count: int = 0
    line: str = ""
    first: str | None = None
    last: str | None = None
    tried: int = 0
    end: int = 0

    @property
    def more(self) -> bool:
        """True if the log may have more matching lines than were counted, because only `MAX_LINES` lines are tried."""
        return self.tried >= MAX_LINES

    def add(self, line: str) -> None:
        """Count a line that matches the signature."""
        time = match[0] if (match := _TIME.search(line)) else None
        self.count, self.line = self.count + 1, line
        self.first, self.last = self.first or time, time or self.last


class LogSearch:
    """Search of logs for signatures of known faults, which are given by identifier."""

    def __init__(self, signatures: Mapping[str, TextSignature]) -> None:
        self._signatures = signatures
        by_text: dict[bytes, list[str]] = {}
        for name, signature in signatures.items():
            for text in signature.texts:
                by_text.setdefault(text.encode(), []).append(name)
        self._names = list(by_text.values())
        self._longest = max(map(len, by_text), default=1)
        self._automaton = BytesAhoCorasick(list(by_text), implementation=Implementation.DFA)  # the fastest, a few MiB

    def __call__(self, content: bytes | mmap.mmap, container: str) -> dict[str, Hits]:
        """Return the hits in a container's log, by identifier of the signature."""
        found: dict[str, Hits] = {}
        for index, position in self._positions(content):
            for name in self._names[index]:
                signature, hits = self._signatures[name], found.setdefault(name, Hits())
                if hits.more or position < hits.end or container not in (signature.containers or (container,)):
                    continue
                line, hits.end = _line(content, position)
                hits.tried += 1
                if signature.accepts(line):
                    hits.add(line)
        return {name: hits for name, hits in found.items() if hits.count >= self._signatures[name].least}

    def _positions(self, content: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
        """Yield the index of each text that occurs, and its position."""
        with memoryview(content) as view:
            for start in range(0, len(content), _CHUNK_BYTES):
                with view[start : start + _CHUNK_BYTES + self._longest - 1] as chunk:
                    for index, begin, _ in self._automaton.find_matches_as_indexes(chunk, overlapping=True):
                        if begin < _CHUNK_BYTES:
                            yield index, start + begin


def _line(content: bytes | mmap.mmap, position: int) -> tuple[str, int]:
    """Return the line around a position and where it ends; of a long line only the part around the position."""
    begin = content.rfind(b"\n", max(0, position - LONGEST_LINE // 2), position) + 1
    begin = begin or max(0, position - LONGEST_LINE // 2)
    end = content.find(b"\n", position, position + LONGEST_LINE)
    end = end if end >= 0 else min(len(content), position + LONGEST_LINE)
    return content[begin:end].decode(errors="replace").strip(), end
