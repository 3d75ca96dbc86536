"""Normalization and naming of a Pulumi program's inputs: inputs get the form in which an API server would return them.

The real plug-in converts inputs to the Go types of its client library. The API server's OpenAPI document gives the same
result: fields that a kind doesn't have are dropped, empty maps and lists too, and quantities get their canonical form.
"""

import base64
import binascii
import hashlib
import re
import secrets
import threading
from decimal import ROUND_UP, Decimal
from typing import Any, Final

from llmd_rehearsal.kubernetes_plugin.client import ApiError, Cluster, Unreachable
from llmd_rehearsal.kubernetes_plugin.objects import (
    AUTONAMED,
    is_annotated_true,
    is_named,
    kind_of_object,
    name_of,
    with_metadata,
    without_read_only_metadata,
)
from llmd_rehearsal.plugin_values import (
    JsonObject,
    Naming,
    OperationRefusal,
    dig,
    dig_map,
    has_unknowns,
    is_list,
    is_map,
)

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_FORM: Final = re.compile(r"([+-]?[0-9.]+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))")


def normalized(obj: JsonObject, schemas: "Schemas | None") -> JsonObject:
    """Return a resource's inputs in the form in which an API server would return them, so that equal inputs compare
    equal.

    Custom resources, and objects with unknown values, only lose the metadata that only a server may set. `schemas` is
    None if no API server answers.
    """
    if not has_unknowns(obj) and kind_of_object(obj).built_in:
        match obj.get("kind"):
            case "Secret":
                obj = _secret(obj)
            case "CustomResourceDefinition":
                spec = dig_map(obj, "spec")
                if spec.get("preserveUnknownFields") is False:
                    spec = {key: value for key, value in spec.items() if key != "preserveUnknownFields"}
                obj = {key: spec if key == "spec" else value for key, value in obj.items() if key != "status"}
            case _:
                obj = schemas.normalized(obj) if schemas else obj
    return without_read_only_metadata(obj)


def _secret(obj: JsonObject) -> JsonObject:
    plain, data = dig_map(obj, "stringData"), dig_map(obj, "data")
    if not plain:
        return obj if not data else {**obj, "data": {key: _base64_again(value) for key, value in data.items()}}
    encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()}
    rest = {key: value for key, value in obj.items() if key != "stringData"}
    return {**rest, "data": {**data, **encoded}}


def _base64_again(value: Any) -> Any:
    try:
        return base64.b64encode(base64.b64decode(value, validate=False)).decode()
    except (binascii.Error, TypeError, ValueError):
        return value


def adopt_name(obj: JsonObject, old: JsonObject) -> JsonObject:
    """Return an object of the program with the automatic name of its predecessor `old`, unless the program sets a
    name.
    """
    if is_named(obj) or not is_annotated_true(old, AUTONAMED):
        return obj
    return _autonamed(obj, name_of(old))


def give_name(obj: JsonObject, naming: Naming) -> JsonObject:
    """Return an object of the program with a new automatic name, unless the program sets a name.

    Raises:
        OperationRefusal: the object uses `generateName`, or automatic names are disabled.
    """
    if dig(obj, "metadata", "generateName"):
        raise OperationRefusal("the `.metadata.generateName` field is not supported in Server-Side Apply mode")
    if is_named(obj):
        return obj
    if not naming.allowed:
        raise OperationRefusal("autonaming is disabled, resource requires the .metadata.name field to be set")
    random = hashlib.sha256(naming.seed).hexdigest()[:8] if naming.seed else secrets.token_hex(4)
    return _autonamed(obj, naming.proposed or f"{naming.name}-{random}")


def _autonamed(obj: JsonObject, name: str) -> JsonObject:
    annotations = {**dig_map(obj, "metadata", "annotations"), AUTONAMED: "true"}
    return with_metadata(obj, name=name, annotations=annotations)


