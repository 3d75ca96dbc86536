"""Paths and readers of data files: the kit's `values/`, the project's own beside it, and the folder for downloads."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml
from llmd_base.errors import KitError
from pydantic import BaseModel, ConfigDict

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Entry(BaseModel):
    """Base class of records in `values/`: immutable, without unknown keys. Its validator is built at its first use,
    since a command needs only a few kinds; pydantic since 2.14 permits that in several threads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


EntryType = TypeVar("EntryType", bound=Entry)


@cache
def values_folder() -> Path:
    """Return the path of the kit's `values/`: in the installed package, or beside the sources of a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_values"
    return installed if installed.is_dir() else package.parent.parent / "values"


def parse_yaml(text: str | bytes) -> Any:
    """Return the content of a YAML text with one document."""
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, the C one where there is one


def parse_yaml_documents(text: str) -> list[Any]:
    """Return the documents of a YAML text, without empty ones."""
    return [document for document in yaml.load_all(text, _Loader) if document]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file with one document."""
    return parse_yaml(path.read_text())


def read_yaml_documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file, without empty ones."""
    return parse_yaml_documents(path.read_text())


def names(kind: str) -> list[str]:
    """Return the names of the kit's entries of a kind (`models`, `shapes`, `releases`), sorted."""
    return sorted(path.name[: -len(".yaml")] for path in (values_folder() / kind).glob("*.yaml"))


def entry(kind: str, name: str, type_: type[EntryType]) -> EntryType | None:
    """Return the entry of a kind with a name; None if there is no such entry."""
    if name not in names(kind):
        return None
    return required_entry(kind, name, type_)


def required_entry(kind: str, name: str, type_: type[EntryType]) -> EntryType:
    """Return the entry of a kind with a name that the kit itself contains."""
    return type_.model_validate(read_yaml(values_folder() / kind / f"{name}.yaml"))


def entry_reader(kind: str, name: str, type_: type[EntryType]) -> Callable[[], EntryType]:
    """Return a function that reads an entry of the kit itself at its first call, and returns it at each call."""
    return cache(partial(required_entry, kind, name, type_))


VALUES = "values"
"""Name of the folder with a project's own catalogue entries, beside `Pulumi.yaml`."""

POLICY_PACK = "policies"
"""Folder of a project with a policy pack for the engine."""

_MAX_LEVELS = 3
"""Of a file in it (`latency/MI300X/mine.yaml`); deeper ones are not looked for."""

_MAX_FILES = 2000


@dataclass(frozen=True)
class ProjectFile:
    """File in a project's `values/`, with its path relative to that folder. `outside` marks a link out of the folder,
    and an item that is neither a file nor a folder.
    """

    path: str
    is_folder: bool
    outside: bool
    size_bytes: int
    changed_ns: int


@dataclass(frozen=True)
class ProjectValues:
    """Content of a project's `values/`, whose entries are added to the kit's or replace them."""

    folder: Path
    files: tuple[ProjectFile, ...] = ()


_project = ProjectValues(Path())
_cleared: list[Callable[[], None]] = []

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def open_project(project: Path | None) -> None:
    """Make the entries of a project's own `values/` available in this process, in addition to the kit's; None removes
    them. Opening a project again reads its changed files. In a checkout of the kit, `values/` belongs to the kit.

    Raises:
        KitError: the folder can't be read, or has more files than a catalogue ever has.
    """
    global _project  # noqa: PLW0603 - one process works on one project
    opened = ProjectValues(Path()) if project is None else _values_of(project)
    if opened == _project:
        return
    _project = opened
    for clear in _cleared:
        clear()


def require_project(project: Path) -> None:
    """Check that a directory contains a project.

    Raises:
        KitError: the directory has no Pulumi.yaml.
    """
    if not (project / "Pulumi.yaml").is_file():
        remedy = "Go to the project's folder, or name it: --project FOLDER, or LLMD_OKE_PROJECT in the environment."
        raise KitError(f"There is no Pulumi.yaml in {project.resolve()}, so this is no project.", remedy)


def is_checkout(project: Path) -> bool:
    """Tell whether a project is a checkout of the kit, whose `values/` are the kit's own."""
    return (project / "components" / "llmd_oke").is_dir()


def project_values() -> ProjectValues:
    """Return the content of the open project's `values/`; without files if no project is open."""
    return _project


def follows_project(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function so that its results are cached until another project is opened or files of the open one
    change.
    """
    results: dict[object, Result] = {}

    @wraps(function)
    def remembered(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        key = (args, tuple(options.items()))
        if key not in results:
            results[key] = function(*args, **options)
        return results[key]

    _cleared.append(results.clear)
    return remembered


def _values_of(project: Path) -> ProjectValues:
    folder = project.resolve() / VALUES
    if not folder.is_dir() or is_checkout(project):
        return ProjectValues(Path())
    if not folder.resolve().is_relative_to(project.resolve()):
        return ProjectValues(folder, (ProjectFile("", is_folder=True, outside=True, size_bytes=0, changed_ns=0),))
    try:
        return ProjectValues(folder, tuple(sorted(_files(folder, "", 1), key=lambda file: file.path)))
    except OSError as error:
        raise KitError(f"{folder} can't be read: {error.strerror}.") from error


def _files(folder: Path, within: str, level: int) -> Iterator[ProjectFile]:
    for count, entry in enumerate(os.scandir(folder / within)):
        if count >= _MAX_FILES:
            raise KitError(f"{folder / within} has more than {_MAX_FILES:,} files.", "Keep other files elsewhere.")
        path = f"{within}/{entry.name}".removeprefix("/")
        outside = entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(folder.resolve())
        is_folder = not outside and entry.is_dir()
        unreadable = outside or not (is_folder or entry.is_file())
        stat = entry.stat(follow_symlinks=not unreadable)
        changed_ns = 0 if is_folder else stat.st_mtime_ns
        yield ProjectFile(path, is_folder, unreadable, stat.st_size if not is_folder else 0, changed_ns)
        if is_folder and level < _MAX_LEVELS and not entry.name.startswith("."):
            yield from _files(folder, path, level + 1)


def cache_folder() -> Path:
    """Return the folder for downloads: `$LLMD_OKE_CACHE`, or `llmd-oke` in the user's cache folder (`$XDG_CACHE_HOME`,
    `~/.cache`).
    """
    if own := os.environ.get("LLMD_OKE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmd-oke"


def module_folder(module: str, version: str) -> Path:
    """Return the folder in which the charts and CRDs of a Go module are kept once they are on this machine."""
    return cache_folder() / "modules" / f"{module}@{version}"
