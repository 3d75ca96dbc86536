"""Check: inputs brought into the plug-in's types, names made up, and what is missing or unknown."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.schemas import Property, Resource, snake
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, JsonObject, is_list, is_map

DEFAULTS: Final = "__defaults"
"""Where the plug-in records which inputs it filled in."""
_SUFFIX_DIGITS: Final = 7


@dataclass(frozen=True)
class Naming:
    """How the engine wants a name made up. `proposed` is its own proposal, `seed` makes the same name twice."""

    name: str
    seed: bytes = b""
    proposed: str = ""
    allowed: bool = True

    def made_up(self) -> str:
        """A name that no other resource has."""
        if not self.allowed:
            raise Refusal(f"automatic naming is disabled but resource {self.name!r} has no name")
        suffix = hashlib.sha256(self.seed or self.name.encode()).hexdigest()[:_SUFFIX_DIGITS]
        return self.proposed or f"{self.name}-{suffix}"


@dataclass(frozen=True)
class Checked:
    """Inputs as the plug-in takes them, and what is wrong with them."""

    inputs: JsonObject
    failures: list[str] = field(default_factory=list[str])


def check(resource: Resource, olds: JsonObject, news: JsonObject, naming: Naming) -> Checked:
    """Brings inputs into their types and fills in what the plug-in fills in.

    Raises:
        Refusal: a value is of a type that no conversion helps.
    """
    given = _named(resource, olds, news, naming)
    typed = _typed_fields(resource.inputs, given)
    typed[DEFAULTS] = sorted({*typed[DEFAULTS], *(given.keys() - news.keys())})
    failures = [*_unknown_keys(resource.inputs, news, naming.name), *_missing(resource, given, naming.name)]
    return Checked(typed, failures)


def _named(resource: Resource, olds: JsonObject, news: JsonObject, naming: Naming) -> JsonObject:
    given = {key: value for key, value in news.items() if key != DEFAULTS and value is not None}
    if resource.named and "name" not in given:
        kept = olds.get("name") if "name" in (olds.get(DEFAULTS) or ()) else None
        given["name"] = kept or naming.made_up()
    return given


def _typed_fields(fields: Mapping[str, Property], given: JsonObject) -> JsonObject:
    filled_in = {name: wanted.default for name, wanted in fields.items() if wanted.default is not None}
    defaults = {name: value for name, value in filled_in.items() if name not in given}
    typed = {key: _typed(key, fields.get(key), value) for key, value in given.items()}
    return {**typed, **defaults, DEFAULTS: sorted(defaults)}


def _typed(name: str, wanted: Property | None, value: Any) -> Any:
    if wanted is None or value is UNKNOWN or value is None:
        return value
    if wanted.kind == "list":
        if not is_list(value):
            raise _mistyped(name, "list", value)
        return [_typed(name, wanted.item, item) for item in value]
    if wanted.kind in {"object", "map"}:
        if not is_map(value):
            raise _mistyped(name, "map", value)
        plain = {key: item for key, item in value.items() if key != DEFAULTS and item is not None}
        return plain if wanted.kind == "map" else _typed_fields(wanted.fields, plain)
    if isinstance(value, list | dict):
        raise _mistyped(name, wanted.kind, value)  # pyright: ignore[reportUnknownArgumentType]
    return _scalar(snake(name), wanted.kind, value)


def _scalar(name: str, kind: str, value: Any) -> Any:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    match kind:
        case "boolean":
            if text not in {"true", "false"}:
                raise Refusal(f'{name}: strconv.ParseBool: parsing "{text}": invalid syntax')
            return text == "true"
        case "integer":
            return _number(name, "ParseInt", int, text)
        case "number":
            return _number(name, "ParseFloat", float, text)
        case _:
            return text


def _number(name: str, parser: str, type_: type[int] | type[float], text: str) -> int | float:
    try:
        return type_(text)
    except ValueError:
        raise Refusal(f'{name}: strconv.{parser}: parsing "{text}": invalid syntax') from None


def _mistyped(name: str, wanted: str, value: object) -> Refusal:
    return Refusal(f"{snake(name)}: expected type '{wanted}', got unconvertible type '{type(value).__name__}'")


def _unknown_keys(fields: Mapping[str, Property], given: JsonObject, place: str) -> Iterator[str]:
    for key, value in given.items():
        wanted = fields.get(key)
        if key == DEFAULTS:
            continue
        if wanted is None:
            yield f"Invalid or unknown key. Examine values at '{place}.{key}'."
            continue
        for item in _objects(wanted, value):
            yield from _unknown_keys(_fields(wanted), item, f"{place}.{key}")


def _missing(resource: Resource, given: JsonObject, name: str) -> Iterator[str]:
    for argument, place in _missing_of(resource.inputs, given, "", name):
        words = f'The argument "{argument}" is required, but no definition was found.'
        yield f"Missing required argument. {words}. Examine values at '{place}'."


def _missing_of(
    fields: Mapping[str, Property], given: JsonObject, prefix: str, place: str, *, in_list: bool = False
) -> Iterator[tuple[str, str]]:
    for key, wanted in fields.items():
        value, argument = given.get(key), f"{prefix}{snake(key)}"
        if value is None and wanted.required:
            yield argument, place if in_list else f"{place}.{key}"
        for index, item in enumerate(_objects(wanted, value)):
            is_list_ = wanted.kind == "list"
            yield from _missing_of(_fields(wanted), item, f"{argument}.{index}.", f"{place}.{key}", in_list=is_list_)


def _fields(wanted: Property) -> Mapping[str, Property]:
    return wanted.item.fields if wanted.item else wanted.fields


def _objects(wanted: Property, value: Any) -> list[JsonObject]:
    """The objects directly in a value: itself, or its items."""
    if wanted.kind == "map":
        return []
    items: list[Any] = value if is_list(value) else [value]
    return [item for item in items if is_map(item)]


def without_defaults(value: Any) -> Any:
    """Inputs without the plug-in's own records in them."""
    if is_map(value):
        return {key: without_defaults(item) for key, item in value.items() if key != DEFAULTS}
    if is_list(value):
        return [without_defaults(item) for item in value]
    return value
