"""JSON Schema of the stack file, for editors. `llmd-oke schema` prints it."""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from llmd_bench.deployment import SHORT_FORM_PATTERN, SHORT_FORMS
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from llmd_oke.config.base import ConfigPart
from llmd_oke.config.effective import BASE, BASE_PATTERN, NAMED_LISTS
from llmd_oke.config.engine import EngineRows, RoleRows
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.yaml_files import CONFIG_KEY

_STACK, _PART, _REFERENCE = "Stack", "PartOf", "#/$defs/"


class _StackFileSchema(GenerateJsonSchema):
    """Generator of the schema, which names definitions as the documentation does: `GpuPool` for `GpuPoolConfig`."""

    def normalize_name(self, name: str) -> str:
        """Return the name of a definition in the schema."""
        return _part_name(super().normalize_name(name))


def stack_file_schema(
    suggested: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType({}), *, with_texts: bool = True
) -> dict[str, Any]:
    """Return the JSON Schema of `stacks/Pulumi.<stack>.yaml` and of the files beside them that they build on. It
    describes the object `llmd-oke:stack`, whole as definition `Stack` and, where there is a `base`, in parts as
    `PartOfStack`, and accepts all other keys of Pulumi. A file without `config` is one that stacks build on.

    `suggested` has names that editors offer, by class name and key. Keys have descriptions only `with_texts`. The
    schema declares draft 2020-12 but uses no keyword that draft 7 lacks.
    """
    stack = StackConfig.model_json_schema(by_alias=True, schema_generator=_StackFileSchema)
    definitions = stack.pop("$defs")
    for name, definition in definitions.items():
        definition["title"] = name
    for part in (stack, *definitions.values()):  # pydantic's titles only repeat the keys
        for described in part.get("properties", {}).values():
            described.pop("title", None)
    for model in (StackConfig, *_parts(ConfigPart)) if with_texts else ():
        _describe(stack if model is StackConfig else definitions.get(_part_name(model.__name__), {}), model)
    for (part, key), names in suggested.items():
        described = stack if part == StackConfig.__name__ else definitions[part]
        described["properties"][key]["examples"] = list(names)
    short_form = {"type": "string", "pattern": SHORT_FORM_PATTERN, "description": SHORT_FORMS}
    definitions["Topology"] = {"title": "Topology", "anyOf": [short_form, definitions["Topology"]]}
    definitions[_STACK] = {**stack, "title": _STACK}
    definitions.update(_parts_of_stacks(definitions))
    whole, part = {"$ref": f"{_REFERENCE}{_STACK}"}, {"$ref": f"{_REFERENCE}{_PART}{_STACK}"}
    either = {"if": {"required": [BASE]}, "then": part, "else": whole}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmd-oke stack file",
        "type": "object",
        "properties": {"config": {"type": "object", "properties": {CONFIG_KEY: either}, "required": [CONFIG_KEY]}},
        "if": {"required": ["config"]},
        "else": part,
        "$defs": dict(sorted(definitions.items())),
    }


def _parts_of_stacks(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return definitions for a stack that says only what differs from its base, and for that base: no key is required,
    `null` takes a key away, and lists with names may be changed by the names. Items of lists stay whole.
    """
    parts: dict[str, Any] = {}

    def part(node: Any) -> Any:
        match node:
            case {"$ref": str(reference)}:
                name = reference.removeprefix(_REFERENCE)
                if name not in parts:
                    parts[name] = {}  # so that definitions may name each other
                    parts[name] = {**part(definitions[name]), "title": _PART + name}
                return {**node, "$ref": f"{_REFERENCE}{_PART}{name}"}
            case {"type": "array"}:
                return node
            case {"anyOf": options} | {"oneOf": options}:
                kept = {key: value for key, value in node.items() if key not in {"oneOf", "anyOf", "discriminator"}}
                return {**kept, "anyOf": [part(option) for option in options]}
            case {"properties": properties}:
                inner = {key: _or_null(part(value)) for key, value in properties.items()}
                return {key: value for key, value in {**node, "properties": inner}.items() if key != "required"}
            case _:
                return node

    part({"$ref": f"{_REFERENCE}{_STACK}"})
    keys: dict[str, Any] = parts[_STACK]["properties"]
    for name in NAMED_LISTS:
        by_name = {
            "type": "object",
            "additionalProperties": _or_null(part(definitions[_STACK]["properties"][name]["items"])),
        }
        text = "A list replaces that of the base; an object changes its items by name."
        text = f"{keys[name].get('description', '')} {text}".strip()
        keys[name] = {
            "description": text,
            "anyOf": [definitions[_STACK]["properties"][name], by_name, {"type": "null"}],
        }
    keys[BASE] = {
        "type": "string",
        "pattern": BASE_PATTERN,
        "description": "File beside the stack file that this one builds on, such as `shared.yaml`: an object with keys"
        f" of `{CONFIG_KEY}`. Objects are merged key by key, `null` takes a key away, and anything else replaces it.",
    }
    return {_PART + name: definition for name, definition in parts.items()}


def _or_null(node: Any) -> Any:
    """Return the schema of a value that may be `null` too."""
    options = node.get("anyOf", ())
    if {"type": "null"} in options or node == {}:
        return node
    if options:
        return {**node, "anyOf": [*options, {"type": "null"}]}
    text = {"description": node["description"]} if "description" in node else {}
    return {**text, "anyOf": [node, {"type": "null"}]}


def _part_name(class_name: str) -> str:
    return class_name.removesuffix("Config")


def _parts(root: type[ConfigPart]) -> Iterator[type[ConfigPart]]:
    for part in root.__subclasses__():
        yield part
        yield from _parts(part)


def _describe(described: dict[str, Any], model: type[BaseModel]) -> None:
    """Set the description of each key to the docstring below its field in the code.

    Pydantic can do this itself (`use_attribute_docstrings`), but then parses all sources whenever the classes are
    loaded: 45 ms.
    """
    keys = {name: field.alias or name for name, field in model.model_fields.items()}
    written = (
        base
        for base in reversed(model.__mro__)
        if issubclass(base, ConfigPart) and base not in (ConfigPart, EngineRows, RoleRows)
    )
    properties: dict[str, Any] = described.get("properties", {})
    for owner in written:
        (definition,) = ast.parse(inspect.getsource(owner)).body
        for field, text in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                description = inspect.cleandoc(ast.literal_eval(text.value))
                if (key := keys[field.target.id]) in properties:
                    properties[key] = dict(sorted({**properties[key], "description": description}.items()))
