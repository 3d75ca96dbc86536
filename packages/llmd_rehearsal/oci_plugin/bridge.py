"""Behaviour of the Terraform bridge, independent of OCI: typing of inputs, differences, preview states, error messages.

`check` converts inputs to their types, `compare` finds changes, `preview_state` predicts a state, and `FailedRequest`
gives failures the wording of terraform-provider-oci.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from llmd_rehearsal.oci_plugin.facts import Property, ResourceType, snake
from llmd_rehearsal.oci_plugin.region import ServiceError, request_id
from llmd_rehearsal.plugin_values import (
    UNKNOWN,
    JsonObject,
    Naming,
    OperationRefusal,
    PropertyChangeKind,
    is_list,
    is_map,
)

DEFAULTS: Final = "__defaults"
"""Key of a resource's inputs under which the OCI plug-in records the names of the inputs that it filled in."""
META: Final = "__meta"
_SUFFIX_DIGITS: Final = 7
_UNPLANNED: Final = frozenset({"definedTags"})
_TIMEOUTS: Final = "e2bfb730-ecaa-11e6-8f88-34363bc7c4c0"
"""Key under which the Terraform bridge records a resource's timeouts (terraform-plugin-sdk, `TimeoutKey`)."""
_NANOSECONDS: Final = 1_000_000_000
PROVIDER_VERSION: Final = "8.23.0"
"""Version of terraform-provider-oci inside pulumi-oci 4.20.0."""
_VERBS: Final = {"create": "POST", "update": "PUT", "delete": "DELETE"}
_SUGGESTIONS: Final = {
    "LimitExceeded": "Request a service limit increase for this resource {service}",
    "TooManyRequests": "Please retry the request after some time, or reduce the number of requests for {service}",
    "InternalError": "The service for this resource encountered an error. "
    "Please contact support for help with service: {service}",
    "InvalidParameter": "Please update the parameter(s) in the Terraform config as per error message",
    "NotAuthorizedOrNotFound": "Either the resource has been deleted or service {service} need policy to access this "
    "resource. Policy reference: https://docs.oracle.com/en-us/iaas/Content/Identity/Reference/policyreference.htm",
}
_LOST: Final = "net/http: request canceled (Client.Timeout exceeded while awaiting headers)"
_OTHER_SUGGESTION: Final = "Please retry or contact support for help with service: {service}"


@dataclass(frozen=True)
class Checked:
    """Typed inputs of a resource with the OCI plug-in's defaults, and the messages about invalid inputs."""

    inputs: JsonObject
    failures: list[str] = field(default_factory=list[str])


def check(resource: ResourceType, olds: JsonObject, news: JsonObject, naming: Naming) -> Checked:
    """Convert a resource's inputs to their properties' types, add the OCI plug-in's defaults, and return the inputs
    with the errors found.

    Raises:
        OperationRefusal: a value can't be converted to its property's type, or automatic names are disabled.
    """
    inputs = {key: value for key, value in news.items() if key != DEFAULTS and value is not None}
    if resource.is_autonamed and "name" not in inputs:
        old = olds.get("name") if "name" in (olds.get(DEFAULTS) or ()) else None
        if not old and not naming.allowed:
            raise OperationRefusal(f"automatic naming is disabled but resource {naming.name!r} has no name")
        suffix = hashlib.sha256(naming.seed or naming.name.encode()).hexdigest()[:_SUFFIX_DIGITS]
        inputs["name"] = old or naming.proposed or f"{naming.name}-{suffix}"
    typed = _typed_fields(resource.inputs, inputs)
    typed[DEFAULTS] = sorted({*typed[DEFAULTS], *(inputs.keys() - news.keys())})
    missing = [
        f'Missing required argument. The argument "{argument}" is required, but no definition was found.'
        f". Examine values at '{location}'."
        for argument, location in _missing(resource.inputs, inputs, "", naming.name)
    ]
    return Checked(typed, [*_unknown_keys(resource.inputs, news, naming.name), *missing])


def _typed_fields(fields: Mapping[str, Property], inputs: JsonObject) -> JsonObject:
    defaults = {
        name: schema.default for name, schema in fields.items() if schema.default is not None and name not in inputs
    }
    typed = {key: _typed(key, fields.get(key), value) for key, value in inputs.items()}
    return {**typed, **defaults, DEFAULTS: sorted(defaults)}


def _typed(name: str, schema: Property | None, value: Any) -> Any:
    if schema is None or value is UNKNOWN or value is None:
        return value
    if schema.kind == "list" and is_list(value):
        return [_typed(name, schema.item, item) for item in value]
    if schema.kind in {"object", "map"} and is_map(value):
        plain = {key: item for key, item in value.items() if key != DEFAULTS and item is not None}
        return plain if schema.kind == "map" else _typed_fields(schema.fields, plain)
    if not schema.is_scalar or isinstance(value, list | dict):
        kind = "map" if schema.kind == "object" else schema.kind
        type_ = type(value).__name__  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise OperationRefusal(f"{snake(name)}: expected type '{kind}', got unconvertible type '{type_}'")
    return _scalar(snake(name), schema.kind, value)


