"""Which properties of an object a program changes, and which of the changes replace it."""

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind
from llmd_oke.rehearsal.plugin_protocol.changes import Change
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, JsonObject, is_list, is_map

Path: TypeAlias = tuple[str | int, ...]

_ALWAYS_REPLACED_BY: Final = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class Difference:
    """A property that changes. `value` is its new one."""

    path: Path
    change: Change
    replaces: bool

    @property
    def name(self) -> str:
        """The path as the engine writes it: `spec.ports[0].name`, `metadata.annotations["a.b/c"]`."""
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


def differences(old: JsonObject, new: JsonObject, replaced_by: Sequence[str]) -> list[Difference]:
    """The properties that differ between an object as it is and as it shall be.

    Lists are compared by position. A new map or list is one difference, at its own path.
    """
    patterns = [_pattern(text) for text in (*_ALWAYS_REPLACED_BY, *replaced_by)]
    return [
        Difference(path, change, any(_touches(pattern, path, value) for pattern in patterns))
        for path, change, value in _walk((), old, new)
    ]


def replacing_fields(kind: Kind, obj: JsonObject, flags: frozenset[str]) -> tuple[str, ...]:
    """The paths whose change replaces the object, as the provider's options have it."""
    is_mutable = kind.mutable_by in flags and obj.get("immutable") is not True
    return kind.replaced_by if is_mutable else (*kind.replaced_by, *kind.mutable)


def without_ignored(found: Sequence[Difference], ignored: Sequence[str]) -> list[Difference]:
    """The differences that don't lie at or below an ignored path."""
    return [
        difference
        for difference in found
        if not any(re.match(re.escape(path) + r"($|[.\[])", difference.name) for path in ignored)
    ]


class _Missing(enum.Enum):
    MISSING = enum.auto()


_MISSING: Final = _Missing.MISSING


def _walk(path: Path, old: Any, new: Any) -> Iterator[tuple[Path, Change, Any]]:
    if new is _MISSING or (new is None and old is not None and old is not _MISSING):
        yield path, Change.DELETE, None
    elif old is _MISSING:
        yield path, Change.ADD, new
    elif is_map(old) and is_map(new):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk((*path, key), old.get(key, _MISSING), new.get(key, _MISSING))
    elif is_list(old) and is_list(new):
        for index in range(max(len(old), len(new))):
            yield from _walk((*path, index), _at(old, index), _at(new, index))
    elif new is UNKNOWN or old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path, Change.UPDATE, new


def _at(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else _MISSING


def _pattern(text: str) -> Path:
    return tuple(text.replace("[*]", ".*").split("."))


def _touches(pattern: Path, path: Path, value: object) -> bool:
    """Whether the change at `path` reaches what the pattern names: at it, below it, or inside of a new value."""
    matched = all(_is_step(step, part) for step, part in zip(pattern, path, strict=False))
    return matched and (len(path) >= len(pattern) or _has(value, pattern[len(path) :]))


def _is_step(step: str | int, part: str | int) -> bool:
    return isinstance(part, int) if step == "*" else step == part


def _has(value: Any, pattern: Path) -> bool:
    if not pattern:
        return True
    step, *rest = pattern
    if step == "*":
        return is_list(value) and any(_has(item, tuple(rest)) for item in value)
    return is_map(value) and step in value and _has(value[step], tuple(rest))
