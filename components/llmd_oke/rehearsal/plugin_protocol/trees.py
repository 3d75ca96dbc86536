"""Trees of values: what the engine sends and what a service answers, once decoded."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard

JsonObject: TypeAlias = dict[str, Any]
"""An object of the service that a plug-in stands before, or a part of one. Holds only what JSON can hold."""


class Unknown(enum.Enum):
    """A value that the engine doesn't know yet, at preview."""

    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that the engine keeps encrypted in its state."""

    value: "Tree"


UNKNOWN: Final = Unknown.UNKNOWN
Scalar: TypeAlias = bool | int | float | str | None
Tree: TypeAlias = "Scalar | Secret | Unknown | list[Tree] | dict[str, Tree]"


def is_map(value: object) -> TypeGuard[JsonObject]:
    """Whether it is an object, with names for its parts."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list."""
    return isinstance(value, list)


def dig(value: object, *path: str) -> Any:
    """What lies at `path` below `value`, or None where the path breaks off."""
    for key in path:
        if not is_map(value):
            return None
        value = value.get(key)
    return value


def dig_list(value: object, *path: str) -> list[JsonObject]:
    """The list of objects that lies at `path`, or an empty one."""
    return dig(value, *path) or []


def dig_map(value: object, *path: str) -> JsonObject:
    """The object that lies at `path`, or an empty one."""
    return dig(value, *path) or {}


def nodes(value: Tree) -> Iterator[Tree]:
    """The value itself and everything below it, secrets opened."""
    yield value
    match value:
        case Secret(inner):
            yield from nodes(inner)
        case dict():
            for item in value.values():
                yield from nodes(item)
        case list():
            for item in value:
                yield from nodes(item)
        case _:
            pass


def has_unknowns(value: Tree) -> bool:
    """Whether anything in the tree isn't known yet."""
    return any(node is UNKNOWN for node in nodes(value))


def has_secrets(value: Tree) -> bool:
    """Whether anything in the tree is secret."""
    return any(isinstance(node, Secret) for node in nodes(value))


def without_secrets(value: Tree) -> Any:
    """The tree with every secret replaced by its value."""
    match value:
        case Secret(inner):
            return without_secrets(inner)
        case dict():
            return {key: without_secrets(item) for key, item in value.items()}
        case list():
            return [without_secrets(item) for item in value]
        case _:
            return value
