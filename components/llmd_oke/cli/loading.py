"""Commands that are imported when they are run: `check` needs no plots, no Kubernetes client and no Pulumi."""

import ast
import gc
import re
from collections import UserDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from llmd_base.errors import KitError
from typer.core import TyperCommand, TyperGroup


class LoadingGroup(TyperGroup):
    """Command group with commands that are imported only when they run; the tables of its class name them. `--help`
    reads their source texts without importing them, which takes 0.25 s of CPU time instead of 1.06 s (decision 0113).
    """

    places: ClassVar[Mapping[str, str]] = {}
    """Entry points by the commands' names: module and function, or module and `typer.Typer`, for example
    `llmd_rehearsal.cli:app [rehearsal]`. Brackets contain the extras that the command needs."""

    panels: ClassVar[Mapping[str, str]] = {}
    """Headings in `--help`, by the commands' names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        imported: Mapping[str, Any] = self.commands
        self._known: Mapping[str, Any] = {**self.places, **imported}
        self.commands = _Commands(self._known, self.panels)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text of the group with the list of its commands."""
        commands = self.commands
        self.commands = _Descriptions(self._known, self.panels)
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands


class _Commands(UserDict[str, Any]):
    """Mapping of names to commands, and to entry points of commands, which are imported when they are looked up."""

    def __init__(self, known: Mapping[str, Any], panels: Mapping[str, str]) -> None:
        super().__init__(known)
        self._panels = panels

    def __getitem__(self, name: str) -> Any:
        place = super().__getitem__(name)
        if not isinstance(place, str):
            return place
        return _command(name, load(EntryPoint(name, place, ""), f"`{name}`"), self._panels.get(name))


class _Descriptions(_Commands):
    """Mapping of names to commands with help texts only, for `--help`."""

    def __getitem__(self, name: str) -> Any:
        place = self.data[name]
        text = _description(place) if isinstance(place, str) else None
        if text is None:
            return super().__getitem__(name)
        return TyperCommand(name, help=text, rich_help_panel=self._panels.get(name))


def load(entry: EntryPoint, what: str) -> Any:
    """Import and return the object that an entry point names.

    Args:
        entry: the entry point.
        what: subject of the error's message, such as `llmd-oke tune`.

    Raises:
        KitError: a package of one of the entry point's extras isn't installed; the message names the extra.
    """
    try:
        with _uncollected():
            return entry.load()
    except ModuleNotFoundError as error:
        if not entry.extras or (error.name or "").startswith("llmd_oke"):
            raise
        remedy = f"Install llmd-oke[{','.join(entry.extras)}]."
        raise KitError(f"{what} needs {error.name}, which is not installed.", remedy) from error


def load_only(group: str, what: str, missing: KitError) -> Any:
    """Import and return the object of the only entry point in a group. By entry points the kit finds functions of
    packages that import the kit. `what` is the subject of the error's message.

    Raises:
        KitError: `missing`, if the installation has no such entry point; or a package of its extras isn't installed.
    """
    entry = next(iter(entry_points(group=group)), None)
    if entry is None:
        raise missing
    return load(entry, what)


@contextmanager
def _uncollected() -> Generator[None]:
    """Disable garbage collection during an import, which creates almost no garbage: `check` takes 0.20 s less CPU time
    without collections (decision 0113).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # what a command reads lives as long as it
        if collects:
            gc.enable()


def _command(name: str, part: Any, panel: str | None) -> Any:
    holder = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)
    holder.callback()(_no_options)
    if isinstance(part, typer.Typer):
        holder.add_typer(part, name=name, rich_help_panel=panel)
    else:
        holder.command(name, rich_help_panel=panel)(part)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def _no_options() -> None:
    """Make a Typer application a group even with one command, which Typer does if it has a callback."""


@cache
def _description(place: str) -> str | None:
    """Return the docstring of a command's function, or the help of its `Typer`, from the source text; None if the
    source doesn't have it.

    Only the statement is parsed; parsing whole modules would add 0.1 s to `--help`.
    """
    entry = EntryPoint("", place, "")
    spec = find_spec(entry.module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    statement = re.search(rf"^(def {entry.attr}\(|{entry.attr} = ).*\n([ )].*\n|\n)*", source, re.MULTILINE)
    match ast.parse(statement[0]).body[0] if statement else None:
        case ast.FunctionDef() as function:
            return ast.get_docstring(function)
        case ast.Assign(value=ast.Call(keywords=keywords)):
            texts = [keyword.value for keyword in keywords if keyword.arg == "help"]
            return next((str(text.value) for text in texts if isinstance(text, ast.Constant)), None)
        case _:
            return None
