"""Commands that are loaded when they are used: `check` needs no plots, no cluster's client and no control plane."""

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup


class LoadingGroup(TyperGroup):
    """A group whose commands are named by its class's table; `--help` loads all of them."""

    places: ClassVar[Mapping[str, str]] = {}
    """Commands by name, each with module and function, or module and `typer.Typer`: `llmd_oke.cli.tune:app`."""

    panels: ClassVar[Mapping[str, str]] = {}
    """Headings in `--help`, by command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.places, self.panels)


class _Commands(UserDict[str, Any]):
    """Names with places on the outside of it, commands where one is asked for."""

    def __init__(self, places: Mapping[str, str], panels: Mapping[str, str]) -> None:
        super().__init__(places)
        self._panels = panels

    def __getitem__(self, name: str) -> Any:
        return _command(name, super().__getitem__(name), self._panels.get(name))


def _command(name: str, place: str, panel: str | None) -> Any:
    module, _, attribute = place.partition(":")
    part = getattr(import_module(module), attribute)
    holder = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)
    holder.callback()(_no_options)
    if isinstance(part, typer.Typer):
        holder.add_typer(part, name=name, rich_help_panel=panel)
    else:
        holder.command(name, rich_help_panel=panel)(part)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def _no_options() -> None:
    """A Typer with a callback is a group, even with one command."""
