"""Components' arguments made from the records of a plan."""

from typing import Any, TypeVar, cast

from llmd_oke.records import collected, plain

Arguments = TypeVar("Arguments")


def arguments(kind: type[Arguments], /, *records: object, **values: Any) -> Arguments:
    """Make the arguments of a component: each key from `values`, else from the first record with a field of its name.

    Every key needs a source, optional ones too, so that a new argument of a component can't be forgotten where stacks
    declare it: `key=None` leaves one out on purpose. Tuples become lists and nested records become dictionaries
    without the fields that are None; entries of the catalogue stay what they are.

    Args:
        kind: the TypedDict of the component's arguments.
        records: dataclass instances, pydantic models and mappings.
        values: what is computed, by key; outputs of other components for example.

    Raises:
        UnknownFieldError: `kind` has no key of that name.
        MissingSourceError: a key has no source.
    """
    found = collected(kind.__name__, kind.__annotations__, records, values)
    return cast("Arguments", {key: plain(value) for key, value in found.items()})
