"""Merge of a stack file with the files that its key `base` names, and the file and line of each merged value.

Objects are merged key by key, as by JSON Merge Patch (RFC 7396): `null` takes away a key of the base, and anything else
replaces it, lists as a whole. An object in the place of one of the lists `NAMED_LISTS` changes items of the base's list
by their names.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, cast

from llmd_base.documents import MAX_VALUES, kind_of
from llmd_base.errors import InvalidStack, Problem

from llmd_oke.config import yaml_files
from llmd_oke.config.yaml_files import CONFIG_KEY, YamlDocument, steps

BASE = "base"
"""Key by which a stack, or a file that stacks build on, names the file that it builds on."""

BASE_PATTERN = r"^(?!Pulumi\.)[A-Za-z0-9][A-Za-z0-9._-]*\.yaml$"
"""Pattern of the names of files that stacks build on: a YAML file in the folder of stack files that is no stack's own.
"""

NAMED_LISTS: Mapping[str, tuple[str, ...]] = {
    "models": ("name", "model"),
    "gpuPools": ("name",),
    "cpuPools": ("name",),
}
"""Lists whose items are merged by name, each with the keys that may contain the name; of these, the first that an item
has is used.
"""

_BASE_FORM = "the name of a file beside the stack file, such as shared.yaml"
_NO_BASE = "the name of another file in {folder}/; there is none yet"

Steps: TypeAlias = tuple[str | int, ...]
Keys: TypeAlias = Mapping[str | int, Any]


@dataclass(frozen=True)
class StackSource:
    """File that contributes values to a stack: the stack's own, or one that it builds on.

    Attributes:
        name: path of the file relative to the project, such as `stacks/shared.yaml`.
        document: content of the file; None if the values came from Pulumi's engine.
        own: whether it is the stack's own file, in which the stack is the object `llmd-oke:stack`. In the others it is
            the whole file.
    """

    name: str
    document: YamlDocument | None
    own: bool = False

    def line(self, of: Steps) -> int | None:
        """Return the line of the value to which the keys and indices `of` lead in this file, or of its nearest parent
        that exists; None if it is unknown.
        """
        if self.document is None:
            return None
        return self.document.line_at(("config", CONFIG_KEY, *of) if self.own else of)


@dataclass(frozen=True)
class StackOrigin:
    """Place of a merged value: its file, and the keys and indices that lead to it there. `parts` has the places of
    nested values that come from other files or paths.
    """

    source: StackSource
    steps: Steps = ()
    parts: Mapping[str | int, "StackOrigin"] = field(default_factory=dict[str | int, "StackOrigin"])

    @property
    def line(self) -> int | None:
        """Line of the value in its file, or of the nearest object around it; None if it is unknown."""
        return self.source.line(self.steps)

    @property
    def path(self) -> str:
        """Path of the value in its own file, such as `models[0].topology`."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps).removeprefix(".")

    def part(self, step: str | int) -> "StackOrigin":
        """Return the place of a nested value, by its key or index in this value."""
        return self.parts.get(step) or StackOrigin(self.source, (*self.steps, step))


