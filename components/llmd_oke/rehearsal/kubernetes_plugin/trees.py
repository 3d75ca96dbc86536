"""Trees of values of Kubernetes objects: secrets, renamed keys, and the part that a program had set."""

from collections.abc import Callable
from typing import Any

from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, Secret, Tree, has_secrets, is_list, is_map


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
