"""Looks for a program where it may already be."""

import importlib.util
import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from llmd_oke.rehearsal.namespaces import PATH as SYSTEM_PATH
from llmd_oke.rehearsal.programs import cache, versions
from llmd_oke.rehearsal.programs.definitions import (
    ProgramDefinition,
    PythonSource,
    definitions,
    program_definition,
)

OVERRIDE = "LLMD_OKE_PROGRAMS"
"""Names a folder whose programs are taken before all others, whatever their version, unless one was asked for."""


@dataclass(frozen=True)
class Program:
    """A program that can be run; `origin` says in words where it is from."""

    name: str
    path: Path
    version: str
    origin: str


def locate(name: str, version: str | None = None) -> Program | None:
    """The program of that name on this machine, or None where there is none in a version that will do.

    `version` stands for the one of the data file: a release may need another. Looked at in turn: the folder in
    `LLMD_OKE_PROGRAMS`, the cache, installed Python distributions, PATH. Nothing is built or installed.
    Distributions come before PATH, where they put scripts that start the program.
    """
    definition = program_definition(name)
    return (
        _in_override(name, definition, version)
        or _in_cache(name, definition, version or definition.version)
        or _in_distribution(name, definition, version or definition.version)
        or _on_path(name, definition, version or definition.version)
    )


def _in_override(name: str, definition: ProgramDefinition, version: str | None) -> Program | None:
    folder = os.environ.get(OVERRIDE)
    found = None if not folder else shutil.which(name, path=str(Path(folder).resolve()))
    if found is None:
        return None
    has = versions.ask(Path(found), definition)
    if version is not None and (has is None or not versions.will_do(has, version, definition.accepts)):
        return None
    return Program(name, Path(found), has or definition.version, f"the folder in {OVERRIDE}")


def _in_cache(name: str, definition: ProgramDefinition, version: str) -> Program | None:
    if definition.source.build is None or not versions.will_do(definition.version, version, definition.accepts):
        return None
    path = cache.program_file(name, definition.version, definitions().builds[definition.source.build])
    return Program(name, path, definition.version, "built from tools/") if path.is_file() else None


def _on_path(name: str, definition: ProgramDefinition, version: str) -> Program | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        return None
    has = versions.ask(Path(found), definition)
    if has is None or not versions.will_do(has, version, definition.accepts):
        return None
    return Program(name, _outside_run(Path(found)), has, "PATH")


def _outside_run(path: Path) -> Path:
    """What a link in /run leads to, because a world hides /run; other links may choose a program by their own name."""
    return path.resolve() if path.is_relative_to("/run") else path


def _in_distribution(name: str, definition: ProgramDefinition, version: str) -> Program | None:
    source = definition.source.python
    path = None if source is None else packaged_file(source)
    if source is None or path is None:
        return None
    has = versions.normal(metadata.version(source.distribution))
    if not versions.will_do(has, version, definition.accepts):
        return None
    return Program(name, path, has, f"the Python package {source.distribution}")


def packaged_file(source: PythonSource) -> Path | None:
    """The file in the installed distribution; None where it isn't installed."""
    spec = importlib.util.find_spec(source.package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / source.file
    return path if path.is_file() else None