@dataclass(frozen=True)
class EffectiveStack:
    """Stack merged with all files that it builds on: the object that planning reads, and the place of each of its
    values.

    Attributes:
        value: the merged object; the stack file's value as it is, if that is no object.
        origin: place of the merged object.
        sources: files from which values were merged, the stack's own first.
    """

    value: Any
    origin: StackOrigin
    sources: tuple[StackSource, ...]

    def origin_of(self, path: str) -> StackOrigin:
        """Return the place of the value at a path of the merged object. For a path that no file has, return the place
        where the value would be written, in the last file that has a value for the object around it.
        """
        place = self.origin
        for step in steps(path):
            place = place.part(step)
        return place

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return the problems, each with the line of its value, and with file and path if the value is in another file
        than the stack's own. Problems of other files come first, the others are sorted by line; problems that already
        have a file or line are unchanged.
        """
        found: list[Problem] = []
        for problem in problems:
            if problem.file or problem.line:
                found.append(problem)
            elif problem.path == CONFIG_KEY:
                found.append(replace(problem, line=self.origin.source.line(())))
            else:
                place = self.origin_of(problem.path)
                file = problem.file if place.source.own else place.source.name
                found.append(replace(problem, path=place.path, file=file, line=place.line))
        elsewhere = [problem for problem in found if problem.file is not None]
        here = [problem for problem in found if problem.file is None]
        return [*elsewhere, *sorted(here, key=lambda problem: problem.line or 0)]


def effective_stack(value: Any, own: StackSource, folder: Path) -> EffectiveStack:
    """Return a stack merged with the files that it builds on.

    Args:
        value: the object `llmd-oke:stack` of the stack's own file.
        own: that file.
        folder: directory of stack files, which has the files that stacks build on.

    Raises:
        KitError: a file that the stack builds on can't be read, or is not YAML.
        InvalidStack: such a file doesn't exist, builds on itself, or is no object; or the name of such a file, or a
            change to a list of its items, is invalid. Problems have file and line.
    """
    layers = [(value, own)]
    while _is_object(value) and BASE in value:
        source = _base_of(value[BASE], [source for _, source in layers], folder)
        value = source.document.value if source.document else None
        layers.append((value, source))
    if len(layers) == 1:
        return EffectiveStack(value, StackOrigin(own), (own,))
    merged, origin = _without_base(*layers[-1])
    for above, source in reversed(layers[:-1]):
        merged, origin = _merged(merged, origin, *_without_base(above, source))
    return EffectiveStack(merged, origin, tuple(source for _, source in layers))


def _base_of(name: object, sources: Sequence[StackSource], folder: Path) -> StackSource:
    """Return the file that the last of the sources builds on."""
    naming = StackOrigin(sources[-1]).part(BASE)

    def refused(accepted: str, why: str) -> InvalidStack:
        return InvalidStack([_problem(naming, name, accepted, why)])

    if not isinstance(name, str) or not re.match(BASE_PATTERN, name):
        why = f"it is {kind_of(name)}" if not isinstance(name, str) else "it has another form, or is a stack's own file"
        raise refused(_BASE_FORM, why)
    file = f"{folder.name}/{name}"
    chain = [source.name for source in sources]
    if file in chain:
        raise refused("a file that doesn't build on this one", f"it builds on itself: {' -> '.join([*chain, file])}")
    if not (folder / name).is_file():
        there = sorted(path.name for path in folder.glob("*.yaml") if re.match(BASE_PATTERN, path.name))
        others = [other for other in there if f"{folder.name}/{other}" not in chain]
        accepted = f"one of {', '.join(others)}" if others else _NO_BASE.format(folder=folder.name)
        raise refused(accepted, f"there is no file {file}")
    document = yaml_files.read(folder / name, MAX_VALUES)
    if problems := [replace(problem, file=file) for problem in document.problems()]:
        raise InvalidStack(problems)
    if not _is_object(document.value):
        accepted = f"an object with keys of {CONFIG_KEY}, which is not around them"
        raise InvalidStack([Problem("", None, accepted, f"it is {kind_of(document.value)}", file=file)])
    return StackSource(file, document)


def _without_base(value: Any, source: StackSource) -> tuple[dict[str | int, Any], StackOrigin]:
    return {key: item for key, item in cast("Keys", value).items() if key != BASE}, StackOrigin(source)


def _merged(below: Any, origin: StackOrigin, above: Any, place: StackOrigin) -> tuple[Any, StackOrigin]:
    """Return a value of the base as another file changes it, with its place; `above` is what that file says."""
    named = NAMED_LISTS.get(str(place.steps[0])) if len(place.steps) == 1 else None
    if named and _is_object(above):
        return _with_changed_items(below, origin, above, place, named)
    if not (_is_object(above) and _is_object(below)):
        return above, place
    merged = dict(below)
    parts = {key: origin.part(key) for key in merged}
    for key, item in above.items():
        if key not in merged:
            merged[key], parts[key] = item, place.part(key)
        elif item is None:
            del merged[key], parts[key]
        else:
            merged[key], parts[key] = _merged(merged[key], parts[key], item, place.part(key))
    return merged, StackOrigin(place.source, place.steps, parts)


def _with_changed_items(
    below: Any, origin: StackOrigin, above: Keys, place: StackOrigin, named: Sequence[str]
) -> tuple[list[Any], StackOrigin]:
    """Return a list of the base whose items another file changes by their names, or takes away by `null`.

    Raises:
        InvalidStack: the base has no such list, or no item of a name.
    """
    items = cast("list[Any]", below) if isinstance(below, list) else []
    names = [_item_name(item, named) for item in items]
    if unknown := [name for name in above if name not in names]:
        accepted = f"one of {', '.join(filter(None, names))}; further items by a list, which replaces the base's"
        why = "the base has no item of this name"
        if not items:
            accepted, why = "a list", "an object changes items of the base's list, and there is none"
        raise InvalidStack([_problem(place.part(name), None, accepted, why) for name in unknown])
    kept: list[tuple[Any, StackOrigin]] = []
    for index, (item, name) in enumerate(zip(items, names, strict=True)):
        if name not in above:
            kept.append((item, origin.part(index)))
        elif above[name] is not None:
            kept.append(_merged(item, origin.part(index), above[name], place.part(name)))
    parts: dict[str | int, StackOrigin] = {index: where for index, (_, where) in enumerate(kept)}
    return [item for item, _ in kept], StackOrigin(place.source, place.steps, parts)


def _item_name(item: Any, named: Sequence[str]) -> str:
    """Return the name of an item of a list; empty if it has none."""
    names = [item.get(key) for key in named] if _is_object(item) else []
    return next((name for name in names if isinstance(name, str)), "")


def _is_object(value: Any) -> TypeGuard[Keys]:
    return isinstance(value, Mapping)


def _problem(place: StackOrigin, value: object, accepted: str, why: str) -> Problem:
    file = None if place.source.own else place.source.name
    return Problem(place.path, value, accepted, why, place.line, file)
