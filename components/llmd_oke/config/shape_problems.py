"""Errors of shape as problems in the words of the stack file: its paths, its values, what would be accepted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from typing import Any, cast

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from llmd_oke.config import iam, names, node_pools, oci_names, storage
from llmd_oke.config.document import CONFIG_KEY
from llmd_oke.config.likely import among
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
_PARSED = {"int_parsing": "a whole number", "float_parsing": "a number", "int_from_float": "a whole number"}
"""Of texts that are read as something else."""

_FOUND: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "text"),
    (int, "a whole number"),
    (float, "a number with a fraction"),
    (date, "a date"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
)
_WHY: dict[str, str] = {
    "finite_number": "it has no end",
    "literal_error": "there is no such choice",
    "union_tag_invalid": "there is no such choice",
    "greater_than": "it is too small",
    "greater_than_equal": "it is too small",
    "less_than": "it is too large",
    "less_than_equal": "it is too large",
    "string_too_short": "it is too short",
    "string_too_long": "it is too long",
    "string_pattern_mismatch": "it has another form",
    "too_short": "there are too few",
    "too_long": "there are too many",
}
"""Of other errors the reason is the kind of value that was found."""


def problems(errors: Iterable[ErrorDetails], document: Any, root: type[BaseModel] = StackConfig) -> list[Problem]:
    """The problems that pydantic found in a document of the type `root`, told without pydantic's own names."""
    nodes = partial(_nodes, root)
    return [_problem(details, document, nodes) for details in errors if not _follows_from_others(details)]


def in_words(details: ErrorDetails) -> str:
    """One error of a document that is no stack file, without pydantic's own names."""
    match details["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "there is no such key"
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return f"must be an object, not {_kind_of(details['input'])}"
        case kind if kind in _ACCEPTED:
            return f"must be {_ACCEPTED[kind](_context(details))}"
        case kind if kind in _PARSED:
            return f"must be {_PARSED[kind]}"
        case _:
            return details["msg"].removeprefix("Value error, ")


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
            return _extra(location, found, _choices(nodes(location[:-1]), _at(document, location[:-1])))
        case "value_error":
            return Problem(_path(location), found, _wanted(location, nodes), _accepted(location, details, nodes))
        case kind:
            why = _WHY.get(kind) or f"it is {_kind_of(found)}"
            return Problem(_path(location), found, _accepted(location, details, nodes), why)


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


def _at(document: Any, location: Location) -> Any:
    for part in location:
        document = _child(document, part)
    return document


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


def _kind_of(value: Any) -> str:
    for kind, name in _FOUND:
        if isinstance(value, kind):
            return name
    return "nothing" if value is None else "another kind of value"


def _accepted(location: Location, details: ErrorDetails, nodes: Nodes) -> str:
    if details["type"] in {"model_type", "model_attributes_type"}:
        return _wanted(location, nodes)
    known = _ACCEPTED.get(details["type"])
    return known(_context(details)) if known else details["msg"].removeprefix("Value error, ")


def _context(details: ErrorDetails) -> Context:
    return details.get("ctx", {})


@dataclass(frozen=True)
class _Choice:
    """One of the forms that an object may have: its keys, and the key and value that tell it from others."""

    keys: tuple[str, ...]
    mark: tuple[str, str] | None
    is_meant: bool


def _choices(nodes: Iterable[dict[str, Any]], written: Any) -> list[_Choice]:
    """The forms of an object; those that are meant have the mark that is written, or none."""
    found: list[_Choice] = []
    for node in nodes:
        if properties := node.get("properties"):
            mark = next(((key, each["const"]) for key, each in properties.items() if "const" in each), None)
            is_meant = mark is None or _child(written, mark[0]) == mark[1]
            found.append(_Choice(tuple(sorted(properties)), mark, is_meant))
    return found


def _extra(location: Location, found: Any, choices: Sequence[_Choice]) -> Problem:
    """A key that its object does not have, though another form of it may."""
    written = str(location[-1])
    meant = [each for each in choices if each.is_meant]
    keys = sorted({key for each in meant or choices for key in each.keys})
    mine = next((each.mark for each in meant), None)
    other = next((each.mark for each in choices if not each.is_meant and written in each.keys), None)
    if mine and other:
        why = f"the key belongs to {other[0]} {other[1]}; here {mine[0]} is {mine[1]}"
        return Problem(_path(location), found, f"{other[0]}: {other[1]}, or one of {', '.join(keys)}", why)
    likeliest = to_camel(written) if to_camel(written) in keys else None
    accepted = among(written, keys, likeliest) if keys else "no key"
    return Problem(_path(location), found, accepted, "there is no such key")


def _wanted(location: Location, nodes: Nodes) -> str:
    """What the value at a location may be: the keys of an object, or the kind of value and what it is for."""
    if location and location[-1] == "topology":
        return SHORT_FORMS
    if keys := sorted(_properties(nodes(location))):
        return "an object with the keys " + ", ".join(keys)
    if named := [
        name for node in nodes(location) for name in node.get("enum", [node["const"]] if "const" in node else [])
    ]:
        return "one of " + ", ".join(map(str, named))
    for node in nodes(location):
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
