"""Validation of a project's own `values/` as a whole: permitted folders and files, and all problems of its entries."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from llmd_base.errors import Problem

from llmd_oke.catalogue.cluster import IMAGES
from llmd_oke.catalogue.container_images import LOCK
from llmd_oke.catalogue.endpoint_pickers import ENDPOINT_PICKERS
from llmd_oke.catalogue.entries import NAME, NAME_FORM, SUFFIX, EntryKind, judged, names, project_names
from llmd_oke.catalogue.models import MODELS, model
from llmd_oke.catalogue.operations import PRICES
from llmd_oke.catalogue.releases import RELEASES
from llmd_oke.catalogue.shapes import GPUS, SHAPES
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.values import VALUES, ProjectFile, follows_project, project_values, values_folder

KINDS: tuple[EntryKind[Any], ...] = (MODELS, SHAPES, GPUS, RELEASES, ENDPOINT_PICKERS, IMAGES, PRICES, LOCK)
"""Kinds of catalogue entries that a project's own `values/` may have."""

NAMED_IN_STACKS = {
    ("Model", "model"): MODELS.folder,
    ("GpuPool", "shape"): SHAPES.folder,
    ("StackConfig", "release"): RELEASES.folder,
}
"""Keys of stack files whose value is the name of an entry: type and key in the JSON Schema, and the entries' folder."""

LATENCY = "latency"
"""Folder of latency figures in `values/`: files `latency/<GPU>/<model>.yaml`, which the tuner reads and validates."""

_FOLDERS = tuple(sorted((*(kind.folder for kind in KINDS), LATENCY)))
_BESIDE = frozenset(("README.md",))
"""Names of files that any folder of a project's `values/` may have; so may files whose names begin with a dot."""


@follows_project
def project_problems() -> Sequence[Problem]:
    """Return all problems of the open project's `values/`, except those of latency figures; empty if the project has no
    `values/`.
    """
    files = [file for file in project_values().files if not _is_beside(file)]
    broken: list[Problem] = []
    entries = ((kind, name) for kind in KINDS for name in project_names(kind.folder))
    of_entries = (judged(kind, name)[1] for kind, name in entries if not kind.files or name in kind.files)
    for problem in chain.from_iterable(chain(map(_misplaced, files), of_entries)):
        if problem not in broken:  # an entry that names a broken one is broken for the same reasons
            broken.append(problem)
    return broken or [*_repositories(), *_endpoint_pickers()]


def latency_files() -> Iterator[tuple[str, str]]:
    """Yield GPU and model of each file of latency figures in the project."""
    for file in project_values().files:
        folder, _, rest = file.path.partition("/")
        gpu, _, name = rest.partition("/")
        stem = name.removesuffix(SUFFIX)
        if folder == LATENCY and stem in project_names(f"{LATENCY}/{gpu}"):
            yield gpu, stem


def _is_beside(file: ProjectFile) -> bool:
    parts = file.path.split("/")
    return parts[-1] in _BESIDE or any(part.startswith(".") for part in parts)


def _misplaced(file: ProjectFile) -> Iterator[Problem]:
    """Yield the problem of a path: unknown folders, unknown files, and links that point outside the project."""
    where = f"{VALUES}/{file.path}".rstrip("/")
    folder, _, rest = file.path.partition("/")
    if file.outside:
        yield Problem("", None, "a file or folder of its own", "it leads out of the folder, or is no file", file=where)
    elif folder not in _FOLDERS:
        if not rest:
            only = (values_folder() / folder).is_dir()
            why = "only the kit has entries of this kind" if only else "it means nothing here"
            yield Problem("", None, f"a folder: {did_you_mean(folder, _FOLDERS)}", why, file=where)
    elif not rest:
        if not file.is_folder:
            yield Problem("", None, f"the folder {folder} with a file for each entry", "it is a file", file=where)
    elif (accepted := _accepted(folder, rest, file.is_folder)) is not None:
        yield Problem("", None, accepted, "there is no such entry", file=where)


def _accepted(folder: str, rest: str, is_folder: bool) -> str | None:
    """Describe what a path within a folder should be; None if the path is correct."""
    if folder == LATENCY:
        gpu, _, name = rest.partition("/")
        if not name:
            known = names(GPUS.folder)
            return None if is_folder and gpu in known else f"a folder for a GPU: {did_you_mean(gpu, known)}"
        return _file(name, names(MODELS.folder), is_folder)
    files = next(kind.files for kind in KINDS if kind.folder == folder)
    return _file(rest, files, is_folder)


def _file(name: str, known: Sequence[str], is_folder: bool) -> str | None:
    """Describe what a file's name should be; None if the name is correct. Any name is permitted if `known` is empty."""
    stem, dot, suffix = name.rpartition(".")
    if is_folder:
        return "a file for each entry, and no folder"
    if f"{dot}{suffix}" != SUFFIX:
        return f"{(stem if suffix in {'yml', 'json'} else name)}{SUFFIX}"
    if known and stem not in known:
        return did_you_mean(name, [f"{item}{SUFFIX}" for item in known])
    return None if NAME.fullmatch(stem) else NAME_FORM


def _repositories() -> Iterator[Problem]:
    """Yield a problem for each model of the project whose repository another model has too: results and rehearsals
    identify a model by the repository.
    """
    if not (own := project_names(MODELS.folder)):
        return
    others = [name for name in names(MODELS.folder) if name not in own]
    first: dict[str, str] = {}
    for name in (*others, *own):
        known = model(name)
        assert known is not None  # noqa: S101 - it is one of the names
        other = first.setdefault(known.repository, name)
        if other != name:
            accepted = "another repository" if other in own else f"another repository, or the name {other} for the file"
            why = f"the model {other} has it already"
            yield Problem(
                "repository", known.repository, accepted, why, file=f"{VALUES}/{MODELS.folder}/{name}{SUFFIX}"
            )


def _endpoint_pickers() -> Iterator[Problem]:
    """Yield a problem for each release of the project whose endpoint picker is not in the catalogue."""
    known = names(ENDPOINT_PICKERS.folder)
    for name in project_names(RELEASES.folder):
        record, _ = judged(RELEASES, name)
        version = record.endpoint_picker.program.version if record else known[0]
        if version not in known:
            accepted = f"{did_you_mean(version, known)}, or a file of its own in {VALUES}/{ENDPOINT_PICKERS.folder}"
            why = "the catalogue has no such endpoint picker"
            file = f"{VALUES}/{RELEASES.folder}/{name}{SUFFIX}"
            yield Problem("endpoint_picker.program.version", version, accepted, why, file=file)
