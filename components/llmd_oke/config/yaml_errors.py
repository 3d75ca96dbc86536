"""Why a file is not YAML, in words for who wrote it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml
from yaml.reader import ReaderError

from llmd_oke.errors import KitError

MOST_BYTES = 4 * 2**20
"""Of a YAML text from outside: the largest benchmark report has 60 KiB."""

MOST_NESTING = 2000
"""Of objects and lists in each other: YAML's C reader has no limit of its own and ends the whole program."""

MOST_VALUES = 200_000
"""That a text stands for, with all that its aliases repeat: 400 bytes of aliases can stand for billions."""

_Events: Any = getattr(yaml, "CLoader", yaml.Loader)


class UnboundedError(yaml.YAMLError):
    """A YAML text that would take its reader's stack, memory or time."""


def require_bounded(text: str, most_values: float = MOST_VALUES) -> None:
    """Look through a YAML text before anything is made of it, in time that grows with its length alone.

    Raises:
        UnboundedError: it is too long, nested too deeply, or stands for too much.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > MOST_BYTES:
        raise UnboundedError(f"it is longer than {MOST_BYTES // 2**20} MiB")
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]
    events = cast("Iterable[yaml.Event]", yaml.parse(text, Loader=_Events))
    for event in events:
        size, anchor = 0, getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, 1))
            if len(open_) > MOST_NESTING:
                raise UnboundedError(f"it is nested too deeply: more than {MOST_NESTING} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        elif isinstance(event, yaml.AliasEvent):
            size, anchor = sizes.get(str(anchor), 1), None
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        if anchor:
            sizes[anchor] = size
        outer, before = open_[-1]
        open_[-1] = (outer, before + size)
        if before + size > most_values:
            raise UnboundedError(f"it stands for more than {most_values:,} values")


def explained(path: Path, error: Exception) -> KitError:
    """What was found wrong when a file was read as YAML, and at which line."""
    if isinstance(error, UnicodeDecodeError):
        line = bytes(error.object)[: error.start].count(b"\n") + 1
        return KitError(f"{path}:{line} is not YAML: it has a byte that is not UTF-8.", "Save the file as UTF-8.")
    if isinstance(error, ReaderError):
        return KitError(f"{path} is not YAML: character {error.position} of it is a control character.", "Remove it.")
    if isinstance(error, RecursionError):
        return KitError(f"{path} is not YAML that can be read: it is nested too deeply.")
    if isinstance(error, yaml.MarkedYAMLError):
        return _marked(path, error)
    return KitError(f"{path} is not YAML: {error}")


def _marked(path: Path, error: yaml.MarkedYAMLError) -> KitError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = error.problem or error.context or "it can't be read"
    if mark and _begins_with_tab(path, mark.line):
        return KitError(f"{where} is not YAML: the line begins with a tab.", "Use spaces.")
    if "could not determine a constructor" in problem:
        tag = problem.rsplit(" ", 1)[-1].strip("'").replace("tag:yaml.org,2002:", "!!")
        return KitError(f"{where} is not YAML that the kit reads: the tag {tag} means nothing here.", "Leave it out.")
    told = dict.fromkeys(part for part in (error.context, problem) if part)
    return KitError(f"{where} is not YAML: {', '.join(told)}.")


def _begins_with_tab(path: Path, line: int) -> bool:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    text = lines[line] if line < len(lines) else ""
    return "\t" in text[: len(text) - len(text.lstrip())]
