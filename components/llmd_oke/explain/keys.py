"""Keys of a stack file: their values, their JSON Schemas, and other values to try."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from llmd_base.documents import leaves
from llmd_base.errors import KitError
from llmd_bench.deployment import parse_short_form

from llmd_oke import config
from llmd_oke.catalogue.entries import names
from llmd_oke.catalogue.project import NAMED_IN_STACKS
from llmd_oke.config.schema import stack_file_schema
from llmd_oke.config.yaml_files import steps, value_at

Schema = Mapping[str, Any]

_FIRST_VALUES: Mapping[str, Sequence[object]] = {"integer": (1, 16, 64), "number": (1.0, 0.5), "boolean": (True,)}
"""Values to try of a key that has none, by the schema's type."""


@dataclass(frozen=True)
class StackKey:
    """Key of a stack file with its value. `file` and `line` tell where the value is written, None if it is a
    default.
    """

    path: str
    value: object
    line: int | None = None
    file: str | None = None


class StackFile:
    """Stack file, parsed, of which copies with other values of some keys can be made."""

    def __init__(self, project: Path, stack: str) -> None:
        self._written = config.effective(project, stack)
        self.object: dict[str, Any] = _with_long_topologies(self._written.value)

    def known_keys(self) -> list[StackKey]:
        """Return all keys that have a value, defaults included, in the order of the stack file's types."""
        known = config.validate(self.object).model_dump(mode="json", by_alias=True, exclude_none=True)
        return [self.key(path, value) for path, value in leaves(known)]

    def key(self, path: str, value: object) -> StackKey:
        """Return the key at a path with the place of its value. For a key inside a value in short form it is the place
        of the enclosing key.
        """
        if value_at(self.object, path) is None:
            return StackKey(path, value)
        written = path.partition(".topology.")[0] + (".topology" if ".topology." in path else "")
        origin = self._written.origin_of(written)
        return StackKey(path, value, origin.line, origin.source.name)

    def with_values(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return a copy of the parsed stack file with other values; `values` has the new values by paths such as
        `models[0].name`.

        Raises:
            KitError: a path leads into a list item that doesn't exist.
        """
        changed = copy.deepcopy(self.object)
        for path, value in values.items():
            try:
                _set(changed, path, value)
            except (IndexError, KeyError, TypeError) as error:
                raise KitError(f"The stack has no place for {path}.", "Name one of the list that it is in.") from error
        return changed


def other_values(path: str, value: object) -> Iterator[object]:
    """Yield values other than `value` to try for a key: those that the key's JSON Schema lists, or else some that are
    near `value`. The stack may be invalid with some of them.
    """
    nodes = schema_nodes(path, with_texts=False)
    choices: list[object] = []
    for node in nodes:
        choices += [*node.get("enum", ()), *([node["const"]] if "const" in node else ()), *node.get("examples", ())]
    if choices:
        yield from (choice for choice in choices if choice != value)
        return
    match value:
        case bool():
            yield not value
        case int():
            yield from (value * 2, value + 1, value - 1, value // 2)
        case float():
            yield from (value * 0.9, value * 2)
        case None:
            yield from (other for node in nodes for other in _FIRST_VALUES.get(str(node.get("type")), ()))
        case str() if value:
            last = value[-1]
            other = str((int(last) + 1) % 10) if last.isdecimal() else "y" if last == "x" else "x"
            yield from (value[:-1] + other, f"{value}-x")
        case Mapping() if path.endswith(".topology"):  # one key of stack files in its short form
            parts = cast("Mapping[str, object]", value)
            for inner, part in leaves(parts):
                for other in other_values(f"{path}.{inner}", part):
                    changed = copy.deepcopy(dict(parts))
                    _set(changed, inner, other)
                    yield changed
        case _:
            pass


def schema_nodes(path: str, *, with_texts: bool = True) -> list[Schema]:
    """Return the JSON Schemas of a key, one for each type that it may have, with descriptions unless `with_texts` is
    False.

    Raises:
        KitError: stack files have no such key; the message names those that exist beside it.
    """
    nodes, definitions = _schema(with_texts=with_texts)
    for step in steps(path):
        inner: list[Schema] = []
        for node in nodes:
            properties: Schema = node.get("properties", {})
            below: Schema | None = node.get("items") if isinstance(step, int) else properties.get(step)
            if below is None and isinstance(step, str) and isinstance(node.get("additionalProperties"), dict):
                below = node["additionalProperties"]
            if below is not None:
                inner += _resolved(below, definitions)
        if not inner:
            known = sorted({key for node in nodes for key in node.get("properties", {})})
            raise KitError(f"Stack files have no {path}.", f"In its place: {', '.join(known) or 'nothing'}.")
        nodes = inner
    return nodes


@cache
def _schema(*, with_texts: bool) -> tuple[list[Schema], Schema]:
    known = {place: names(folder) for place, folder in NAMED_IN_STACKS.items()}
    schema = stack_file_schema(known, with_texts=with_texts)
    return [schema["$defs"]["Stack"]], schema["$defs"]


def _resolved(node: Schema, definitions: Schema) -> Iterator[Schema]:
    said = {key: node[key] for key in ("description", "default") if key in node}
    if "$ref" in node:
        yield from _resolved({**definitions[node["$ref"].rpartition("/")[2]], **said}, definitions)
        return
    options: Sequence[Schema] = node.get("anyOf") or node.get("oneOf") or ()
    for option in options:
        yield from _resolved({**option, **said}, definitions)
    if not options:
        yield node


def _set(document: dict[str, Any], path: str, value: object) -> None:
    *before, last = steps(path)
    place: Any = document
    for step, following in zip(before, [*before[1:], last], strict=False):
        if isinstance(step, str) and place.get(step) is None:
            place[step] = {} if isinstance(following, str) else []
        place = place[step]
    if isinstance(last, int) and last == len(place):
        place.append(value)
    else:
        place[last] = value


def _with_long_topologies(value: Any) -> dict[str, Any]:
    """The object with the long form of each topology, whose numbers are keys of their own.

    Raises:
        InvalidStack: its shape is wrong; carries every problem.
    """
    document: dict[str, Any] = copy.deepcopy(value)
    config.validate(document)  # so that models are a list of objects
    models: list[dict[str, Any]] = document.get("models", [])
    for model in models:
        if isinstance(topology := model["topology"], str):
            model["topology"] = parse_short_form(topology)
    return document
