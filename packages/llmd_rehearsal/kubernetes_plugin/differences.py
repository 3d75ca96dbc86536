"""Differences between an object's old and new inputs, and which of them require the object's replacement."""

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from llmd_rehearsal.kubernetes_plugin.objects import (
    ObjectKind,
)
from llmd_rehearsal.plugin_values import (
    UNKNOWN,
    JsonObject,
    PropertyChangeKind,
    is_list,
    is_map,
)

Path: TypeAlias = tuple[str | int, ...]


_ALWAYS_REPLACED_BY: Final = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class ObjectPropertyChange:
    """Change of one property of an object, and whether the change requires the object's replacement."""

    path: Path
    change: PropertyChangeKind
    replaces: bool

    @property
    def name(self) -> str:
        """Path of the changed property in the engine's notation: `spec.ports[0].name`,
        `metadata.annotations["a.b/c"]`.
        """
        name = ""
        for part in self.path:
            if isinstance(part, int):
                name += f"[{part}]"
            elif re.search(r'[."\[\]]', part):
                escaped = part.replace('"', '\\"')
                name += f'["{escaped}"]'
            else:
                name += f".{part}" if name else part
        return name


def differences(old: JsonObject, new: JsonObject, replaced_by: Sequence[str]) -> list[ObjectPropertyChange]:
    """Return the property differences between two objects. `replaced_by` are paths whose changes require a replacement.

    Lists are compared by position. A new map or list counts as one difference, at its own path.
    """
    patterns = [tuple(text.replace("[*]", ".*").split(".")) for text in (*_ALWAYS_REPLACED_BY, *replaced_by)]
    return [
        ObjectPropertyChange(path, change, any(_touches(pattern, path, value) for pattern in patterns))
        for path, change, value in _walk((), old, new)
    ]


def replacing_fields(kind: ObjectKind, obj: JsonObject, flags: frozenset[str]) -> tuple[str, ...]:
    """Return the paths of an object's fields whose change requires the object's replacement, given the provider's
    options.
    """
    is_mutable = kind.mutable_by in flags and obj.get("immutable") is not True
    return kind.replaced_by if is_mutable else (*kind.replaced_by, *kind.mutable)


def without_ignored(changes: Sequence[ObjectPropertyChange], ignored: Sequence[str]) -> list[ObjectPropertyChange]:
    """Return the property differences that are neither at a path in `ignored` nor below one."""
    return [
        difference
        for difference in changes
        if not any(re.match(re.escape(path) + r"($|[.\[])", difference.name) for path in ignored)
    ]


class _Missing(enum.Enum):
    MISSING = enum.auto()


_MISSING: Final = _Missing.MISSING


def _walk(path: Path, old: Any, new: Any) -> Iterator[tuple[Path, PropertyChangeKind, Any]]:
    if new is _MISSING or (new is None and old is not None and old is not _MISSING):
        yield path, PropertyChangeKind.DELETE, None
    elif old is _MISSING:
        yield path, PropertyChangeKind.ADD, new
    elif is_map(old) and is_map(new):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk((*path, key), old.get(key, _MISSING), new.get(key, _MISSING))
    elif is_list(old) and is_list(new):
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else _MISSING
            yield from _walk((*path, index), before, new[index] if index < len(new) else _MISSING)
    elif new is UNKNOWN or old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path, PropertyChangeKind.UPDATE, new


def _touches(pattern: Path, path: Path, value: object) -> bool:
    """Tell whether a change affects a field that matches the pattern: the field, a part of it, or its parent."""
    steps = zip(pattern, path, strict=False)
    matched = all(isinstance(part, int) if step == "*" else step == part for step, part in steps)
    return matched and (len(path) >= len(pattern) or _has(value, pattern[len(path) :]))


def _has(value: Any, pattern: Path) -> bool:
    if not pattern:
        return True
    step, *rest = pattern
    if step == "*":
        return is_list(value) and any(_has(item, tuple(rest)) for item in value)
    return is_map(value) and step in value and _has(value[step], tuple(rest))
