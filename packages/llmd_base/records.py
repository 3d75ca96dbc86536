"""Construction of dataclasses and dictionaries from other records by equal field names, with an error for each missing
field.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field
from functools import partial
from typing import Any, TypeVar, cast

Record = TypeVar("Record")

_ABSENT = object()


class UnknownFieldError(TypeError):
    """Error for a value whose name is no field of the record."""


class MissingSourceError(TypeError):
    """Error for a field that has no default and for which no source has a value."""


def record(kind: type[Record], /, *sources: object, **values: object) -> Record:
    """Make a dataclass instance: each field from `values`, else from the first source that has a field of that name,
    else the field's default.

    Args:
        kind: the dataclass.
        sources: dataclass instances, pydantic models and mappings.
        values: computed values by field name.

    Raises:
        UnknownFieldError: `kind` has no field with the name of a value.
        MissingSourceError: a field has neither a source nor a default.
    """
    known = cast("Mapping[str, Field[object]]", kind.__dict__["__dataclass_fields__"])
    optional = {key for key, item in known.items() if (item.default, item.default_factory) != (MISSING, MISSING)}
    return kind(**collected(kind.__name__, known, sources, values, optional))


def collected(
    name: str, keys: Iterable[str], sources: Iterable[object], values: Mapping[str, Any], optional: Container[str] = ()
) -> dict[str, Any]:
    """Return the value of each key: from `values`, else from the first source that has a field of that name. `optional`
    keys without a source are left out.

    Args:
        name: name of the record to make, for errors.
        keys: field names of the record to make.
        sources: dataclass instances, pydantic models and mappings.
        values: values by key, which take precedence over the sources.
        optional: keys that need no source.

    Raises:
        UnknownFieldError: `values` has a key that isn't in `keys`.
        MissingSourceError: a key that isn't optional has no source.
    """
    own, readers = tuple(keys), [_reader(source) for source in sources]
    if unknown := sorted(values.keys() - own):
        raise UnknownFieldError(f"{name} has no {', '.join(unknown)}.")
    found: dict[str, object] = {}
    for key in own:
        sourced = (value for read in readers if (value := read(key, _ABSENT)) is not _ABSENT)
        found[key] = values[key] if key in values else next(sourced, _ABSENT)
    if missing := [key for key, value in found.items() if value is _ABSENT and key not in optional]:
        raise MissingSourceError(f"{name}: nothing given has {', '.join(missing)}.")
    return {key: value for key, value in found.items() if value is not _ABSENT}


def document(keys: str, /, *sources: object, **values: object) -> dict[str, Any]:
    """Make a dictionary, such as an object of JSON output, from a string of keys separated by blanks.

    Each key's value comes from `values`, else from the first source that has a field of that name. Keys of `values`
    that `keys` doesn't contain come last.

    Args:
        keys: the dictionary's keys, in order.
        sources: dataclass instances, pydantic models and mappings.
        values: computed values by key.

    Raises:
        MissingSourceError: a key has no source.
    """
    return collected("document", dict.fromkeys([*keys.split(), *values]), sources, values)


def _reader(source: object) -> Callable[[str, object], object]:
    """Return a function that takes a key and a default and reads the field of the source."""
    return cast("Mapping[str, object]", source).get if isinstance(source, Mapping) else partial(getattr, source)