def _scalar(name: str, kind: str, value: Any) -> Any:
    """Return the value converted to a property's type by the rules of Go's strconv."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    parser = {"boolean": "ParseBool", "integer": "ParseInt", "number": "ParseFloat"}.get(kind)
    try:
        match kind:
            case "boolean":
                return {"true": True, "false": False}[text]
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case _:
                return text
    except (ValueError, KeyError):
        raise OperationRefusal(f'{name}: strconv.{parser}: parsing "{text}": invalid syntax') from None


def _unknown_keys(fields: Mapping[str, Property], inputs: JsonObject, location: str) -> Iterator[str]:
    for key, value in inputs.items():
        schema = fields.get(key)
        if key == DEFAULTS:
            continue
        if schema is None:
            yield f"Invalid or unknown key. Examine values at '{location}.{key}'."
            continue
        for item in _objects(schema, value):
            yield from _unknown_keys(_fields(schema), item, f"{location}.{key}")


def _missing(
    fields: Mapping[str, Property], inputs: JsonObject, prefix: str, location: str, *, in_list: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the required arguments without a value, each with its location."""
    for key, schema in fields.items():
        value, argument = inputs.get(key), f"{prefix}{snake(key)}"
        if value is None and schema.required:
            yield argument, location if in_list else f"{location}.{key}"
        for index, item in enumerate(_objects(schema, value)):
            inside = _missing(
                _fields(schema), item, f"{argument}.{index}.", f"{location}.{key}", in_list=schema.kind == "list"
            )
            yield from inside


def _fields(schema: Property) -> Mapping[str, Property]:
    return schema.item.fields if schema.item else schema.fields


def _objects(schema: Property, value: Any) -> list[JsonObject]:
    """Return the objects that a value consists of: the value itself, or a list's items."""
    if schema.kind == "map":
        return []
    items: list[Any] = value if is_list(value) else [value]
    return [item for item in items if is_map(item)]


def without_defaults(value: Any) -> Any:
    """Return inputs without the records that the Terraform bridge adds to them (`__defaults`), at any depth."""
    if is_map(value):
        return {key: without_defaults(item) for key, item in value.items() if key != DEFAULTS}
    if is_list(value):
        return [without_defaults(item) for item in value]
    return value


@dataclass(frozen=True)
class ResourcePropertyChange:
    """Change of one property of an OCI resource. `computed`: the property changes only because OCI will compute its
    value.
    """

    path: str
    change: PropertyChangeKind
    replaces: bool = False
    computed: bool = False

    @property
    def root(self) -> str:
        """Name of the top-level input or output that contains the property."""
        return self.path.partition(".")[0].partition("[")[0]


@dataclass(frozen=True)
class ResourceDiff:
    """Differences between a resource's recorded state and its new inputs; empty if nothing changes. With
    `delete_first`, the old resource must be deleted before its replacement is created.
    """

    differences: tuple[ResourcePropertyChange, ...] = ()
    delete_first: bool = False

    @property
    def replaces(self) -> list[str]:
        """Top-level properties whose changes require the resource's replacement, one for each difference."""
        return [difference.root for difference in self.differences if difference.replaces]

    @property
    def changed(self) -> list[str]:
        """Names of the changed top-level properties, sorted."""
        return sorted({difference.root for difference in self.differences})


def compare(resource: ResourceType, state: JsonObject, news: JsonObject, ignored: frozenset[str]) -> ResourceDiff:
    """Return the differences between a resource's recorded state and its new inputs, except at ignored paths.

    Changes of computed properties count only if another property changes too. A resource with a name that the program
    sets is deleted before its replacement is created, because the names would collide.
    """
    inputs = without_defaults(news)
    parents = tuple(f"{path}{mark}" for path in ignored for mark in ".[")
    changes = [
        change
        for change in _differences(resource, state, inputs)
        if change.path not in ignored and not change.path.startswith(parents)
    ]
    if all(change.computed for change in changes):
        return ResourceDiff()
    changes += [
        ResourcePropertyChange(META, PropertyChangeKind.UPDATE, replaces=True)
        for change in changes
        if change.path in resource.replaced_through_meta
    ]
    replacing = any(change.replaces and not change.computed for change in changes)
    differences = tuple(replace(change, replaces=change.replaces and replacing) for change in changes)
    fixed_name = resource.is_autonamed and "name" not in (news.get(DEFAULTS) or ())
    return ResourceDiff(differences, delete_first=replacing and fixed_name and "name" in news)


