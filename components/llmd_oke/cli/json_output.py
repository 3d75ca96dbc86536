"""What a command with `--json` prints where it fails."""

import json
from contextvars import ContextVar
from math import isfinite
from typing import Any

import typer

from llmd_oke.errors import KitError, Problem, Refused

_WANTED: ContextVar[bool] = ContextVar("json_wanted", default=False)


def remember(wanted: bool) -> bool:
    """Keeps in mind whether the command was asked for JSON."""
    _WANTED.set(wanted)
    return wanted


def print_error(error: KitError) -> None:
    """Prints an error of the kit, if the command was asked for JSON."""
    if _WANTED.get():
        typer.echo(json.dumps(described(error), indent=2, default=str))


def described(error: KitError) -> dict[str, Any]:
    """An error as plain data; with all problems where a file was refused."""
    if isinstance(error, Refused):
        return {"error": error.verdict, "remedy": None, "problems": [problem(each) for each in error.problems]}
    return {"error": error.message, "remedy": error.remedy}


def problem(found: Problem) -> dict[str, Any]:
    """One problem of a file as plain data."""
    return {
        "path": found.path,
        "line": found.line,
        "value": _plain(found),
        "accepted": found.accepted,
        "why": found.why,
    }


def _plain(found: Problem) -> object:
    """The value itself where it is one that JSON has, a short text of any other."""
    value = found.value
    if isinstance(value, float):
        return value if isfinite(value) else found.short_value
    return value if value is None or isinstance(value, bool | int | str) else found.short_value
