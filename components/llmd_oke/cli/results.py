"""What commands that read results have in common: where they lie, hints, and what could not be read."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from llmd_oke.cli import console
from llmd_oke.errors import KitError
from llmd_oke.results.files import explain
from llmd_oke.results.reading import Hints, Rejected

MOST_REJECTED = 20

History = Annotated[
    str | None,
    typer.Option(
        "--history",
        help="Folder or s3://BUCKET/PREFIX of earlier results; `reports` in the project if left out.",
        envvar="LLMD_OKE_HISTORY",
    ),
]
Hint = Annotated[
    list[str] | None,
    typer.Option("--hint", help="What a file leaves out, as NAME=VALUE, such as gpus=16 or topology=8p-tp1-2d-tp4."),
]

_HINTS = TypeAdapter(Hints)


def history_address(history: str | None, project: Path) -> str:
    """Where earlier results are."""
    return history or str(project / "reports")


def parse_hints(texts: Iterable[str]) -> Hints:
    """The hints of texts such as `gpus=16`.

    Raises:
        KitError: a name is none, or a value is impossible.
    """
    known = [field.name for field in fields(Hints) if field.name != "notes"]
    given: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or name not in known:
            raise KitError(f"{text!r} is no hint.", f"A hint is NAME=VALUE; names are {', '.join(known)}.")
        given[name] = value
    try:
        return _HINTS.validate_python(given)
    except ValidationError as error:
        raise KitError(f"A hint has an impossible value: {explain(error)}.") from error


def show_rejected(rejected: Sequence[Rejected]) -> None:
    """Says what was not read, by file and line."""
    for each in rejected[:MOST_REJECTED]:
        console.errors().print(f"[yellow]not read[/] {escape(str(each))}", soft_wrap=True)
    if len(rejected) > MOST_REJECTED:
        console.errors().print(f"[yellow]not read[/] and {len(rejected) - MOST_REJECTED} more")
