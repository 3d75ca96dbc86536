"""Records made of other records: fields of the same name are copied, and one without a source is an error at once."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field
from functools import partial
from typing import Any, TypeVar, cast

Record = TypeVar("Record")

_ABSENT = object()


class UnknownFieldError(TypeError):
    """A value was given for a field that the record doesn't have."""


class MissingSourceError(TypeError):
    """Error for a field that nothing which was given has a value for."""


def record(kind: type[Record], /, *sources: object, **values: object) -> Record:
    """Make a dataclass: each field from `values`, else from the first source with a field of its name.

    A field without a source has its default, if it has one.

    Args:
        kind: the dataclass.
        sources: dataclass instances, pydantic models and mappings.
        values: what is computed, by field.

    Raises:
        UnknownFieldError: `kind` has no field of that name.
        MissingSourceError: a field has neither a source nor a default.
    """
    known = cast("Mapping[str, Field[object]]", kind.__dict__["__dataclass_fields__"])
    optional = {key for key, item in known.items() if (item.default, item.default_factory) != (MISSING, MISSING)}
    return kind(**collected(kind.__name__, known, sources, values, optional))


def collected(
    name: str, keys: Iterable[str], sources: Iterable[object], values: Mapping[str, Any], optional: Container[str] = ()
) -> dict[str, Any]:
    """Give the value of each key: from `values`, else from the first source with a field of its name.

    Keys that are `optional` are left out where they have no source.

    Args:
        name: what is made, for errors.
        keys: its fields.
        sources: dataclass instances, pydantic models and mappings.
        values: what goes before the sources, by key.
        optional: keys that need no source.

    Raises:
        UnknownFieldError: there is a value for a key that isn't among them.
        MissingSourceError: a key has no source.
    """
    own, readers = tuple(keys), [_reader(source) for source in sources]
    if unknown := sorted(values.keys() - own):
        raise UnknownFieldError(f"{name} has no {', '.join(unknown)}.")
    found = {key: values[key] if key in values else _first(readers, key) for key in own}
    if missing := [key for key, value in found.items() if value is _ABSENT and key not in optional]:
        raise MissingSourceError(f"{name}: nothing given has {', '.join(missing)}.")
    return {key: value for key, value in found.items() if value is not _ABSENT}


def document(keys: str, /, *sources: object, **values: object) -> dict[str, Any]:
    """Make a dictionary, such as an object of JSON output, of keys that are separated by blanks.

    Each key has its value from `values`, else from the first source with a field of its name. Values whose keys aren't
    listed come last.

    Args:
        keys: the dictionary's keys, in their order.
        sources: dataclass instances, pydantic models and mappings.
        values: what is computed, by key.

    Raises:
        MissingSourceError: a key has no source.
    """
    return collected("document", dict.fromkeys([*keys.split(), *values]), sources, values)


def _reader(source: object) -> Callable[[str, object], object]:
    """Give the function of a key and a default that reads a field of the source."""
    return cast("Mapping[str, object]", source).get if isinstance(source, Mapping) else partial(getattr, source)


def _first(readers: Iterable[Callable[[str, object], object]], key: str) -> object:
    return next((value for read in readers if (value := read(key, _ABSENT)) is not _ABSENT), _ABSENT)
