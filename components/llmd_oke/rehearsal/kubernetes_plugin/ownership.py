"""Field managers: who set which field of an object."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from llmd_oke.rehearsal.kubernetes_plugin.client import FIRST_WRITER
from llmd_oke.rehearsal.kubernetes_plugin.objects import FIELD_MANAGER, annotation
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig, dig_list

# Managers (by the start of their name, and their kind of write) whose fields an update takes over: those of a create
# by this plug-in and of kubectl. From pulumi-kubernetes 4.30.0, provider/pkg/await/await.go.
_TAKEN_OVER: Final = (
    ("kubectl", "Apply"),
    ("kubectl", "Update"),
    ("before-first-apply", "Update"),
    ("pulumi-kubernetes", "Update"),
    ("pulumi-resource-kubernetes", "Update"),
)
_FIRST_WRITERS: Final = frozenset({FIRST_WRITER, "pulumi-resource-kubernetes"})


def manager_name(inputs: JsonObject, recorded: str) -> str:
    """The manager to write as: as annotated, as recorded, or a new one."""
    return annotation(inputs, FIELD_MANAGER) or recorded or f"{FIRST_WRITER}-{secrets.token_hex(4)}"


def must_force(live: JsonObject, *, preview: bool) -> bool:
    """Whether to overrule other managers without being asked to.

    At preview, as long as a first writer's fields weren't taken over; always where nobody kept account of fields.
    """
    entries = _entries(live)
    created = any(entry["manager"] in _FIRST_WRITERS and entry["operation"] == "Update" for entry in entries)
    return not entries or (preview and created)


def taken_over(live: JsonObject, manager: str) -> list[JsonObject] | None:
    """The object's managed fields once `manager` took over; None where there is nothing to take."""
    entries = _entries(live)
    own = next((entry for entry in entries if entry["manager"] == manager and entry["operation"] == "Apply"), None)
    taken = [entry for entry in entries if entry is not own and _is_taken_over(entry)]
    if not taken:
        return None
    kept = [entry for entry in entries if entry is not own and entry not in taken]
    merged = own or {**taken[0], "manager": manager, "operation": "Apply"}
    for entry in taken:
        merged = {**merged, "fieldsV1": _union(merged.get("fieldsV1") or {}, entry.get("fieldsV1") or {})}
    return [*kept, merged]


def leave_to_others(obj: JsonObject, live: JsonObject, manager: str, ignored: Sequence[str]) -> JsonObject:
    """The object as `manager` may apply it: an ignored field stays with its owner, or keeps its live value.

    Paths that go through lists are left alone.
    """
    for path in ignored:
        keys = path.split(".")
        value = dig(live, *keys)
        others = any(_owns(entry, keys) for entry in _entries(live) if entry["manager"] != manager)
        own = any(_owns(entry, keys) for entry in _entries(live) if entry["manager"] == manager)
        if others and not own:
            obj = _with(obj, keys, None)
        elif value is not None:
            obj = _with(obj, keys, value)
    return obj


def _entries(live: JsonObject) -> list[JsonObject]:
    return dig_list(live, "metadata", "managedFields")


def _owns(entry: JsonObject, keys: Sequence[str]) -> bool:
    return dig(entry.get("fieldsV1"), *(f"f:{key}" for key in keys)) is not None


def _with(obj: JsonObject, keys: Sequence[str], value: object) -> JsonObject:
    """A copy with the value at that path; None takes the field away."""
    key, *rest = keys
    inside = _with(obj.get(key) or {}, rest, value) if rest else value
    return {**{name: item for name, item in obj.items() if name != key}, **({} if inside is None else {key: inside})}


def _is_taken_over(entry: JsonObject) -> bool:
    return not entry.get("subresource") and any(
        entry["manager"].startswith(prefix) and entry["operation"] == operation for prefix, operation in _TAKEN_OVER
    )


def _union(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    shared = {key: _union(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **shared}
