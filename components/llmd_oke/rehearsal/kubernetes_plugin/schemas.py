"""Objects of built-in kinds in the form in which a server would answer them.

The real plug-in puts inputs through the Go types of its client library; the same comes of the API server's OpenAPI
document: fields that a kind doesn't have are dropped, and so are empty maps and lists, and quantities are written in
their canonical form.
"""

import threading
from typing import Any

from llmd_oke.rehearsal.kubernetes_plugin.client import Cluster
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.quantities import NotAQuantity, canonical
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, is_list, is_map

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
}


class _Mismatch(Exception):
    """A value that isn't of the type that its field has; the server is left to refuse it in its own words."""


class Schemas:
    """The OpenAPI documents of one API server, each fetched when an object of its group is first met."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._documents: dict[str, JsonObject] = {}
        self._lock = threading.Lock()

    def normalized(self, obj: JsonObject) -> JsonObject:
        """The object as a server would answer it; unchanged where it doesn't fit its kind or no server answers."""
        try:
            schemas = self._schemas(obj["apiVersion"])
        except (Unreachable, ApiError):
            return obj
        schema = next((schema for schema in schemas.values() if _is_of(schema, obj)), None)
        if schema is None:
            return obj
        try:
            return _Walk(schemas).value(obj, schema)
        except (_Mismatch, NotAQuantity):
            return obj

    def _schemas(self, api_version: str) -> JsonObject:
        with self._lock:
            if api_version not in self._documents:
                root = "apis" if "/" in api_version else "api"
                document = self._cluster.get_path(f"/openapi/v3/{root}/{api_version}")
                self._documents[api_version] = document["components"]["schemas"]
            return self._documents[api_version]


def _is_of(schema: JsonObject, obj: JsonObject) -> bool:
    group, _, version = obj["apiVersion"].rpartition("/")
    wanted = {"group": group, "version": version, "kind": obj["kind"]}
    return wanted in schema.get("x-kubernetes-group-version-kind", ())


class _Walk:
    """One way through an object, with the schemas beside it."""

    def __init__(self, schemas: JsonObject) -> None:
        self._schemas = schemas

    def value(self, value: Any, schema: JsonObject) -> Any:
        name, schema = self._resolved(schema)
        if name == _QUANTITY:
            return _quantity(value)
        expected = _TYPES.get(schema.get("type", ""))
        if expected is None:
            return value
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise _Mismatch
        if is_map(value):
            return self._object(value, schema)
        if is_list(value):
            return [self.value(item, schema.get("items", {})) for item in value]
        return value

    def _object(self, value: JsonObject, schema: JsonObject) -> JsonObject:
        if "additionalProperties" in schema:
            return {key: self.value(item, schema["additionalProperties"]) for key, item in value.items()}
        if "properties" not in schema:
            return value
        kept: JsonObject = {}
        for key, item in value.items():
            field = schema["properties"].get(key)
            if field is None or item is None or self._is_dropped(key, item, field, schema):
                continue
            kept[key] = self.value(item, field)
        return kept

    def _is_dropped(self, key: str, item: object, field: JsonObject, parent: JsonObject) -> bool:
        """Empty maps and lists of optional fields are never answered; empty structures are."""
        empty = item in ({}, []) and ("additionalProperties" in field or field.get("type") == "array")
        return empty and key not in parent.get("required", ())

    def _resolved(self, schema: JsonObject) -> tuple[str, JsonObject]:
        """A schema and its name, behind a reference (which a field with a default wraps in `allOf`)."""
        reference = schema.get("$ref") or next((part.get("$ref") for part in schema.get("allOf", ())), None)
        if reference is None:
            return "", schema
        name = reference.rpartition("/")[2]
        return name, self._schemas[name]


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Mismatch
    return canonical(str(value))
