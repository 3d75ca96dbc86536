"""Output for people: results on standard output, everything else on standard error."""

import json
import os
import re
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import isfinite
from textwrap import wrap
from typing import Any

import typer
from llmd_base.errors import InvalidStack, KitError, Problem, printable
from llmd_base.progress import PlainProgress, Progress
from llmd_base.records import document
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.markup import escape
from rich.segment import Segment

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT."""


class ChildExit(SystemExit):
    """Exit of the command with the exit code of a child process that ran in its place. The child has shown its errors
    already.
    """


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Characters that a terminal executes instead of showing, and characters that change the order of the text."""


def visible(text: str) -> str:
    """Return a text with a visible symbol in place of each control character."""
    return _UNSEEN.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text)


@dataclass(frozen=True)
class Visible:
    """Rich renderable that shows another one without control characters from names or files. Rich's own control codes
    are kept.
    """

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class _VisibleOnly(RenderHook):
    """Render hook that wraps everything a console shows in `Visible`."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [part if isinstance(part, Control) else Visible(part) for part in renderables]


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    console.push_render_hook(_VisibleOnly())
    return console


@cache
def output() -> Console:
    """Return the console for results: standard output."""
    return _console(stderr=False)


@cache
def errors() -> Console:
    """Return the console for progress and errors: standard error."""
    return _console(stderr=True)


def show_line(text: str) -> None:
    """Show a line of a command's result on standard output as it is, without markup or line breaks of Rich."""
    output().print(text, markup=False, soft_wrap=True)


def show_json(document: object) -> None:
    """Show a command's result as JSON on standard output, with the text of values that JSON can't represent."""
    typer.echo(json.dumps(document, indent=2, default=str))


def tell(text: str) -> None:
    """Show a line beside a command's result on standard error as it is, without markup or line breaks of Rich."""
    errors().print(text, markup=False, soft_wrap=True)


def confirm(question: str, *, yes: bool, as_json: bool = False) -> None:
    """Ask a question before a change, unless `yes` answers it.

    Raises:
        KitError: nobody can be asked: with `as_json`, or without a terminal.
        Exit: the answer is no.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise KitError("Nobody can be asked.", "Add --yes.")
    if not typer.confirm(question):
        raise typer.Exit(1)


_MARGIN = 13
"""Columns before the texts of a problem."""


def show_error(error: KitError) -> None:
    """Show an error of the kit with its remedy on standard error."""
    if isinstance(error, InvalidStack):
        show_problems(error.problems, error.verdict)
        return
    errors().print(f"[red bold]error[/] {escape(error.message)}")
    if error.remedy:
        errors().print(f"      {escape(error.remedy)}")


def show_problems(problems: tuple[Problem, ...], verdict: str) -> None:
    """Show all problems of a file, after a line with the verdict on the file."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    errors().print(f"[red bold]error[/] {escape(verdict)}: {count}")
    for problem in problems:
        line = f" [dim](line {problem.line})[/]" if problem.line else ""
        errors().print(f"\n  [bold]{escape(problem.place)}[/]{line}")
        for name, text in (
            ("found", "nothing" if problem.value is None else problem.short_value),
            ("accepted", printable(problem.accepted)),
            ("because", printable(problem.why)),
        ):
            own_lines = wrap(text, max(errors().width - _MARGIN, 20), break_long_words=False, break_on_hyphens=False)
            shown = escape(f"\n{' ' * _MARGIN}".join(own_lines))  # a digest or an address is copied whole
            errors().print(f"    [dim]{name:<{_MARGIN - 5}}[/] {shown}", soft_wrap=True)


class ConsoleProgress:
    """Progress on standard error with steps and details, each with the seconds since the command began."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s

    def step(self, text: str) -> None:
        """Print a line for a step of the command."""
        self._print(escape(text))

    def detail(self, text: str) -> None:
        """Print a dim line for a detail of the current step."""
        self._print(f"[dim]  {escape(text)}[/]")

    def _print(self, text: str) -> None:
        errors().print(f"[dim]{time.monotonic() - self._started_s:6.1f} s[/]  {text}", soft_wrap=True)


def progress() -> Progress:
    """Return the progress display: coloured on a terminal, plain lines elsewhere."""
    return ConsoleProgress(_started_s()) if errors().is_terminal else PlainProgress(started_s=_started_s())


def inherited_environment() -> dict[str, str]:
    """Return the environment variables by which the output of a child process continues that of this command: the
    terminal's properties, and the start time of the command.
    """
    look = {name: os.environ[name] for name in ("TERM", "COLORTERM", "COLUMNS", "NO_COLOR") if name in os.environ}
    return {**look, _BEGAN: str(_started_s())}


_BEGAN = "LLMD_OKE_BEGAN_S"


@cache
def _started_s() -> float:
    """Return the start time of the first command, in seconds of the clock that all processes
    share (`CLOCK_MONOTONIC`).
    """
    return float(os.environ.get(_BEGAN) or time.monotonic())


_AS_JSON: ContextVar[bool] = ContextVar("as_json", default=False)


def remember_json(as_json: bool) -> bool:
    """Remember whether the command has --json, so that errors are then printed as JSON too; return `as_json`."""
    _AS_JSON.set(as_json)
    return as_json


def print_json_error(error: KitError) -> None:
    """Print an error of the kit as JSON, if the command has --json."""
    if _AS_JSON.get():
        show_json(error_document(error))


def error_document(error: KitError) -> dict[str, Any]:
    """Return an error as plain data, with all problems if a file was refused."""
    if isinstance(error, InvalidStack):
        return {
            "error": error.verdict,
            "remedy": None,
            "problems": [problem_document(problem) for problem in error.problems],
        }
    return {"error": error.message, "remedy": error.remedy}


def problem_document(problem: Problem) -> dict[str, Any]:
    """Return one problem of a file as plain data for JSON, with a short text of a value that JSON can't represent."""
    value = problem.value
    is_plain = isfinite(value) if isinstance(value, float) else value is None or isinstance(value, bool | int | str)
    return document("file path line value accepted why", problem, value=value if is_plain else problem.short_value)
