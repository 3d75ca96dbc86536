"""Makes sure that all programs of a rehearsal are there."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.programs import versions
from llmd_oke.rehearsal.programs.building import build_programs
from llmd_oke.rehearsal.programs.definitions import definitions, program_definition
from llmd_oke.rehearsal.programs.finding import Program, locate

_OS_RELEASE = Path("/etc/os-release")


def ensure(names: Iterable[str], progress: Progress, wanted: Mapping[str, str] | None = None) -> dict[str, Program]:
    """Every program by name: found on this machine, or built now.

    `wanted` gives the versions that a release needs where they are not those of the data file. Raises KitError that
    names everything that can't be had, each with the command that installs it, before anything is built.
    """
    needed = {name: (wanted or {}).get(name) for name in names}
    found = {name: locate(name, version) for name, version in needed.items()}
    missing = {name: needed[name] for name, program in found.items() if program is None}
    _refuse_what_cannot_be_built(missing)
    for build in dict.fromkeys(program_definition(name).source.build for name in missing):
        if build is not None:
            build_programs(build, definitions().builds[build], progress)
    return {name: program or _built(name, needed[name]) for name, program in found.items()}


def obtainable(name: str, version: str) -> bool:
    """Whether that version of a program can be built here."""
    definition = program_definition(name)
    return definition.source.build is not None and versions.will_do(definition.version, version, definition.accepts)


def _built(name: str, version: str | None) -> Program:
    program = locate(name, version)
    if program is None:
        raise KitError(f"{name} was built, yet it is not in the cache")
    return program


def _refuse_what_cannot_be_built(missing: Mapping[str, str | None]) -> None:
    lines = {name: line for name, version in missing.items() if (line := _why_not(name, version))}
    if lines:
        what = f"{', '.join(lines)} can't be found in a version that will do"
        raise KitError(what, "\n".join(dict.fromkeys(lines.values())))


def _why_not(name: str, version: str | None) -> str | None:
    """What the user can do about a program that can't be built here; None for one that can."""
    definition = program_definition(name)
    source = definition.source
    wanted = version or definition.version
    if source.python is not None:
        return f"{name} {wanted}: {source.python.install}"
    if source.package is not None:
        return f"{name} {wanted} or later: {install_command(source.package)}"
    if not versions.will_do(definition.version, wanted, definition.accepts):
        return f"{name} {wanted}: put it on PATH; what can be built here is {definition.version}"
    return None


def install_command(packages: Mapping[str, str], os_release: Path = _OS_RELEASE) -> str:
    """The command that installs a package of the operating system; `packages` has its name by family."""
    installers = definitions().installers
    family = next((name for name in _families(os_release) if name in installers), None)
    package = packages.get(family or "", packages["default"])
    return installers[family].format(package=package) if family else f"install the package {package}"


def _families(os_release: Path) -> list[str]:
    """What this distribution is, and what it is like, the nearest first."""
    try:
        lines = os_release.read_text().splitlines()
    except FileNotFoundError:
        return []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return [word for key in ("ID", "ID_LIKE") for word in fields.get(key, "").strip('"').split()]
