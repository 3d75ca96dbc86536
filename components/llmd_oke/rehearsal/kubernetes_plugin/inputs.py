"""What a program asks for, made into what the plug-in works with."""

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from llmd_oke.rehearsal.kubernetes_plugin.kinds import kind_of_object
from llmd_oke.rehearsal.kubernetes_plugin.objects import (
    AUTONAMED,
    is_annotated_true,
    is_named,
    name_of,
    with_metadata,
    without_read_only_metadata,
)
from llmd_oke.rehearsal.kubernetes_plugin.schemas import Schemas
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig, dig_map, has_unknowns


def normalized(obj: JsonObject, schemas: Schemas | None) -> JsonObject:
    """Inputs in the form in which a server would answer them, so that equal ones look equal.

    Custom resources, and objects with unknown values, only lose what a server alone may set. `schemas` is None where
    no server answers.
    """
    if not has_unknowns(obj) and kind_of_object(obj).built_in:
        obj = _in_server_form(obj, schemas)
    return without_read_only_metadata(obj)


def _in_server_form(obj: JsonObject, schemas: Schemas | None) -> JsonObject:
    match obj.get("kind"):
        case "Secret":
            return _secret(obj)
        case "CustomResourceDefinition":
            return _definition(obj)
        case _:
            return schemas.normalized(obj) if schemas else obj


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


def _definition(obj: JsonObject) -> JsonObject:
    spec = dig_map(obj, "spec")
    if spec.get("preserveUnknownFields") is False:
        spec = {key: value for key, value in spec.items() if key != "preserveUnknownFields"}
    return {key: spec if key == "spec" else value for key, value in obj.items() if key != "status"}


def adopt_name(obj: JsonObject, old: JsonObject) -> JsonObject:
    """The object with the name that its predecessor was given, if the program gives none."""
    if is_named(obj) or not is_annotated_true(old, AUTONAMED):
        return obj
    return _autonamed(obj, name_of(old))


@dataclass(frozen=True)
class Naming:
    """What a name is made of: the resource's name in the program, the engine's seed, and its own idea of a name."""

    resource_name: str
    seed: bytes
    proposed: str = ""
    allowed: bool = True


def give_name(obj: JsonObject, naming: Naming) -> JsonObject:
    """The object with a name of its own, if the program gives none. Raises Refusal where it may not have one."""
    if dig(obj, "metadata", "generateName"):
        raise Refusal("the `.metadata.generateName` field is not supported in Server-Side Apply mode")
    if is_named(obj):
        return obj
    if not naming.allowed:
        raise Refusal("autonaming is disabled, resource requires the .metadata.name field to be set")
    random = hashlib.sha256(naming.seed).hexdigest()[:8] if naming.seed else secrets.token_hex(4)
    return _autonamed(obj, naming.proposed or f"{naming.resource_name}-{random}")


def _autonamed(obj: JsonObject, name: str) -> JsonObject:
    annotations = {**dig_map(obj, "metadata", "annotations"), AUTONAMED: "true"}
    return with_metadata(obj, name=name, annotations=annotations)
