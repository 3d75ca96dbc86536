"""Why a file is not YAML, in words for who wrote it."""

from pathlib import Path

import yaml
from yaml.reader import ReaderError

from llmd_oke.errors import KitError


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
