"""What all parts of the stack file have in common."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(strict=False)]
"""A list in the stack file. (`strict` would want a Python tuple; the items themselves stay strict.)"""


class Part(BaseModel):
    """A part of the stack file: camelCase keys, no unknown keys, no value taken for another type, never changed.

    Code may give the fields under their Python names; a stack file may not (`load.validate`).
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )


def is_absent(value: object) -> bool:
    """Whether a stack file doesn't say a key. It then leaves no trace in `Plan.config_hash`, which results have."""
    return value is None


def is_zero(value: object) -> bool:
    """The same for a number whose default is 0."""
    return value == 0
