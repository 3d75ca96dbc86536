"""Trees of values: what the engine sends and what the API server answers, once decoded."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard

JsonObject: TypeAlias = dict[str, Any]
"""A Kubernetes object, or a part of one. Holds only what JSON can hold."""


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


def rename_keys(value: object, renamed: Callable[[str], str]) -> Any:
    """The tree with every key put through `renamed`."""
    if is_map(value):
        return {renamed(key): rename_keys(item, renamed) for key, item in value.items()}
    if is_list(value):
        return [rename_keys(item, renamed) for item in value]
    return value


def mark_secrets(outputs: dict[str, Tree], inputs: dict[str, Tree]) -> dict[str, Tree]:
    """`outputs` with the values secret that are secret in `inputs`.

    A list with one secret in it becomes secret as a whole, because a server may change the order of a list. The data
    of a Secret is always secret.
    """
    if outputs.get("kind") == "Secret":
        return {key: _secret(value) if key in {"data", "stringData"} else value for key, value in outputs.items()}
    return {key: _mark(value, inputs.get(key)) for key, value in outputs.items()}


def _mark(output: Tree, given: Tree) -> Tree:
    if isinstance(output, dict) and isinstance(given, dict):
        return {**mark_secrets(output, given)}
    return _secret(output) if has_secrets(given) else output


def _secret(value: Tree) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


def prune(live: JsonObject, shape: JsonObject) -> JsonObject:
    """The part of `live` that `shape` has too: what a program had set, with the values that are there now.

    A server doesn't answer most fields that are false, zero or empty: one that `shape` has so is taken to be there.
    """
    kept = {key: _prune_value(value, shape[key]) for key, value in live.items() if key in shape}
    unsaid = {key: value for key, value in shape.items() if key not in live and value in (False, 0, "")}
    return {**kept, **unsaid}


def _prune_value(live: Any, shape: Any) -> Any:
    if is_map(live) and is_map(shape):
        return prune(live, shape)
    if is_list(live) and is_list(shape):
        return [_prune_value(item, model) for item, model in zip(live, shape, strict=False)]
    return live
