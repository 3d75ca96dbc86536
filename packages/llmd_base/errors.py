"""Errors that reach a user.

KitError                 anything that the kit explains in its own words; shown without a traceback
└── InvalidStack              a stack file that can't be deployed: carries every problem that was found
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from reprlib import Repr
from typing import cast


class _Short(Repr):
    """Values as a stack file spells them."""

    def repr_NoneType(self, _value: None, _level: int) -> str:  # noqa: N802 - reprlib's names
        return "null"

    def repr_bool(self, value: bool, _level: int) -> str:
        return "true" if value else "false"

    def repr_date(self, value: date, _level: int) -> str:
        return value.isoformat()

    repr_datetime = repr_date


_LONGEST_IMAGE = 320
"""A reference of a container image with tag and digest, in characters."""

_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 60, 60


class KitError(Exception):
    """Something the user can act on.

    `message` says what was wrong and where; `remedy`, when there is one, says what would put it right.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n{remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True)
class Problem:
    """One thing in a stack file that can't be deployed, or in another file of its project.

    `path` is where (`models[0].topology`), `value` what stands there (None where nothing does), `accepted` what would
    be accepted, `why` the reason with its figures, `line` the line of the file where that is known. `file` is the other
    file, as seen from the project (`values/models/mine.yaml`).
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
        return f"{where}{value}: {self.why} (accepted: {self.accepted})"

    @property
    def place(self) -> str:
        """The path, after the file where that is not the stack file."""
        return ": ".join(part for part in (self.file, self.path) if part)

    @property
    def short_value(self) -> str:
        """The value as text of at most 80 characters; a digest is told whole."""
        if isinstance(self.value, str) and "@sha256:" in self.value and len(self.value) <= _LONGEST_IMAGE:
            return repr(self.value)
        text = _SHORT.repr(
            list(cast("tuple[object, ...]", self.value)) if isinstance(self.value, tuple) else self.value
        )
        return text if len(text) <= 80 else f"{text[:77]}..."


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then what led to it, the nearest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class InvalidStack(KitError):
    """A stack file that can't be deployed, or another file that says what to do and can't be followed.

    `problems` has all that was found, never only the first; `verdict` says what that means.
    """

    def __init__(self, problems: Sequence[Problem], verdict: str = "the stack can't be deployed") -> None:
        self.problems = tuple(problems)
        self.verdict = verdict
        super().__init__("\n".join(map(str, problems)))
