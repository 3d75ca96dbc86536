"""Output for people: results on standard output, everything else on standard error."""

import json
import os
import re
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import isfinite
from textwrap import wrap
from typing import Any

import typer
from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_base.progress import PlainProgress, Progress
from llmd_base.records import document
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.markup import escape
from rich.segment import Segment

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""


class ChildExit(SystemExit):
    """The end of a command whose work another process did, with its exit code: that one has said how it ended."""


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""What a terminal obeys instead of showing it, and what changes the order of what it shows."""


def visible(text: str) -> str:
    """A text with a picture in place of each character that a terminal would obey."""
    return _UNSEEN.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text)


@dataclass(frozen=True)
class Visible:
    """Text without what names in it would have a terminal do. Rich's own codes are no part of its texts."""

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class _VisibleOnly(RenderHook):
    """Hook by which everything that a console shows goes through `Visible`, whoever prints it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [part if isinstance(part, Control) else Visible(part) for part in renderables]


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(_VisibleOnly())
    return console


@cache
def output() -> Console:
    """Results."""
    return _console(stderr=False)


@cache
def errors() -> Console:
    """Progress and errors."""
    return _console(stderr=True)


_MARGIN = 13
"""Columns before the texts of a problem."""


def show_error(error: KitError) -> None:
    """Show an error of the kit, and what would put it right."""
    if isinstance(error, InvalidStack):
        show_problems(error.problems, error.verdict)
        return
    errors().print(f"[red bold]error[/] {escape(error.message)}")
    if error.remedy:
        errors().print(f"      {escape(error.remedy)}")


def show_problems(problems: tuple[Problem, ...], verdict: str) -> None:
    """Show all problems of a file, and what they mean."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    errors().print(f"[red bold]error[/] {escape(verdict)}: {count}")
    for problem in problems:
        line = f" [dim](line {problem.line})[/]" if problem.line else ""
        errors().print(f"\n  [bold]{escape(problem.place)}[/]{line}")
        for name, text in (
            ("found", "nothing" if problem.value is None else problem.short_value),
            ("accepted", problem.accepted),
            ("because", problem.why),
        ):
            own_lines = wrap(text, max(errors().width - _MARGIN, 20), break_long_words=False, break_on_hyphens=False)
            shown = escape(f"\n{' ' * _MARGIN}".join(own_lines))  # a digest or an address is copied whole
            errors().print(f"    [dim]{name:<{_MARGIN - 5}}[/] {shown}", soft_wrap=True)


class ConsoleProgress:
    """Steps and details, each with the time since the command began."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s

    def step(self, text: str) -> None:
        """A line for each step."""
        self._print(escape(text))

    def detail(self, text: str) -> None:
        """A dim line for news of a step."""
        self._print(f"[dim]  {escape(text)}[/]")

    def _print(self, text: str) -> None:
        errors().print(f"[dim]{time.monotonic() - self._started_s:6.1f} s[/]  {text}", soft_wrap=True)


def progress() -> Progress:
    """Coloured on a terminal, plain lines elsewhere."""
    return ConsoleProgress(_started_s()) if errors().is_terminal else PlainProgress(started_s=_started_s())


def inherited_environment() -> dict[str, str]:
    """Return the variables by which a command that this one runs looks like a part of it: the terminal, and when it all
    began.
    """
    look = {name: os.environ[name] for name in ("TERM", "COLORTERM", "COLUMNS", "NO_COLOR") if name in os.environ}
    return {**look, _BEGAN: str(_started_s())}


_BEGAN = "LLMD_OKE_BEGAN_S"


@cache
def _started_s() -> float:
    """Return when it all began, on the clock that all processes of a machine share (`CLOCK_MONOTONIC`)."""
    return float(os.environ.get(_BEGAN) or time.monotonic())


_AS_JSON: ContextVar[bool] = ContextVar("as_json", default=False)


def remember_json(as_json: bool) -> bool:
    """Keep in mind whether the command has --json."""
    _AS_JSON.set(as_json)
    return as_json


def print_json_error(error: KitError) -> None:
    """Print an error of the kit as JSON, if the command has --json."""
    if _AS_JSON.get():
        typer.echo(json.dumps(error_document(error), indent=2, default=str))


def error_document(error: KitError) -> dict[str, Any]:
    """An error as plain data; with all problems where a file was refused."""
    if isinstance(error, InvalidStack):
        return {
            "error": error.verdict,
            "remedy": None,
            "problems": [problem_document(problem) for problem in error.problems],
        }
    return {"error": error.message, "remedy": error.remedy}


def problem_document(problem: Problem) -> dict[str, Any]:
    """One problem of a file as plain data."""
    return document("file path line value accepted why", problem, value=_plain(problem))


def _plain(problem: Problem) -> object:
    """The value itself where it is one that JSON has, a short text of any other."""
    value = problem.value
    if isinstance(value, float):
        return value if isfinite(value) else problem.short_value
    return value if value is None or isinstance(value, bool | int | str) else problem.short_value
