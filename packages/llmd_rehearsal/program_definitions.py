"""Definitions of the programs that rehearsals need: versions, sources, builds and the Go modules whose files are used.

`values/rehearsal/programs.yaml` and `modules.yaml` have the definitions.
"""

from functools import cache
from pathlib import Path
from typing import Literal

from llmd_base.errors import KitError
from llmd_oke.values import Entry, entry_reader, required_entry, values_folder
from pydantic import Field

from llmd_rehearsal import downloads
from llmd_rehearsal.downloads import ImageFile, ProgramDownload, ReleaseFile
from llmd_rehearsal.golang import version_satisfies


class VersionQuery(Entry):
    """Query for a program's version: its output after `arguments`, matched by `answer`, or the version of a Go module
    in the program, by the module's paths `go_modules`.
    """

    arguments: tuple[str, ...] = ()
    answer: str = ""
    go_modules: tuple[str, ...] = ()


class PythonSource(Entry):
    """Program that a Python distribution contains: the path `file` below one of its packages."""

    distribution: str
    package: str
    file: str
    install: str


class ModuleFile(Entry):
    """Program that is the file `file` of a Go module, which `modules.yaml` pins in the program's version."""

    module: str
    file: str


class ProgramSource(Entry):
    """Sources of a program that isn't on PATH: a download, a build, a file of a Go module, a Python distribution, or a
    package of the operating system.

    `release` is a published file, and `images` are deployed images that contain the program, by its version.
    `other_builds` are the builds of further versions, for releases that require them.
    """

    release: ReleaseFile | None = None
    images: dict[str, ImageFile] = Field(default_factory=dict[str, ImageFile])
    build: str | None = None
    other_builds: dict[str, str] = Field(default_factory=dict[str, str])
    module: ModuleFile | None = None
    python: PythonSource | None = None
    package: dict[str, str] | None = None


class ProgramDefinition(Entry):
    """Definition of one program that rehearsals run. `accepts` says which other versions may be used: `exact`, `patch`,
    `minor` or `later`.

    `differs` has the reasons, by deployed version, why another version is rehearsed. `not_deployed` is the reason if no
    stack deploys the program.
    """

    version: str
    accepts: Literal["exact", "patch", "minor", "later"]
    ask: VersionQuery
    source: ProgramSource
    differs: dict[str, str] = Field(default_factory=dict[str, str])
    not_deployed: str | None = None

    def satisfies(self, version: str, required: str) -> bool:
        """Tell whether a version of the program may be used where another one is required."""
        return version_satisfies(version, required, self.accepts)

    @property
    def builds(self) -> dict[str, str]:
        """Names of the program's builds, by the version that each one builds."""
        builds = {} if self.source.build is None else {self.version: self.source.build}
        return {**builds, **self.source.other_builds}

    def build_of(self, required: str) -> tuple[str, str] | None:
        """Return a version of the program that satisfies the required one and can be built here, and its build's name;
        None if there is none.
        """
        found = (item for item in self.builds.items() if self.satisfies(item[0], required))
        return next(found, None)

    def download_of(self, required: str) -> tuple[str, ProgramDownload] | None:
        """Return a version of the program that satisfies the required one and can be downloaded, with its download;
        None if there is none.
        """
        release = self.source.release and downloads.of_release(self.source.release)
        if release and self.satisfies(self.version, required):
            return self.version, release
        found = ((version, downloads.of_image(file)) for version, file in self.source.images.items())
        return next(((version, file) for version, file in found if file and self.satisfies(version, required)), None)


class Build(Entry):
    """Build of programs by one `go build`: Go packages by program name, variables set at link time, and build tags.

    `minutes` is the duration of a first build on two cores. `asks_for` is a Go module that not every module proxy has,
    followed by `@` and a version if that isn't the program's; its availability is checked before the build is relied
    upon.
    """

    module: str
    packages: dict[str, str]
    variables: dict[str, str] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    minutes: int = 1
    asks_for: str | None = None


class GoTool(Entry):
    """Go tool chain in a Python package, used if this machine has no recent enough one."""

    python: PythonSource


class Definitions(Entry):
    """Content of `values/rehearsal/programs.yaml`: the programs that rehearsals need; `installers` are the operating
    systems' install commands, by family.
    """

    programs: dict[str, ProgramDefinition]
    builds: dict[str, Build]
    installers: dict[str, str]
    go: GoTool


class ModuleDefinition(Entry):
    """Go module of which rehearsals use only files: checksums by version, and the folders that are copied."""

    folders: tuple[str, ...]
    versions: dict[str, str]


class _Modules(Entry):
    modules: dict[str, ModuleDefinition]


definitions = entry_reader("rehearsal", "programs", Definitions)
"""Return the content of `values/rehearsal/programs.yaml`."""


@cache
def pinned_modules() -> dict[str, ModuleDefinition]:
    """Return the modules of `values/rehearsal/modules.yaml`, by path."""
    return required_entry("rehearsal", "modules", _Modules).modules


def program_definition(name: str) -> ProgramDefinition:
    """Return the definition of a program; raise KitError if no program has this name."""
    programs = definitions().programs
    if name not in programs:
        raise KitError(f"no program is called {name!r} (there are {', '.join(sorted(programs))})")
    return programs[name]


@cache
def tools_folder() -> Path:
    """Return the folder of the Go modules that programs are built from, in the installed package or the checkout."""
    values = values_folder()
    return values.with_name(values.name.replace("values", "tools"))
