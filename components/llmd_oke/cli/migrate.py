"""`llmd-oke migrate`: a stack file with current keys in place of deprecated ones."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_base.records import document
from rich.markup import escape

from llmd_oke.cli import console, options
from llmd_oke.cli.console import problem_document
from llmd_oke.config import read, stack_file, yaml_files
from llmd_oke.config.deprecated_keys import DeprecatedKey, KeyReplacement, deprecated_keys, replace_keys
from llmd_oke.config.effective import StackSource
from llmd_oke.config.load import stack_object
from llmd_oke.config.yaml_files import steps

Write = Annotated[bool, typer.Option("--write", help="Write the file; without it, what would change is shown.")]


@dataclass(frozen=True)
class Migration:
    """Text of a stack file after its deprecated keys were replaced, and the replaced keys; equal to the file's own text
    if it has none.
    """

    path: Path
    before: str
    after: str
    replaced: tuple[KeyReplacement, ...]

    @property
    def difference(self) -> str:
        """Unified diff of the stack file before and after the migration; empty if nothing changes."""
        return yaml_files.difference(self.before, self.after, str(self.path))


def migrate(
    stack: Annotated[
        str | None, typer.Option("--stack", "-s", help="Stack, of the file `Pulumi.<stack>.yaml` in `stacks`.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Stack file, or one that stacks build on, in place of --stack.", dir_okay=False, exists=True
        ),
    ] = None,
    write: Write = False,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Replace deprecated keys of a stack file by current ones, and show the difference. Comments and order stay.

    Nothing is written without --write, nor where a key needs a decision: those are told all at once. A file without
    deprecated keys stays as it is.
    """
    if (stack is None) == (file is None):
        raise KitError("Which stack file is meant?", "Give --stack NAME, or --file FILE.")
    if stack is not None:
        read(project, stack)  # says which stacks there are, and what of the file is no YAML
    path = file or stack_file(project, str(stack))
    try:
        found = migration(path)
    except InvalidStack as refused:
        if not as_json:
            raise
        problems = [problem_document(problem) for problem in refused.problems]
        console.show_json(_document(path, None, problems, written=False))
        raise typer.Exit(1) from refused
    written = write and found.after != found.before
    if written:
        yaml_files.write_whole(path, found.after)
    if as_json:
        console.show_json(_document(path, found, [], written=written))
        return
    if found.difference:
        typer.echo(found.difference)
    for item in found.replaced:
        console.errors().print(f"[magenta]{escape(item.path)}[/] becomes {escape(item.replacement)}", soft_wrap=True)
    ended = "has no deprecated keys" if not found.replaced else "is written" if written else "is not written: --write"
    console.tell(f"{path} {ended}")


def migration(path: Path) -> Migration:
    """Replace the deprecated keys in a copy of a stack file, or of a file that stacks build on, and return
    the result.

    Raises:
        KitError: the file is not YAML, or deprecated keys inside its anchors can't be replaced.
        InvalidStack: deprecated keys need a person's decision; contains all problems, with lines.
    """
    content = yaml_files.read(path)
    if problems := list(content.problems()):
        raise InvalidStack(problems)
    before = path.read_bytes().decode()
    text = before.replace("\r\n", "\n")
    document = yaml_files.load(text)
    expected: Any = content.value
    own = path.name.startswith("Pulumi.") or (isinstance(content.value, Mapping) and "config" in content.value)
    # One key at a time, so that the paths of problems are those of the file as it is.
    problems = [problem for key in deprecated_keys() for problem in _replace(deepcopy(expected), [key], own=own)[1]]
    if problems:
        source = StackSource(path.name, content, own)
        located = [replace(each, line=source.line(tuple(steps(each.path)))) for each in dict.fromkeys(problems)]
        raise InvalidStack(sorted(located, key=lambda each: each.line or 0), "the file can't be migrated")
    replaced, _ = _replace(document, deprecated_keys(), own=own)
    if not replaced:
        return Migration(path, before, before, ())
    after = yaml_files.dump(document, text)
    _replace(expected, deprecated_keys(), own=own)
    if yaml_files.plain(after) != yaml_files.plain(yaml_files.text_of(expected)):
        keys = ", ".join(f"{item.path} (now {item.replacement})" for item in replaced)
        raise KitError(
            f"{path} can't be migrated: it has deprecated keys inside anchors.", f"Change them by hand: {keys}."
        )
    return Migration(path, before, after.replace("\n", "\r\n") if "\r\n" in before else after, tuple(replaced))


def _replace(document: Any, keys: Sequence[DeprecatedKey], *, own: bool) -> tuple[list[KeyReplacement], list[Problem]]:
    """Replace deprecated keys in a stack's own file, or in one that is an object of a stack's keys itself."""
    return replace_keys(stack_object(document) if own else document, keys)


def _document(path: Path, found: Migration | None, problems: list[dict[str, Any]], *, written: bool) -> dict[str, Any]:
    """Return a migration as plain data."""
    replaced = () if found is None else found.replaced
    return {
        "file": str(path),
        "ok": not problems,
        "problems": problems,
        "replaced": [document("path replacement since removed_in", item, item.entry) for item in replaced],
        "difference": "" if found is None else found.difference,
        "written": written,
    }