def _is_empty(value: Any, schema: Property) -> bool:
    """Tell whether a value counts as unset; terraform-provider-oci doesn't distinguish an empty value from an unset
    one.
    """
    return value is None or value in (schema.empty(), schema.planned)


def _differences(resource: ResourceType, state: JsonObject, inputs: JsonObject) -> Iterator[ResourcePropertyChange]:
    for name, schema in {**resource.outputs, **resource.inputs}.items():
        old, new = state.get(name), inputs.get(name)
        if new is not None:
            yield from _between(name, schema, old, new)
        elif not schema.computed and not _is_empty(old, schema):
            yield ResourcePropertyChange(name, PropertyChangeKind.DELETE, schema.replaces)
        elif old is None and _is_planned(name, schema):
            yield ResourcePropertyChange(name, PropertyChangeKind.ADD, computed=True)


def _is_planned(name: str, schema: Property) -> bool:
    """Tell whether a property that the state lacks appears in a diff: a collection that OCI computes, or a fixed
    planned value.
    """
    if schema.is_scalar:
        return schema.planned is not None
    of_objects = schema.item is not None and bool(schema.item.fields)
    return schema.computed and schema.kind in {"list", "map"} and not of_objects and name not in _UNPLANNED


def _between(path: str, schema: Property | None, old: Any, new: Any) -> Iterator[ResourcePropertyChange]:
    if old == new:
        if is_map(new) and schema is not None and schema.kind == "object":
            yield from _inside(path, schema, old, new)
        elif is_list(new) and schema is not None and schema.item is not None and not schema.whole:
            yield from _in_list(path, schema, old, new)
        return
    replaces = schema is not None and schema.replaces
    if old is None:
        yield ResourcePropertyChange(path, PropertyChangeKind.ADD, replaces)
    elif new is UNKNOWN or (schema is not None and schema.whole):
        if schema is None or not schema.whole or not _covers(old, new):
            yield ResourcePropertyChange(path, PropertyChangeKind.UPDATE, replaces)
    elif is_map(old) and is_map(new):
        yield from _inside(path, schema, old, new)
    elif is_list(old) and is_list(new):
        yield from _in_list(path, schema, old, new)
    else:
        yield ResourcePropertyChange(path, PropertyChangeKind.UPDATE, replaces)


def _covers(old: Any, new: Any) -> bool:
    """Tell whether the state contains everything that the inputs contain; additional parts of the state are
    computed.
    """
    if is_map(old) and is_map(new):
        return all(_covers(old.get(key), value) for key, value in new.items())
    if is_list(old) and is_list(new):
        return len(old) == len(new) and all(_covers(*pair) for pair in zip(old, new, strict=True))
    return bool(old == new)


def _inside(path: str, schema: Property | None, old: JsonObject, new: JsonObject) -> Iterator[ResourcePropertyChange]:
    fields = schema.fields if schema is not None and schema.kind == "object" else dict[str, Property]()
    anything = Property("string", replaces=schema is not None and schema.replaces)
    for name in {**fields, **new} if fields else {**old, **new}:
        part, before, after = fields.get(name, anything), old.get(name), new.get(name)
        if after is not None:
            yield from _between(f"{path}.{name}", part, before, after)
        elif before is None:
            if part.computed and (part.is_scalar or part.kind == "map"):
                yield ResourcePropertyChange(f"{path}.{name}", PropertyChangeKind.ADD, part.replaces, computed=True)
        elif not part.computed and not _is_empty(before, part):
            yield ResourcePropertyChange(f"{path}.{name}", PropertyChangeKind.DELETE, part.replaces)


def _in_list(path: str, schema: Property | None, old: list[Any], new: list[Any]) -> Iterator[ResourcePropertyChange]:
    item = schema.item if schema else None
    replaces = schema is not None and schema.replaces
    for index in range(max(len(old), len(new))):
        location = f"{path}[{index}]"
        if index >= len(old):
            yield ResourcePropertyChange(location, PropertyChangeKind.ADD, replaces)
        elif index >= len(new):
            yield ResourcePropertyChange(location, PropertyChangeKind.DELETE, replaces)
        else:
            for inner in _between(location, item, old[index], new[index]):
                yield replace(inner, replaces=inner.replaces or (replaces and not inner.computed))


def meta(resource: ResourceType) -> str:
    """Return the JSON text `__meta` that the Terraform bridge records in a resource's state, with the resource's
    timeouts.
    """
    limit = int(resource.timeout_s * _NANOSECONDS)
    timeouts = {"create": limit, "delete": limit, "update": limit}
    return json.dumps({"_new_extra_shim": {}, _TIMEOUTS: timeouts}, separators=(",", ":"))