class Schemas:
    """OpenAPI documents of one API server, each fetched when an object of its API group is first normalized."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._documents: dict[str, JsonObject] = {}
        self._lock = threading.Lock()

    def normalized(self, obj: JsonObject) -> JsonObject:
        """Return the object as the API server would return it; unchanged if the object doesn't fit its schema or no
        server answers.
        """
        try:
            schemas = self._schemas(obj["apiVersion"])
        except (Unreachable, ApiError):
            return obj
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = {"group": group, "version": version, "kind": obj["kind"]}
        with_kind = (item for item in schemas.values() if kind in item.get("x-kubernetes-group-version-kind", ()))
        schema = next(with_kind, None)
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


class _Walk:
    """Recursive normalization of an object by its OpenAPI schema."""

    def __init__(self, schemas: JsonObject) -> None:
        self._schemas = schemas

    def value(self, value: Any, schema: JsonObject) -> Any:
        name, schema = self._resolved(schema)
        if name == _QUANTITY:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise _Mismatch
            return canonical(str(value))
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
        answered: JsonObject = {}
        for key, item in value.items():
            field = schema["properties"].get(key)
            if field is None or item is None:
                continue
            # An API server omits empty maps and lists of optional fields, but not empty structures.
            empty = item in ({}, []) and ("additionalProperties" in field or field.get("type") == "array")
            if not empty or key in schema.get("required", ()):
                answered[key] = self.value(item, field)
        return answered

    def _resolved(self, schema: JsonObject) -> tuple[str, JsonObject]:
        """Return a schema's name and the schema itself, with a reference resolved (which `allOf` wraps for fields with
        defaults).
        """
        reference = schema.get("$ref") or next((part.get("$ref") for part in schema.get("allOf", ())), None)
        if reference is None:
            return "", schema
        name = reference.rpartition("/")[2]
        return name, self._schemas[name]


class _Mismatch(Exception):
    """Mismatch between a value and its schema's type; the API server is left to refuse the value in its own words."""


class NotAQuantity(ValueError):
    """The text isn't a Kubernetes quantity."""


def canonical(text: str) -> str:
    """Return a quantity in the form in which an API server returns it: `1000m` is `1`, `1024Mi` is `1Gi`, `0.5` is
    `500m`. The rules are those of k8s.io/apimachinery/pkg/api/resource.

    Raises:
        NotAQuantity: the text isn't a Kubernetes quantity.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise NotAQuantity(text)
    number, binary, decimal, exponent = match.groups()
    try:
        mantissa = Decimal(number)
    except ArithmeticError:
        raise NotAQuantity(text) from None
    if binary:
        value = mantissa * 1024 ** _BINARY[binary]
        return _decimal(value) if abs(value) < 1024 else _binary(value)
    if exponent:
        whole, power = _largest_power(mantissa.scaleb(int(exponent)))
        return f"{whole}e{power}" if power else str(whole)
    return _decimal(mantissa.scaleb(_DECIMAL[decimal]))


def _decimal(value: Decimal) -> str:
    mantissa, power = _largest_power(value)
    return f"{mantissa}{next(suffix for suffix, order in _DECIMAL.items() if order == power)}"


def _binary(value: Decimal) -> str:
    whole = int(value.to_integral_value(ROUND_UP))
    power = 0
    while power < 6 and whole % 1024 == 0:
        whole //= 1024
        power += 1
    suffixes = {order: suffix for suffix, order in _BINARY.items()}
    return f"{whole}{suffixes.get(power, '')}"


def _largest_power(value: Decimal) -> tuple[int, int]:
    """Return the integer mantissa and the largest multiple of three as its power of ten; the smallest power is -9."""
    mantissa, power = int(value.scaleb(9).to_integral_value(ROUND_UP)), -9
    if mantissa == 0:
        return 0, 0
    while power < 18 and mantissa % 1000 == 0:
        mantissa //= 1000
        power += 3
    return mantissa, power
