"""Entries of `values/` by name: those in a project's own `values/` extend the kit's, and replace those with the same
name.

Tests validate the kit's entries; this module validates a project's, and reports all problems of an entry with path and
line.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, cast

from llmd_base.documents import FINITE, MAX_VALUES, NOT_FINITE, kind_of, leaves
from llmd_base.errors import InvalidStack, KitError, Problem
from pydantic import ValidationError

from llmd_oke import values
from llmd_oke.config import yaml_files
from llmd_oke.config.shape_problems import problems as shape_problems
from llmd_oke.config.yaml_files import CONFIG_KEY
from llmd_oke.values import VALUES, EntryType, ProjectFile, follows_project, project_values

MAX_BYTES = 256 * 2**10
"""Maximum size in bytes of one file of a project's `values/`. The kit's largest file, the lock of container images, has
a fiftieth of it.
"""

VERDICT = "the project's values/ can't be used"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Pattern of an entry's name, which is the file name without `.yaml`."""

NAME_FORM = "letters, digits, dots, dashes and underscores, the first a letter or a digit"

SUFFIX = ".yaml"


@dataclass(frozen=True)
class EntryKind(Generic[EntryType]):
    """Kind of catalogue entries that projects may have too, which is one folder of `values/`.

    Attributes:
        folder: path inside `values/`.
        type_: type of the entries.
        key: field that repeats the file name; None for kinds whose names are fixed by `files`.
        files: permitted names; empty if any name is permitted.
    """

    folder: str
    type_: type[EntryType]
    key: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProjectEntry:
    """Entry in a project's own `values/`.

    Attributes:
        kind: folder of the entry in `values/`.
        name: name of the entry.
        file: path of the file, relative to the project.
        sha256: SHA-256 of the file.
        replaces_kit: whether the kit has an entry with the same name.
    """

    kind: str
    name: str
    file: str
    sha256: str
    replaces_kit: bool

    @property
    def is_deployed(self) -> bool:
        """True if the deployed objects depend on the entry; prices and latency figures affect only reports."""
        return self.kind.partition("/")[0] not in {"prices", "latency"}


def names(folder: str) -> list[str]:
    """Return the names of all entries in a folder of `values/`, both the kit's and the project's, sorted."""
    return sorted({*values.names(folder), *_project_files(folder)})


def entry(kind: EntryKind[EntryType], name: str) -> EntryType | None:
    """Return the entry with this name, the project's in preference to the kit's; None if neither has one.

    Raises:
        InvalidStack: the project's entry is invalid.
    """
    return project_entry(kind, name) or values.entry(kind.folder, name, kind.type_)


def required_entry(kind: EntryKind[EntryType], name: str) -> EntryType:
    """Return the entry with this name, the project's in preference to the kit's, which must exist.

    Raises:
        InvalidStack: the project's entry is invalid.
    """
    return project_entry(kind, name) or values.required_entry(kind.folder, name, kind.type_)


def project_entry(kind: EntryKind[EntryType], name: str) -> EntryType | None:
    """Return the project's own entry with this name; None if the project has none.

    Raises:
        InvalidStack: the entry is invalid.
    """
    if name not in _project_files(kind.folder):
        return None
    result, problems = judged(kind, name)
    if problems:
        raise InvalidStack(problems, VERDICT)
    return result


def project_names(folder: str) -> list[str]:
    """Return the names of the project's own entries in a folder of its `values/`, sorted."""
    return sorted(_project_files(folder))


def origin(folder: str, name: str) -> ProjectEntry | None:
    """Return the project's file that defines an entry; None if the entry is the kit's."""
    file = _project_files(folder).get(name)
    if file is None:
        return None
    digest = hashlib.sha256((project_values().folder / file.path).read_bytes()).hexdigest()
    return ProjectEntry(folder, name, f"{VALUES}/{file.path}", digest, name in values.names(folder))


@follows_project
def judged(kind: EntryKind[EntryType], name: str) -> tuple[EntryType | None, Sequence[Problem]]:
    """Return a project's own catalogue entry and all its problems. The entry is None if its file has wrong keys or
    types.
    """
    file = _project_files(kind.folder)[name]
    where = f"{VALUES}/{file.path}"
    if file.size_bytes > MAX_BYTES:
        why = f"it has {file.size_bytes:,} bytes"
        return None, [Problem("", None, f"at most {MAX_BYTES:,} bytes", why, file=where)]
    try:
        document = yaml_files.read(project_values().folder / file.path, MAX_VALUES)
    except KitError as error:
        why = f"{error.message} {error.remedy or ''}".rstrip(" .")
        return None, [Problem("", None, "a YAML file", why, file=where)]
    result, problems = _validated(kind, document)
    if result is not None and kind.key is not None and getattr(result, kind.key) != name:
        problems = [*problems, Problem(kind.key, getattr(result, kind.key), name, f"the file is {name}{SUFFIX}")]
    return result, [
        problem if problem.file else replace(problem, line=problem.line or document.line(problem.path), file=where)
        for problem in problems
    ]


def _validated(kind: EntryKind[EntryType], document: yaml_files.YamlDocument) -> tuple[EntryType | None, list[Problem]]:
    """Return the record in a YAML document, and the document's problems; the record is None if there are any. The
    document is validated as JSON, in which lists become tuples and all other types are strict.
    """
    value = document.value
    if problems := list(document.problems()):
        return None, problems
    if not isinstance(value, Mapping):
        keys = ", ".join(kind.type_.model_fields)
        return None, [Problem("", None, f"an object with the keys {keys}", f"it is {kind_of(value)}")]
    numbers = ((path, leaf) for path, leaf in leaves(cast("object", value)) if isinstance(leaf, float))
    if infinite := [(path, number) for path, number in numbers if not math.isfinite(number)]:
        return None, [Problem(path, number, FINITE, NOT_FINITE) for path, number in infinite]
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError) as error:
        return None, [Problem("", None, "texts and numbers as keys", str(error))]
    try:
        return kind.type_.model_validate_json(text, strict=True), []
    except InvalidStack as refused:  # raised for another entry that this one names
        return None, list(refused.problems)
    except ValidationError as error:
        problems = shape_problems(error.errors(include_url=False), json.loads(text), kind.type_)
        return None, [replace(problem, path="") if problem.path == CONFIG_KEY else problem for problem in problems]


@follows_project
def _project_files(folder: str) -> Mapping[str, ProjectFile]:
    """Return the entry files of a folder by entry name."""
    return {
        stem: file
        for file in project_values().files
        if not (file.outside or file.is_folder)
        and file.path.rpartition("/")[0] == folder
        and file.path.endswith(SUFFIX)
        and NAME.fullmatch(stem := file.path.rpartition("/")[2].removesuffix(SUFFIX))
    }
