"""Deprecated keys of the stack file and arguments of components: what replaces each, and how long it works
(`values/stack-file/deprecated-keys.yaml`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, cast

from llmd_base.errors import Problem

from llmd_oke.config.engine import argument_of
from llmd_oke.config.yaml_files import move_key, new_map_like, remove_items
from llmd_oke.values import Entry, entry_reader
from llmd_oke.version import __version__, version_numbers


class Deprecation(Entry):
    """Deprecated name, and the versions of the kit in which it works.

    Attributes:
        replacement: path of the key, or name of the argument, that replaces it; None if a person has to decide.
        by_hand: what a person decides, where there is no replacement.
        since: version of the kit that deprecated the name.
        removed_in: version of the kit from which on the name is refused.
    """

    replacement: str | None = None
    by_hand: str = ""
    since: str
    removed_in: str

    @property
    def works(self) -> bool:
        """Tell whether this version of the kit still accepts the name."""
        return version_numbers(__version__) < version_numbers(self.removed_in)

    def text(self, replacement: str) -> str:
        """Return the deprecation in words, with the replacement as its reader writes it."""
        until = f", and refused from {self.removed_in} on" if self.works else ""
        return f"deprecated since {self.since}{until}: it is {replacement} now."


class DeprecatedKey(Deprecation):
    """Deprecated key, or an argument of vLLM in the list `key`.

    Attributes:
        key: path in `llmd-oke:stack`, with `[]` for each item of a list.
        argument: argument of vLLM, such as `--max-loras`; None if the key itself is deprecated.
        value: conversion of the value: unchanged, an argument's text as integer or text, or an empty object.
    """

    key: str
    argument: str | None = None
    value: Literal["same", "integer", "text", "empty"] = "same"


class DeprecatedArgument(Deprecation):
    """Deprecated argument of components, which works as before until it is removed.

    Attributes:
        types: names of the types of arguments that have it, such as `AggregatedUnitArgs`.
        argument: name of the argument in Python.
    """

    types: tuple[str, ...]
    argument: str


class _Table(Entry):
    keys: tuple[DeprecatedKey, ...]
    arguments: tuple[DeprecatedArgument, ...]


_table = entry_reader("stack-file", "deprecated-keys", _Table)


def deprecated_keys() -> tuple[DeprecatedKey, ...]:
    """Return all deprecated keys, in the order in which they are replaced."""
    return _table().keys


def deprecated_arguments() -> tuple[DeprecatedArgument, ...]:
    """Return all deprecated arguments of components."""
    return _table().arguments


@dataclass(frozen=True)
class KeyReplacement:
    """Occurrence of a deprecated key at `path` of a stack file, whose value belongs at the path `replacement`. For a
    deprecated argument of vLLM, `path` is followed by the argument.
    """

    path: str
    replacement: str
    entry: DeprecatedKey

    def __str__(self) -> str:
        return f"{self.path} is {self.entry.text(self.replacement)} `llmd-oke migrate --write` changes the file."


def with_current_keys(stack: Any) -> tuple[Any, list[KeyReplacement], list[Problem]]:
    """Return the object `llmd-oke:stack` with current keys in place of the deprecated ones that still work; the object
    itself if it has none. Also returns the replaced keys, and the problems of those that can't be replaced.
    """
    working = [entry for entry in deprecated_keys() if entry.works]
    if not any(True for entry in working for _ in _uses(stack, entry)):
        return stack, [], []
    current = deepcopy(stack)
    replaced, problems = replace_keys(current, working)
    return current, replaced, problems


def replace_keys(stack: Any, entries: Sequence[DeprecatedKey]) -> tuple[list[KeyReplacement], list[Problem]]:
    """Replace deprecated keys in the object `llmd-oke:stack`, which is changed; comments stay if it was loaded with
    `yaml_files.load`. Returns the replaced keys, and the problems of those that were left as they are.
    """
    replaced: list[KeyReplacement] = []
    problems: list[Problem] = []
    for entry in entries:
        for use in list(_uses(stack, entry)):
            try:
                replaced.append(use.replace(stack))
            except _LeftError as left:
                problems.append(left.problem)
    return replaced, problems


class _LeftError(Exception):
    """A deprecated key can't be replaced."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class _Use:
    """Use of a deprecated key: `indices` are those of the lists on its path, `parent` is the mapping with the key."""

    entry: DeprecatedKey
    indices: tuple[int, ...]
    parent: Any
    key: str

    def replace(self, stack: Any) -> KeyReplacement:
        """Move the value to the replacement, and return what was replaced."""
        entry, path = self.entry, self._path(self.entry.key)
        written: Any = self.parent[self.key]
        found = argument_of(written, entry.argument) if entry.argument else None
        if found is not None:
            path = f"{path}[{found[0]}]"
        said = written if found is None else written[found[0]]
        if found and sum(argument_of([word], str(entry.argument)) is not None for word in written) > 1:
            raise _LeftError(Problem(path, said, "the argument once", "it is there several times"))
        if entry.replacement is None:
            raise _LeftError(Problem(path, said, entry.by_hand, "what replaces it is a decision"))
        value = found[1] if found else written
        if found and entry.value == "integer":
            if not re.fullmatch(r"-?\d+", found[1]):
                raise _LeftError(Problem(path, found[1], "a whole number", f"{entry.argument} has no number"))
            value = int(found[1])
        target, new_key = self._target(stack, path, entry.replacement)
        if new_key in target and not (entry.value == "empty" and isinstance(target[new_key], Mapping)):
            there = self._path(entry.replacement)
            raise _LeftError(Problem(path, said, "one of the two", f"{there} replaces it, and is there too"))
        if found is None:
            move_key(self.parent, self.key, target, new_key)
        else:
            separate = entry.value != "empty" and "=" not in said
            if new_key not in target:
                target[new_key] = new_map_like(target) if entry.value == "empty" else value
            remove_items(self.parent, self.key, found[0], 2 if separate else 1, target, new_key)
        old = f"{self._path(entry.key)}: {entry.argument}" if found else path
        return KeyReplacement(old, self._path(entry.replacement), entry)

    def _path(self, pattern: str) -> str:
        """Return the path that a pattern stands for at this use."""
        indices = iter(self.indices)
        return re.sub(r"\[\]", lambda _: f"[{next(indices)}]", pattern)

    def _target(self, stack: Any, path: str, replacement: str) -> tuple[Any, str]:
        """Return the mapping that the replacement is a key of, and the key; mappings on the way are created."""
        indices = iter(self.indices)
        node: Any = stack
        *way, key = replacement.split(".")
        for step in way:
            name = step.removesuffix("[]")
            if name not in node:
                node[name] = new_map_like(node)
            node = node[name][next(indices)] if step.endswith("[]") else node[name]
            if not hasattr(node, "keys"):
                raise _LeftError(Problem(path, None, f"an object at {replacement}", f"{name} is no object"))
        return node, key


def _uses(stack: Any, entry: DeprecatedKey) -> Iterator[_Use]:
    *way, key = entry.key.split(".")
    for indices, parent in _mappings(stack, way):
        if key not in parent:
            continue
        if entry.argument is None:
            yield _Use(entry, indices, parent, key)
            continue
        words: Any = parent[key]
        is_list = isinstance(words, list) and all(isinstance(word, str) for word in cast("list[object]", words))
        if is_list and argument_of(cast("list[str]", words), entry.argument):
            yield _Use(entry, indices, parent, key)


def _mappings(node: Any, way: Sequence[str], indices: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the mappings at the end of a way, with the indices of the lists on it."""
    if not isinstance(node, Mapping):
        return
    if not way:
        yield indices, node
        return
    child = cast("Mapping[str, Any]", node).get(way[0].removesuffix("[]"))
    if not way[0].endswith("[]"):
        yield from _mappings(child, way[1:], indices)
    elif isinstance(child, list):
        for i, item in enumerate(cast("list[Any]", child)):
            yield from _mappings(item, way[1:], (*indices, i))
