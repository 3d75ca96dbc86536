"""Values as the engine and the stand-in plug-ins exchange them, once decoded.

Kept apart from the protocol itself, whose library takes long to import.
"""

import enum
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class Naming:
    """Parts of a generated name: the resource's name in the program, the engine's seed, and the engine's proposal.

    The same seed makes the same name.
    """

    name: str
    seed: bytes = b""
    proposed: str = ""
    allowed: bool = True


class PropertyChangeKind(enum.Enum):
    """Kinds of a property's change in an update; the names are the engine's."""

    ADD = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()


class OperationRefusal(Exception):
    """An operation that failed and left nothing that the engine should record."""


class InitFailed(Exception):
    """An object that exists, but isn't what the program asked for (yet).

    The engine records `properties` (and `inputs`, from Read) and sends an Update next time, changed or not.
    """

    def __init__(
        self, id_: str, properties: dict[str, Tree], reasons: Sequence[str], inputs: dict[str, Tree] | None = None
    ) -> None:
        super().__init__(reasons[0])
        self.id = id_
        self.properties = properties
        self.reasons = list(reasons)
        self.inputs = inputs


def is_map(value: object) -> TypeGuard[JsonObject]:
    """Tell whether it is an object, with names for its parts."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Tell whether it is a list."""
    return isinstance(value, list)


def dig(value: object, *path: str) -> Any:
    """Return the value at `path` below `value`, or None where the path breaks off."""
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


def has_unknowns(value: Tree) -> bool:
    """Tell whether anything in the tree is unknown as yet."""
    return any(node is UNKNOWN for node in _nodes(value))


def has_secrets(value: Tree) -> bool:
    """Tell whether anything in the tree is secret."""
    return any(isinstance(node, Secret) for node in _nodes(value))


def _nodes(value: Tree) -> Iterator[Tree]:
    """The value itself and everything below it, secrets opened."""
    yield value
    match value:
        case Secret(inner):
            yield from _nodes(inner)
        case dict():
            for item in value.values():
                yield from _nodes(item)
        case list():
            for item in value:
                yield from _nodes(item)
        case _:
            pass


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
