"""Conversion of a plan's records into components' arguments."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from llmd_base.records import collected
from pydantic import BaseModel

from llmd_oke.values import Entry

Arguments = TypeVar("Arguments")

_SIMPLE = (str, int, float)


def arguments(kind: type[Arguments], /, *records: object, **values: Any) -> Arguments:
    """Return the arguments of a component: each key from `values`, else from the first record with a field of that
    name.

    Every key needs a source, optional keys too, so that no new argument of a component is forgotten: `key=None` leaves
    an argument out. Tuples become lists, and nested records become dictionaries without fields that are None; entries
    of the catalogue aren't converted.

    Args:
        kind: TypedDict of the component's arguments.
        records: dataclass instances, pydantic models and mappings.
        values: further values by key, such as outputs of other components.

    Raises:
        UnknownFieldError: `kind` has no key of that name.
        MissingSourceError: a key has no source.
    """
    found = collected(kind.__name__, kind.__annotations__, records, values)
    return cast("Arguments", {key: plain(value) for key, value in found.items()})


def plain(value: Any) -> Any:
    """Convert a record to a dictionary without the fields that are None, and a tuple to a list, recursively. Other
    values, such as Pulumi outputs and resources and entries of the catalogue, aren't converted.
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