def preview_state(resource: ResourceType, inputs: JsonObject, state: JsonObject | None = None) -> JsonObject:
    """Return the state that a preview predicts for a resource: for a new one, or for one with the recorded `state`."""
    inputs = without_defaults(inputs)
    before = state or {}
    properties = {
        name: _previewed(schema, inputs.get(name), before.get(name, _planned(schema)))
        for name, schema in {**resource.outputs, **resource.inputs}.items()
    }
    return {META: meta(resource), "id": before.get("id", UNKNOWN), **properties}


def _planned(schema: Property) -> Any:
    """Return a preview's value of a property that neither the inputs nor the state have."""
    if schema.planned is not None:
        return schema.planned
    return UNKNOWN if schema.computed else None


def _previewed(schema: Property | None, new: Any, old: Any) -> Any:
    if new is None:
        return old
    if schema is None or new is UNKNOWN:
        return new
    if schema.kind == "list" and is_list(new):
        return UNKNOWN if UNKNOWN in new else [_previewed(schema.item, item, UNKNOWN) for item in new]
    if schema.kind != "object" or not is_map(new):
        return new
    before = old if is_map(old) else {}
    return {
        name: _previewed(part, new.get(name), before.get(name, _planned(part))) for name, part in schema.fields.items()
    }


def with_computed(schema: Property | None, value: Any, old: Any = None) -> Any:
    """Return an input's value as OCI answers it: with the parts that OCI computes, which are taken from the value
    `old`, or else empty.
    """
    if schema is None:
        return value if value is not None else old
    if value is None:
        if old is not None or schema.planned is not None:
            return old if old is not None else schema.planned
        return schema.empty() if schema.computed else None
    if schema.kind == "list" and is_list(value):
        before = old if is_list(old) and len(old) == len(value) else [None] * len(value)
        return [with_computed(schema.item, item, was) for item, was in zip(value, before, strict=True)]
    if schema.kind != "object" or not is_map(value):
        return value
    was = old if is_map(old) else {}
    parts = {name: with_computed(part, value.get(name), was.get(name)) for name, part in schema.fields.items()}
    return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class FailedRequest:
    """Failed request to OCI, from which terraform-provider-oci's error messages are built; `operation` is `create`,
    `update` or `delete`.
    """

    resource: ResourceType
    operation: str
    region: str

    @property
    def service(self) -> str:
        """Service and resource type in terraform-provider-oci's notation, for example `Core Vcn`."""
        return f"{_spaced(self.resource.service)} {_spaced(self.resource.name)}"

    @property
    def _host(self) -> str:
        return f"{self.resource.service}.{self.resource.name}.{self.region}.oraclecloud.com".lower()

    def refusal(self, error: ServiceError) -> OperationRefusal:
        """Return terraform-provider-oci's error for an error response of an OCI service."""
        advice = _SUGGESTIONS.get(error.code, _OTHER_SUGGESTION).format(service=self.service)
        name = self.resource.name
        page = "_".join([self.resource.service, *_spaced(name).split()]).lower()
        operation = f"{self.operation.title()}{name}"
        if name == "Instance" and self.operation != "update":
            operation = {"create": "LaunchInstance", "delete": "TerminateInstance"}[self.operation]
        return OperationRefusal(
            f"{error}\n"
            f"Suggestion: {advice}\n"
            f"Documentation: https://registry.terraform.io/providers/oracle/oci/latest/docs/resources/{page} \n"
            f"Request Target: {_VERBS[self.operation]} https://{self._host} \n"
            f"Provider version: {PROVIDER_VERSION} \n"
            f"Service: {self.service} \n"
            f"Operation Name: {operation} \n"
            f"OPC request ID: {request_id()} \n"
        )

    def unanswered(self) -> OperationRefusal:
        """Return terraform-provider-oci's error for a request that got no answer (net/http, Client.Timeout)."""
        verb = _VERBS[self.operation].title()
        return OperationRefusal(f'can not {self.operation} {self.service}: {verb} "https://{self._host}": {_LOST}')

    def failed_work(self, message: str) -> str:
        """Return terraform-provider-oci's message for work that failed after OCI had accepted the request."""
        done = {"create": "CREATED", "update": "UPDATED", "delete": "DELETED"}[self.operation]
        entity = self.resource.name.lower()
        work = f"workId: ocid1.clustersworkrequest.oc1..{secrets.token_hex(16)}"
        return (
            "Work Request error \n"
            f"Provider version: {PROVIDER_VERSION} \n"
            f"Service: {self.service} \n"
            f"Error Message: work request did not succeed, {work}, entity: {entity}, action: {done}. "
            f"Message: {message} \n"
            f"Suggestion: {_OTHER_SUGGESTION.format(service=self.service)}\n"
        )


def _spaced(name: str) -> str:
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name).strip()
