"""A parsed JSON or YAML document, asked for by path; what is not what it should be is refused by its path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

MOST = 1e300
"""A figure beyond it is none: not finite, or too large to be computed with."""


class UnreadableError(Exception):
    """Why something is no row."""


@dataclass(frozen=True)
class Document:
    """A mapping somewhere in a document; `where` is its path. What is absent is an empty document, or None."""

    content: Mapping[str, Any] = field(default_factory=dict[str, Any])
    where: str = ""

    def part(self, *path: str) -> "Document":
        """The mapping at a path.

        Raises:
            UnreadableError: something else stands there.
        """
        here = self
        for name in path:
            value = here.content.get(name)
            if value is not None and not isinstance(value, Mapping):
                raise UnreadableError(f"{here.path(name)} is no mapping")
            here = Document(cast("Mapping[str, Any]", value or {}), here.path(name))
        return here

    def parts(self, name: str) -> list["Document"]:
        """The mappings of a list.

        Raises:
            UnreadableError: something else stands there.
        """
        value: object = self.content.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in cast("list[object]", value)):
            raise UnreadableError(f"{self.path(name)} is no list of mappings")
        entries = cast("list[Mapping[str, Any]]", value)
        return [Document(entry, f"{self.path(name)}[{index}]") for index, entry in enumerate(entries)]

    def number(self, name: str) -> float | None:
        """A number.

        Raises:
            UnreadableError: something else stands there.
        """
        value = self.content.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MOST:
            raise UnreadableError(f"{self.path(name)} is {str(value)[:40]!r}, no number")
        return float(value)

    def whole(self, name: str) -> int | None:
        """A whole number.

        Raises:
            UnreadableError: something else stands there.
        """
        value = self.number(name)
        if value is not None and value != int(value):
            raise UnreadableError(f"{self.path(name)} is {value!r}, no whole number")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """A text; None where there is none, or nothing but `unknown`."""
        value = self.content.get(name)
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, (list, dict)):
            raise UnreadableError(f"{self.path(name)} is no text")
        return None if value is None or value in {"", "unknown"} else str(value)

    def path(self, name: str) -> str:
        """Where `name` of this document stands."""
        return f"{self.where}.{name}" if self.where else name
