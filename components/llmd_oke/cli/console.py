"""What a person sees: results on standard output, everything else on standard error."""

import time
from functools import cache

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmd_oke.errors import KitError, Problem, Refused
from llmd_oke.progress import PlainProgress, Progress


@cache
def output() -> Console:
    """Results."""
    return Console(highlight=False)


@cache
def errors() -> Console:
    """Progress and errors."""
    return Console(stderr=True, highlight=False)


def show_error(error: KitError) -> None:
    """Shows an error of the kit, and what would put it right."""
    if isinstance(error, Refused):
        show_problems(error.problems)
        return
    errors().print(f"[red bold]error[/] {escape(error.message)}")
    if error.remedy:
        errors().print(f"      {escape(error.remedy)}")


def show_problems(problems: tuple[Problem, ...]) -> None:
    """Shows all problems of a stack file."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    errors().print(f"[red bold]error[/] the stack can't be deployed: {count}")
    for problem in problems:
        line = f" [dim](line {problem.line})[/]" if problem.line else ""
        errors().print(f"\n  [bold]{escape(problem.path)}[/]{line}")
        table = Table.grid(padding=(0, 1))
        for name, text in (("found", _found(problem)), ("accepted", problem.accepted), ("because", problem.why)):
            table.add_row(f"    [dim]{name}[/]", escape(text))
        errors().print(table)


def _found(problem: Problem) -> str:
    text = "nothing" if problem.value is None else str(problem.value)
    return text if len(text) <= 100 else f"{text[:100]}…"


class ConsoleProgress:
    """Steps with the time since the start; details only where a step takes its time."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """A line for each step."""
        self._print(escape(text))

    def detail(self, text: str) -> None:
        """A dim line for news of a step."""
        self._print(f"[dim]  {escape(text)}[/]")

    def _print(self, text: str) -> None:
        errors().print(f"[dim]{time.monotonic() - self._began:6.1f} s[/]  {text}", soft_wrap=True)


def progress() -> Progress:
    """Coloured on a terminal, plain lines elsewhere."""
    return ConsoleProgress() if errors().is_terminal else PlainProgress()
