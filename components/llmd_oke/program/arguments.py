"""Components' arguments made from the records of a plan."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel

Arguments = TypeVar("Arguments")


class UnknownArgumentError(TypeError):
    """A value was given for a key that the arguments don't have."""


class MissingSourceError(TypeError):
    """No record has a field of a key's name, and no value was given for it."""


def arguments(kind: type[Arguments], *records: object, **values: Any) -> Arguments:
    """Make the arguments of a component: each key from `values`, else from the first record with a field of its name.

    Every key needs a source, optional ones too, so that a new argument of a component can't be forgotten where stacks
    declare it: `key=None` leaves one out on purpose. Tuples become lists and nested records become dictionaries
    without the fields that are None.

    Args:
        kind: the TypedDict of the component's arguments.
        records: dataclass instances, pydantic models and mappings.
        values: what is computed, by key; outputs of other components for example.

    Raises:
        UnknownArgumentError: `kind` has no key of that name.
        MissingSourceError: a key has no source.
    """
    keys = kind.__annotations__.keys()
    if unknown := values.keys() - keys:
        raise UnknownArgumentError(f"{kind.__name__} has no {', '.join(sorted(unknown))}.")
    found: dict[str, Any] = {}
    missing: list[str] = []
    for key in keys:
        if key in values:
            found[key] = plain(values[key])
        elif (record := next((item for item in records if _has(item, key)), None)) is not None:
            found[key] = plain(_field(record, key))
        else:
            missing.append(key)
    if missing:
        raise MissingSourceError(f"{kind.__name__}: nothing given has {', '.join(missing)}.")
    return cast("Arguments", found)


def plain(value: Any) -> Any:
    """Convert a record to a dictionary without the fields that are None, and a tuple to a list; keep all other values.

    Outputs and resources of Pulumi are such other values, inside of collections too.
    """
    if isinstance(value, BaseModel):
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


def _has(record: object, key: str) -> bool:
    return key in record if isinstance(record, Mapping) else hasattr(record, key)


def _field(record: object, key: str) -> Any:
    return cast("Mapping[str, Any]", record)[key] if isinstance(record, Mapping) else getattr(record, key)
