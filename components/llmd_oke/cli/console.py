"""What a person sees: results on standard output, everything else on standard error."""

import os
import re
import time
from dataclasses import dataclass
from functools import cache
from textwrap import wrap

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.markup import escape
from rich.segment import Segment

from llmd_oke.errors import KitError, Problem, Refused
from llmd_oke.progress import PlainProgress, Progress

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""


class Told(SystemExit):
    """The end of a command whose work another process did, with its exit code: that one has said how it ended."""


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""What a terminal obeys instead of showing it, and what changes the order of what it shows."""


def visible(text: str) -> str:
    """A text with a picture in place of each character that a terminal would obey."""
    return _UNSEEN.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)


@dataclass(frozen=True)
class _Visible:
    """What is shown, without what names in it would have a terminal do. Rich's own codes are no part of its texts."""

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class _VisibleOnly(RenderHook):
    """Has everything that a console shows go through `_Visible`, whoever prints it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [each if isinstance(each, Control) else _Visible(each) for each in renderables]


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr, highlight=False)
    made.push_render_hook(_VisibleOnly())
    return made


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
    """Shows an error of the kit, and what would put it right."""
    if isinstance(error, Refused):
        show_problems(error.problems, error.verdict)
        return
    errors().print(f"[red bold]error[/] {escape(error.message)}")
    if error.remedy:
        errors().print(f"      {escape(error.remedy)}")


def show_problems(problems: tuple[Problem, ...], verdict: str) -> None:
    """Shows all problems of a file, and what they mean."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    errors().print(f"[red bold]error[/] {escape(verdict)}: {count}")
    for problem in problems:
        line = f" [dim](line {problem.line})[/]" if problem.line else ""
        errors().print(f"\n  [bold]{escape(problem.path)}[/]{line}")
        for name, text in (("found", _found(problem)), ("accepted", problem.accepted), ("because", problem.why)):
            own_lines = wrap(text, max(errors().width - _MARGIN, 20), break_long_words=False, break_on_hyphens=False)
            shown = escape(f"\n{' ' * _MARGIN}".join(own_lines))  # a digest or an address is copied whole
            errors().print(f"    [dim]{name:<{_MARGIN - 5}}[/] {shown}", soft_wrap=True)


def _found(problem: Problem) -> str:
    return "nothing" if problem.value is None else problem.short_value


class ConsoleProgress:
    """Steps and details, each with the time since the command began."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s

    def step(self, text: str) -> None:
        """A line for each step."""
        self._print(escape(text))

    def detail(self, text: str) -> None:
        """A dim line for news of a step."""
        self._print(f"[dim]  {escape(text)}[/]")

    def _print(self, text: str) -> None:
        errors().print(f"[dim]{time.monotonic() - self._began_s:6.1f} s[/]  {text}", soft_wrap=True)


def progress() -> Progress:
    """Coloured on a terminal, plain lines elsewhere."""
    return ConsoleProgress(_began_s()) if errors().is_terminal else PlainProgress(began_s=_began_s())


def inherited_environment() -> dict[str, str]:
    """What a command that this one runs must know to look like a part of it: the terminal, and when it all began."""
    look = {name: os.environ[name] for name in ("TERM", "COLORTERM", "COLUMNS", "NO_COLOR") if name in os.environ}
    return {**look, _BEGAN: str(_began_s())}


_BEGAN = "LLMD_OKE_BEGAN_S"


@cache
def _began_s() -> float:
    """On the clock that all processes of a machine share (`CLOCK_MONOTONIC`)."""
    return float(os.environ.get(_BEGAN) or time.monotonic())
