"""What a resource's state will be: known inputs, and what only OCI will say."""

import json
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.differences import META
from llmd_oke.rehearsal.oci_plugin.inputs import without_defaults
from llmd_oke.rehearsal.oci_plugin.schemas import Property, Resource
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, JsonObject, is_list, is_map

_TIMEOUTS: Final = "e2bfb730-ecaa-11e6-8f88-34363bc7c4c0"
"""Under this key the bridge to Terraform keeps a resource's timeouts (terraform-plugin-sdk, `TimeoutKey`)."""
_NANOSECONDS: Final = 1_000_000_000


def meta(resource: Resource) -> str:
    """What the bridge to Terraform keeps beside a resource's state."""
    limit = int(resource.timeout_s * _NANOSECONDS)
    timeouts = {"create": limit, "delete": limit, "update": limit}
    return json.dumps({"_new_extra_shim": {}, _TIMEOUTS: timeouts}, separators=(",", ":"))


def forecast(resource: Resource, inputs: JsonObject, state: JsonObject | None = None) -> JsonObject:
    """The state that a preview shows: of a new resource, or of one that has a state."""
    known = {**resource.outputs, **resource.inputs}
    given = without_defaults(inputs)
    before = state or {}
    found: JsonObject = {META: meta(resource), "id": before.get("id", UNKNOWN)}
    for name, property_ in known.items():
        found[name] = _foreseen(property_, given.get(name), before.get(name, _unsaid(property_)))
    return found


def _unsaid(known: Property) -> Any:
    """What a preview shows of a property that neither the program nor the state gives."""
    if known.planned is not None:
        return known.planned
    return UNKNOWN if known.computed else None


def _foreseen(known: Property | None, given: Any, old: Any) -> Any:
    if given is None:
        return old
    if known is None or given is UNKNOWN:
        return given
    if known.kind == "list" and is_list(given):
        return UNKNOWN if UNKNOWN in given else [_foreseen(known.item, item, UNKNOWN) for item in given]
    if known.kind != "object" or not is_map(given):
        return given
    before = old if is_map(old) else {}
    return {
        name: _foreseen(part, given.get(name), before.get(name, _unsaid(part))) for name, part in known.fields.items()
    }


def filled(known: Property | None, given: Any, old: Any = None) -> Any:
    """A value as OCI answers it once it knows the resource: nothing that it computes is missing."""
    if known is None:
        return given if given is not None else old
    if given is None:
        return old if old is not None else _answered(known)
    if known.kind == "list" and is_list(given):
        before = old if is_list(old) and len(old) == len(given) else [None] * len(given)
        return [filled(known.item, item, was) for item, was in zip(given, before, strict=True)]
    if known.kind != "object" or not is_map(given):
        return given
    was = old if is_map(old) else {}
    parts = {name: filled(part, given.get(name), was.get(name)) for name, part in known.fields.items()}
    return {name: value for name, value in parts.items() if value is not None}


def _answered(known: Property) -> Any:
    if known.planned is not None:
        return known.planned
    return known.empty() if known.computed else None
