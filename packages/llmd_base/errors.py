"""Errors that reach a user.

KitError                 error with a message for the user; shown without a traceback
└── InvalidStack         error for a stack file that can't be deployed; contains all problems found
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from reprlib import Repr
from typing import cast


class _Short(Repr):
    """Shortened text of values, spelled as in YAML."""

    def repr_NoneType(self, _value: None, _level: int) -> str:  # noqa: N802 - reprlib's names
        return "null"

    def repr_bool(self, value: bool, _level: int) -> str:
        return "true" if value else "false"

    def repr_date(self, value: date, _level: int) -> str:
        return value.isoformat()

    repr_datetime = repr_date

    def repr_float(self, value: float, _level: int) -> str:
        short = f"{value:g}"
        return short if float(short) == value else repr(value)


_LONGEST_IMAGE = 320
"""Maximum length of a container image reference with tag and digest, in characters."""

_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 60, 60


@dataclass(frozen=True)
class Described:
    """Value of a `Problem` that is described instead of shown, such as a secret; printed in parentheses."""

    words: str

    def __repr__(self) -> str:
        return f"({printable(self.words)})"


SET = Described("set")
"""Value of a `Problem` for a key that has a value, where the value itself says nothing or must not be shown."""


class KitError(Exception):
    """Error that the user can act on.

    `message` says what was wrong and where; `remedy` says how to correct the problem, None if no remedy is known.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n{remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Problem:
    """One reason why a stack file, or another file of its project, can't be deployed.

    Attributes:
        path: path of the key in the file, for example `models[0].topology`.
        value: value of that key; None if the key is missing.
        accepted: values that would be accepted.
        why: reason why the value is refused, with figures.
        line: line number in the file; None if unknown.
        file: path of the file relative to the project, such as `values/models/mine.yaml`; None for the stack file.
    """

    path: str
    value: object
    accepted: str
    why: str
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = self.place if self.line is None else f"line {self.line}: {self.place}"
        value = "" if self.value is None else f" = {self.short_value}"
        return f"{where}{value}: {printable(self.why)} (accepted: {printable(self.accepted)})"

    @property
    def place(self) -> str:
        """Path of the key, preceded by the file's path unless the file is the stack file, as `printable` text."""
        return printable(": ".join(part for part in (self.file, self.path) if part))

    @property
    def short_value(self) -> str:
        """Value as text of at most 80 characters; of larger lists and objects only the size. Image references with a
        digest are never shortened.
        """
        value = list(cast("tuple[object, ...]", self.value)) if isinstance(self.value, tuple) else self.value
        if isinstance(value, str) and "@sha256:" in value and len(value) <= _LONGEST_IMAGE:
            return repr(value)
        text = _SHORT.repr(value)
        if len(text) <= 80:
            return text
        return _size(value) or f"{text[:77]}..."


def printable(text: str) -> str:
    """Return a text in which characters that can't be printed, such as line breaks and bidirectional marks, are escaped
    as in Python, so that names in a file can't forge lines of output.
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _size(value: object) -> str | None:
    """Return the size of a list or an object in words; None for other values."""
    if not isinstance(value, list | Mapping):
        return None
    count = len(cast("list[object] | Mapping[object, object]", value))
    kind, unit = ("an object", "key") if isinstance(value, Mapping) else ("a list", "item")
    return f"{kind} of {count} {unit}{'s' * (count != 1)}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then its causes (`__cause__`, else `__context__`) from the nearest to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class InvalidStack(KitError):
    """Error for a stack file, or another input file, that is invalid.

    `problems` has all problems found, not only the first; `verdict` states the consequence for the user.
    """

    def __init__(self, problems: Sequence[Problem], verdict: str = "the stack can't be deployed") -> None:
        self.problems = tuple(problems)
        self.verdict = verdict
        super().__init__("\n".join(map(str, problems)))
