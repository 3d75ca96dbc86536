"""Errors of shape as problems in the words of the stack file: its paths, its values, what would be accepted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, cast

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from llmd_oke.config import iam, names, node_pools, oci_names, storage
from llmd_oke.config.document import CONFIG_KEY
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.topology import SHORT_FORMS
from llmd_oke.errors import Problem

Location = tuple[int | str, ...]
Context = Mapping[str, Any]
Nodes = Callable[[Location], list[dict[str, Any]]]
"""The parts of a JSON Schema that describe a location."""

WORDS = {**names.WORDS, **iam.WORDS, **oci_names.WORDS, **node_pools.WORDS, **storage.WORDS}

_KINDS = {"string": "text", "integer": "a whole number", "number": "a number", "array": "a list", "object": "an object"}
_ACCEPTED: dict[str, Callable[[Context], str]] = {
    "string_type": lambda _: "text (in quotes where it looks like a number)",
    "int_type": lambda _: "a whole number without quotes",
    "float_type": lambda _: "a number without quotes",
    "bool_type": lambda _: "true or false",
    "finite_number": lambda _: "a finite number",
    "tuple_type": lambda _: "a list",
    "dict_type": lambda _: "an object",
    "literal_error": lambda context: str(context["expected"]),
    "union_tag_invalid": lambda context: str(context["expected_tags"]),
    "greater_than": lambda context: f"more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"at least {context['ge']:g}",
    "less_than": lambda context: f"less than {context['lt']:g}",
    "less_than_equal": lambda context: f"at most {context['le']:g}",
    "string_too_short": lambda context: f"at least {context['min_length']} characters",
    "string_too_long": lambda context: f"at most {context['max_length']} characters",
    "string_pattern_mismatch": lambda context: WORDS.get(context["pattern"], f"text that matches {context['pattern']}"),
    "too_short": lambda context: f"at least {context['min_length']} item{'s' * (context['min_length'] != 1)}",
}


def problems(errors: Iterable[ErrorDetails], document: Any, root: type[BaseModel] = StackConfig) -> list[Problem]:
    """The problems that pydantic found in a document of the type `root`, told without pydantic's own names."""
    nodes = partial(_nodes, root)
    return [_problem(details, document, nodes) for details in errors if not _follows_from_others(details)]


def _follows_from_others(details: ErrorDetails) -> bool:
    """Whether a list is too short only because pydantic doesn't count the items that it refused."""
    return details["type"] == "too_short" and len(details["input"]) >= _context(details)["min_length"]


def _problem(details: ErrorDetails, document: Any, nodes: Nodes) -> Problem:
    location = _location_in(document, details["loc"])
    if short_form := _short_form(document, location):
        path, value = short_form
        inner = _path(location[len(path) :])
        return Problem(_path(path), value, SHORT_FORMS, f"{inner} must be {_accepted(location, details, nodes)}")
    found = details["input"]
    if details["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        discriminator = _context(details)["discriminator"].strip("'")
        location, found = (*location, discriminator), found.get(discriminator)
    match details["type"]:
        case "missing" | "union_tag_not_found":
            return Problem(_path(location), None, _wanted(location, nodes), "the key is missing")
        case "extra_forbidden":
            return Problem(_path(location), found, _known_keys(location, nodes), "there is no such key")
        case "value_error":
            return Problem(_path(location), found, _wanted(location, nodes), _accepted(location, details, nodes))
        case _:
            return Problem(_path(location), found, _accepted(location, details, nodes), "the value is not valid")


def _location_in(document: Any, location: Location) -> Location:
    """The location in the words of the document: without the names that pydantic gives to choices and keys."""
    parts: list[int | str] = []
    current = document
    for i, part in enumerate(location):
        is_key = isinstance(current, Mapping) and part in current
        is_name_of_choice = isinstance(current, Mapping) and not is_key and i < len(location) - 1
        is_mark_of_key = part == "[key]" and not is_key
        if not (is_name_of_choice or is_mark_of_key):
            parts.append(part)
            current = _child(current, part)
    return tuple(parts)


def _short_form(document: Any, location: Location) -> tuple[Location, str] | None:
    """Where the location leads into a short form: the path of that and its text."""
    current = document
    for i, part in enumerate(location):
        if isinstance(current, str):
            return location[:i], current
        current = _child(current, part)
    return None


def _child(current: Any, part: int | str) -> Any:
    if isinstance(current, Mapping):
        return cast("Mapping[int | str, Any]", current).get(part)
    if isinstance(current, list | tuple) and isinstance(part, int):
        items = cast("Sequence[Any]", current)
        return items[part] if part < len(items) else None
    return None


def _path(location: Location) -> str:
    if not location:
        return CONFIG_KEY
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _accepted(location: Location, details: ErrorDetails, nodes: Nodes) -> str:
    if details["type"] in {"model_type", "model_attributes_type"}:
        return _wanted(location, nodes)
    known = _ACCEPTED.get(details["type"])
    return known(_context(details)) if known else details["msg"].removeprefix("Value error, ")


def _context(details: ErrorDetails) -> Context:
    return details.get("ctx", {})


def _known_keys(location: Location, nodes: Nodes) -> str:
    """The keys beside the last one of the location, the likeliest first."""
    keys = sorted(_properties(nodes(location[:-1])))
    written = str(location[-1])
    if to_camel(written) in keys:
        return to_camel(written)
    close = get_close_matches(written, keys, n=1)
    if close:
        return f"{close[0]}? or another of {', '.join(keys)}"
    return "one of " + ", ".join(keys) if keys else "no key"


def _wanted(location: Location, nodes: Nodes) -> str:
    """What the value at a location may be: the keys of an object, or the kind of value and what it is for."""
    if location and location[-1] == "topology":
        return SHORT_FORMS
    if keys := sorted(_properties(nodes(location))):
        return "an object with the keys " + ", ".join(keys)
    for node in nodes(location):
        if "const" in node or "enum" in node:
            return "one of " + ", ".join(map(str, node.get("enum", [node.get("const")])))
        if "description" in node:
            first_sentence = " ".join(node["description"].split()).split(". ")[0].rstrip(".")
            return f"{_KINDS.get(node.get('type', ''), 'a value')}: {first_sentence}"
    return "a value"


def _properties(nodes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for node in nodes for key, value in node.get("properties", {}).items()}


def _nodes(root: type[BaseModel], location: Location) -> list[dict[str, Any]]:
    """The parts of the JSON Schema that describe a location: more than one where there is a choice."""
    schema = _schema(root)
    nodes = _resolved(schema, schema)
    for part in location:
        inner = [node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part) for node in nodes]
        nodes = [resolved for node in inner if node for resolved in _resolved(node, schema)]
    return nodes


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return [schema["$defs"][node["$ref"].rsplit("/", 1)[1]]]
    options = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    return [node, *(found for option in options for found in _resolved(option, schema))]


@cache
def _schema(root: type[BaseModel]) -> dict[str, Any]:
    return root.model_json_schema(by_alias=True)
