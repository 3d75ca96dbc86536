"""Entries by name: a project's own `values/` stand beside the kit's, and over those of their name.

The kit's entries are held to their types by its tests; a project's are judged here, each with all that is wrong with
it, its path and its line.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

from llmd_base.documents import MAX_VALUES, kind_of
from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import ValidationError

from llmd_oke import values
from llmd_oke.config import yaml_files
from llmd_oke.config.shape_problems import problems as shape_problems
from llmd_oke.config.yaml_files import CONFIG_KEY
from llmd_oke.values import VALUES, EntryType, ProjectFile, follows_project, project_values

MAX_BYTES = 256 * 2**10
"""Of one file. The kit's largest, the lock of container images, has a fiftieth of it."""

VERDICT = "the project's values/ can't be used"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Of an entry, and of its file without `.yaml`."""

NAME_FORM = "letters, digits, dots, dashes and underscores, the first a letter or a digit"

SUFFIX = ".yaml"


@dataclass(frozen=True)
class EntryKind(Generic[EntryType]):
    """The entries in one folder of `values/` that projects may have too.

    Each has the name of its file; `key` is the field that says it again, None where the names are the kit's `files`.
    """

    folder: str
    type_: type[EntryType]
    key: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProjectEntry:
    """An entry of a project's own: its file as seen from the project with its SHA-256, and whether the kit has one of
    that name too. `kind` is its folder.
    """

    kind: str
    name: str
    file: str
    sha256: str
    replaces_kit: bool

    @property
    def is_deployed(self) -> bool:
        """True if what is deployed follows from the entry, and not only what is said of it."""
        return self.kind.partition("/")[0] not in {"prices", "latency"}


def names(folder: str) -> list[str]:
    """The names of all entries in a folder of `values/`, the kit's and the project's own, sorted."""
    return sorted({*values.names(folder), *_project_files(folder)})


def entry(kind: EntryKind[EntryType], name: str) -> EntryType | None:
    """The entry of that name, the project's before the kit's; None where neither has it.

    Raises:
        InvalidStack: it is the project's, and something is wrong with it.
    """
    return project_entry(kind, name) or values.entry(kind.folder, name, kind.type_)


def required_entry(kind: EntryKind[EntryType], name: str) -> EntryType:
    """The same for a name that the kit has.

    Raises:
        InvalidStack: it is the project's, and something is wrong with it.
    """
    return project_entry(kind, name) or values.required_entry(kind.folder, name, kind.type_)


def project_entry(kind: EntryKind[EntryType], name: str) -> EntryType | None:
    """The project's own entry of that name, or None.

    Raises:
        InvalidStack: something is wrong with it.
    """
    if name not in _project_files(kind.folder):
        return None
    result, problems = judged(kind, name)
    if problems:
        raise InvalidStack(problems, VERDICT)
    return result


def project_names(folder: str) -> list[str]:
    """The names of the project's own entries in a folder of its `values/`, sorted."""
    return sorted(_project_files(folder))


def origin(folder: str, name: str) -> ProjectEntry | None:
    """Return the project's file that an entry comes from, None where it is the kit's."""
    file = _project_files(folder).get(name)
    if file is None:
        return None
    digest = hashlib.sha256((project_values().folder / file.path).read_bytes()).hexdigest()
    return ProjectEntry(folder, name, f"{VALUES}/{file.path}", digest, name in values.names(folder))


@follows_project
def judged(kind: EntryKind[EntryType], name: str) -> tuple[EntryType | None, Sequence[Problem]]:
    """A project's entry, and all that is wrong with it. There is none where its own shape is wrong."""
    file = _project_files(kind.folder)[name]
    where = f"{VALUES}/{file.path}"
    if file.size_bytes > MAX_BYTES:
        why = f"it has {file.size_bytes:,} bytes"
        return None, [Problem("", None, f"at most {MAX_BYTES:,} bytes", why, file=where)]
    try:
        document = yaml_files.read(project_values().folder / file.path, MAX_VALUES)
    except KitError as error:
        accepted = (error.remedy or "a YAML file").rstrip(".")
        return None, [Problem("", None, accepted, error.message.rstrip("."), file=where)]
    result, problems = _validated(kind, document)
    if result is not None and kind.key is not None and getattr(result, kind.key) != name:
        problems = [*problems, Problem(kind.key, getattr(result, kind.key), name, f"the file is {name}{SUFFIX}")]
    return result, [
        problem
        if problem.file
        else replace(problem, line=problem.line or document.line_of_part(problem.path), file=where)
        for problem in problems
    ]


def _validated(kind: EntryKind[EntryType], document: yaml_files.YamlDocument) -> tuple[EntryType | None, list[Problem]]:
    """The record of a document. It is read as JSON, which has lists for tuples and is strict about all else."""
    value = document.value
    if problems := list(document.problems()):
        return None, problems
    if not isinstance(value, Mapping):
        keys = ", ".join(kind.type_.model_fields)
        return None, [Problem("", None, f"an object with the keys {keys}", f"it is {kind_of(value)}")]
    if problems := list(_infinite(cast("object", value), "")):
        return None, problems
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError) as error:
        return None, [Problem("", None, "texts and numbers as keys", str(error))]
    try:
        return kind.type_.model_validate_json(text, strict=True), []
    except InvalidStack as refused:  # of an entry that this one names
        return None, list(refused.problems)
    except ValidationError as error:
        problems = shape_problems(error.errors(include_url=False), json.loads(text), kind.type_)
        return None, [replace(problem, path="") if problem.path == CONFIG_KEY else problem for problem in problems]


def _infinite(value: object, path: str) -> Iterator[Problem]:
    """Numbers without an end, which no entry of a project's has."""
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, value, "a finite number", "it has no end")
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, object]", value).items():
            yield from _infinite(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[object]", value)):
            yield from _infinite(item, f"{path}[{i}]")


@follows_project
def _project_files(folder: str) -> Mapping[str, ProjectFile]:
    """The files of a folder that are entries by their names, by these."""
    return {
        stem: file
        for file in project_values().files
        if not (file.outside or file.is_folder)
        and file.path.rpartition("/")[0] == folder
        and file.path.endswith(SUFFIX)
        and NAME.fullmatch(stem := file.path.rpartition("/")[2].removesuffix(SUFFIX))
    }
