"""Records made of other records: fields of the same name are copied, and one without a source is an error at once."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from llmd_oke.values import Entry

Record = TypeVar("Record")

_ABSENT = object()
_SIMPLE = (str, int, float)


class UnknownFieldError(TypeError):
    """A value was given for a field that the record doesn't have."""


class MissingSourceError(TypeError):
    """Nothing that was given has a value for a field."""


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


def plain(value: Any) -> Any:
    """Convert a record to a dictionary without the fields that are None, and a tuple to a list; keep all other values.

    Such other values, inside of collections too, are outputs and resources of Pulumi, and entries of the catalogue,
    which components take as they are.
    """
    if value is None or isinstance(value, _SIMPLE):
        return value
    if isinstance(value, BaseModel):
        if isinstance(value, Entry):
            return value
        return _present({name: getattr(value, name) for name in type(value).model_fields})
    if is_dataclass(value) and not isinstance(value, type):
        return _present({item.name: getattr(value, item.name) for item in fields(value)})
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def _present(items: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(item) for key, item in items.items() if item is not None}


def _reader(source: object) -> Callable[[str, object], object]:
    """Give the function of a key and a default that reads a field of the source."""
    return cast("Mapping[str, object]", source).get if isinstance(source, Mapping) else partial(getattr, source)


def _first(readers: Iterable[Callable[[str, object], object]], key: str) -> object:
    return next((value for read in readers if (value := read(key, _ABSENT)) is not _ABSENT), _ABSENT)
