"""Decoded values that the engine and the stand-in plug-ins exchange.

They are separate from `plugin_protocol`, whose gRPC library is slow to import.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard

JsonObject: TypeAlias = dict[str, Any]
"""Type of a JSON object of the service behind a plug-in (Kubernetes or OCI), or of a part of such an object."""


class Unknown(enum.Enum):
    """Type of the placeholder for a value that the engine doesn't know yet in a preview."""

    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Secret:
    """Value that the engine stores encrypted in its state file."""

    value: "Tree"


UNKNOWN: Final = Unknown.UNKNOWN
Scalar: TypeAlias = bool | int | float | str | None
Tree: TypeAlias = "Scalar | Secret | Unknown | list[Tree] | dict[str, Tree]"


@dataclass(frozen=True)
class Naming:
    """Parts of an automatic name: the resource's name in the program, the engine's random seed, and the engine's
    proposal. Equal seeds give equal names. `allowed` is False if automatic names are disabled.
    """

    name: str
    seed: bytes = b""
    proposed: str = ""
    allowed: bool = True


class PropertyChangeKind(enum.Enum):
    """Kinds of a property's change in an update, with the names that the engine gives them."""

    ADD = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()


class OperationRefusal(Exception):
    """An operation on a resource failed without any effect that the engine must record."""


class InitFailed(Exception):
    """A resource exists but isn't, or isn't yet, in the state that the program asked for.

    The engine records `properties` (and, after a Read, `inputs`) and sends an Update in the next run, even without
    changes.
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
    """Tell whether a value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Tell whether a value is a list."""
    return isinstance(value, list)


def dig(value: object, *path: str) -> Any:
    """Return the value at the keys `path` below `value`; None if a key of the path is missing."""
    for key in path:
        if not is_map(value):
            return None
        value = value.get(key)
    return value


def dig_list(value: object, *path: str) -> list[JsonObject]:
    """Return the list at the keys `path` below `value`; empty if a key of the path is missing."""
    return dig(value, *path) or []


def dig_map(value: object, *path: str) -> JsonObject:
    """Return the JSON object at the keys `path` below `value`; empty if a key of the path is missing."""
    return dig(value, *path) or {}


def has_unknowns(value: Tree) -> bool:
    """Tell whether a tree of values contains a value that is unknown in a preview."""
    return any(node is UNKNOWN for node in _nodes(value))


def has_secrets(value: Tree) -> bool:
    """Tell whether a tree of values contains a secret."""
    return any(isinstance(node, Secret) for node in _nodes(value))


def _nodes(value: Tree) -> Iterator[Tree]:
    """Yield the value and all values below it, secrets unwrapped."""
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
    """Return a tree of values with every secret replaced by its plain value."""
    match value:
        case Secret(inner):
            return without_secrets(inner)
        case dict():
            return {key: without_secrets(item) for key, item in value.items()}
        case list():
            return [without_secrets(item) for item in value]
        case _:
            return value
