"""Conversion of pydantic's errors to problems with paths, values and accepted values as in the stack file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial, reduce
from typing import Any, cast

from llmd_base.documents import ACCEPTED, NOT_FINITE, PATTERNS_IN_WORDS, context_of, kind_of
from llmd_base.errors import Problem
from llmd_bench.deployment import SHORT_FORMS
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from llmd_oke.config.stack import StackConfig
from llmd_oke.config.yaml_files import CONFIG_KEY

Location = tuple[int | str, ...]

Nodes = Callable[[Location], list[dict[str, Any]]]
"""Function that returns the parts of a JSON Schema that describe a location."""

_KINDS = {"string": "text", "integer": "a whole number", "number": "a number", "array": "a list", "object": "an object"}

_SIMILAR = 0.74
"""Least similarity of names that are suggested for each other (difflib's ratio): `secret` is 0.75 similar to
`pullSecret`, and `scaling` is 0.71 similar to `cycling`.
"""

_WHY: dict[str, str] = {
    "finite_number": NOT_FINITE,
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
"""Reasons by pydantic's error type; for other types the reason is the kind of the value found."""


def problems(errors: Iterable[ErrorDetails], document: Any, root: type[BaseModel] = StackConfig) -> list[Problem]:
    """Return a problem for each error that pydantic found in a document of type `root`, without pydantic's own names.
    Errors that only follow from others are left out.
    """
    nodes = partial(_nodes, root)
    return [_problem(details, document, nodes) for details in errors if not _follows_from_others(details)]


def did_you_mean(written: str, known: Iterable[str], likeliest: str | None = None) -> str:
    """Return the accepted names `known` as text for an error about `written`: first `likeliest` or else the most
    similar name, if there is one, then the others.
    """
    names = list(known)
    if not names:
        return "none"
    first = likeliest or closest(written, names)
    if first is None:
        return "one of " + ", ".join(names)
    others = [name for name in names if name != first]
    if len(others) < 2:
        return "? or ".join([first, *others])
    return f"{first}? or another of {', '.join(others)}"


def closest(written: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `written`, or of which one begins with the other, ignoring case;
    None if there is none.
    """
    by_lower_case = {name.lower(): name for name in known}
    wanted = written.lower()
    close = get_close_matches(wanted, by_lower_case, cutoff=_SIMILAR)
    begins = [name for name in by_lower_case if wanted and (name.startswith(wanted) or wanted.startswith(name))]
    return next((by_lower_case[name] for name in (*close, *begins)), None)


def _follows_from_others(details: ErrorDetails) -> bool:
    """Tell whether a list is too short only because pydantic doesn't count the items that it refused."""
    return details["type"] == "too_short" and len(details["input"]) >= context_of(details)["min_length"]


def _problem(details: ErrorDetails, document: Any, nodes: Nodes) -> Problem:
    location = _location_in(document, details["loc"])
    if short_form := _short_form(document, location):
        path, text = short_form
        inner = _path(location[len(path) :])
        return Problem(_path(path), text, SHORT_FORMS, f"{inner} must be {_accepted(location, details, nodes)}")
    value = details["input"]
    if details["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        discriminator = context_of(details)["discriminator"][1:-1]
        location, value = (*location, discriminator), value.get(discriminator)
    match details["type"]:
        case "missing" | "union_tag_not_found":
            return Problem(_path(location), None, _expected(location, nodes), "the key is missing")
        case "extra_forbidden":
            return _extra(location, value, _choices(nodes(location[:-1]), reduce(_child, location[:-1], document)))
        case "value_error":
            return Problem(_path(location), value, _expected(location, nodes), _accepted(location, details, nodes))
        case kind:
            why = f"it is {kind_of(value)}" if value is None else _WHY.get(kind, f"it is {kind_of(value)}")
            return Problem(_path(location), value, _accepted(location, details, nodes), why)


def _location_in(document: Any, location: Location) -> Location:
    """Return the location in the document: pydantic's location without the names that it adds for union members and
    keys.
    """
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
    """Return the path and text of a short form that the location points into; None if it points into none."""
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
        return cast("Sequence[Any]", current)[part]
    return None


def _path(location: Location) -> str:
    if not location:
        return CONFIG_KEY
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _accepted(location: Location, details: ErrorDetails, nodes: Nodes) -> str:
    if details["type"] in {"model_type", "model_attributes_type"}:
        return _expected(location, nodes)
    known = ACCEPTED.get(details["type"])
    return known(context_of(details)) if known else details["msg"].removeprefix("Value error, ")


@dataclass(frozen=True)
class _Choice:
    """One of the object types that a location accepts: its keys, the key and value that distinguish it from the others,
    and whether the document has that value.
    """

    keys: tuple[str, ...]
    mark: tuple[str, str] | None
    is_meant: bool


def _choices(nodes: Iterable[dict[str, Any]], written: Any) -> list[_Choice]:
    """Return the object types that a location accepts; `is_meant` is true for those whose distinguishing value the
    document has, and for those without one.
    """
    choices: list[_Choice] = []
    for node in nodes:
        if properties := node.get("properties"):
            mark = next(((key, schema["const"]) for key, schema in properties.items() if "const" in schema), None)
            is_meant = mark is None or _child(written, mark[0]) == mark[1]
            choices.append(_Choice(tuple(sorted(properties)), mark, is_meant))
    return choices


def _extra(location: Location, value: Any, choices: Sequence[_Choice]) -> Problem:
    """Return the problem of a key that the object doesn't have, naming the other object type that has the key."""
    written = str(location[-1])
    intended = [choice for choice in choices if choice.is_meant]
    keys = sorted({key for choice in intended or choices for key in choice.keys})
    own = next((choice.mark for choice in intended), None)
    other = next((choice.mark for choice in choices if not choice.is_meant and written in choice.keys), None)
    if own and other:
        why = f"the key belongs to {other[0]} {other[1]}; here {own[0]} is {own[1]}"
        return Problem(_path(location), value, f"{other[0]}: {other[1]}, or one of {', '.join(keys)}", why)
    accepted = did_you_mean(written, keys) if keys else "no key"
    return Problem(_path(location), value, accepted, "there is no such key")


def _expected(location: Location, nodes: Nodes) -> str:
    """Describe the values that a location accepts: the keys of an object, the choices, or the kind of value with its
    description.
    """
    if location and location[-1] == "topology":
        return SHORT_FORMS
    if keys := sorted({key for node in nodes(location) for key in node.get("properties", {})}):
        return "an object with the keys " + ", ".join(keys)
    if values := [
        name for node in nodes(location) for name in node.get("enum", [node["const"]] if "const" in node else [])
    ]:
        return "one of " + ", ".join(map(str, values))
    for node in nodes(location):
        if "description" in node:
            first_sentence = " ".join(node["description"].split()).split(". ")[0].rstrip(".")
            return f"{_KINDS.get(node.get('type', ''), 'a value')}: {first_sentence}"
    return " or ".join(dict.fromkeys(words for node in nodes(location) if (words := _in_words(node)))) or "a value"


def _in_words(node: dict[str, Any]) -> str | None:
    """Describe the kind of value that a part of a JSON Schema without description accepts; None if it names none."""
    kind = PATTERNS_IN_WORDS.get(node.get("pattern", "")) or _KINDS.get(node.get("type", ""))
    least = node.get("minItems")
    return f"{kind} with at least {least} item{'s' * (least != 1)}" if kind and least else kind


def _nodes(root: type[BaseModel], location: Location) -> list[dict[str, Any]]:
    """Return the parts of the JSON Schema that describe a location; several if the location accepts several types."""
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
    return [node, *(node_ for option in options for node_ in _resolved(option, schema))]


@cache
def _schema(root: type[BaseModel]) -> dict[str, Any]:
    return root.model_json_schema(by_alias=True)
