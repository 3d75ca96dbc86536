"""Typed access to `values/rehearsal/programs.yaml` and `modules.yaml`: what can be run, and where it comes from."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.errors import KitError


class VersionQuestion(Entry):
    """How a program tells its version: by `arguments` and a pattern for the `answer`, or by the `go_module` in it."""

    arguments: tuple[str, ...] = ()
    answer: str = ""
    go_module: str | None = None


class PythonSource(Entry):
    """A program that a Python distribution carries, as a `file` below one of its packages."""

    distribution: str
    package: str
    file: str
    install: str


class Source(Entry):
    """Where a program comes from when it isn't on PATH: a build, a Python distribution, or the operating system."""

    build: str | None = None
    python: PythonSource | None = None
    package: dict[str, str] | None = None


class ProgramDefinition(Entry):
    """One program. `accepts` says which other versions will do, by the words of the data file."""

    version: str
    accepts: Literal["exact", "patch", "minor", "later"]
    ask: VersionQuestion
    source: Source


class Build(Entry):
    """What one `go build` makes: `packages` by the program's name, `variables` set at link time.

    `cgo` is Go's own default unless it is given. `minutes` is what a first build takes on two cores.
    """

    module: str
    packages: dict[str, str]
    variables: dict[str, str] = Field(default_factory=dict)
    cgo: bool | None = None
    minutes: int = 1


class GoTool(Entry):
    """The Go that builds where the machine has none that will do."""

    python: PythonSource


class Definitions(Entry):
    """The whole of `programs.yaml`."""

    programs: dict[str, ProgramDefinition]
    builds: dict[str, Build]
    installers: dict[str, str]
    go: GoTool


class ModuleDefinition(Entry):
    """A Go module that is read as data: its checksum by version, and the folders that are of use."""

    folders: tuple[str, ...]
    versions: dict[str, str]


class _Modules(Entry):
    modules: dict[str, ModuleDefinition]


@cache
def definitions() -> Definitions:
    """All programs, builds and ways to install."""
    return required_entry("rehearsal", "programs", Definitions)


@cache
def modules() -> dict[str, ModuleDefinition]:
    """All modules that are read as data."""
    return required_entry("rehearsal", "modules", _Modules).modules


def program_definition(name: str) -> ProgramDefinition:
    """The program of that name; a name that isn't there is a mistake of the caller and raises KitError."""
    known = definitions().programs
    if name not in known:
        raise KitError(f"no program is called {name!r} (there are {', '.join(sorted(known))})")
    return known[name]


@cache
def tools_folder() -> Path:
    """The Go modules that programs are built from: inside the installed package, or in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_tools"
    return installed if installed.is_dir() else package.parent.parent / "tools"
