"""Catalogue entries that a component was told the names of."""

from typing import TypeVar

from llmd_oke import catalogue
from llmd_oke.errors import KitError

T = TypeVar("T")


def release(name: str) -> catalogue.Release:
    """The release of that name.

    Raises:
        KitError: the catalogue has no such release.
    """
    return _found(catalogue.release(name), "release", name, catalogue.release_names())


def model(name: str) -> catalogue.Model:
    """The model of that name.

    Raises:
        KitError: the catalogue has no such model.
    """
    return _found(catalogue.model(name), "model", name, catalogue.model_names())


def shape(name: str) -> catalogue.Shape:
    """The shape of that name.

    Raises:
        KitError: the catalogue has no such shape.
    """
    return _found(catalogue.shape(name), "shape", name, catalogue.shape_names())


def _found(entry: T | None, kind: str, name: str, known: list[str]) -> T:
    if entry is None:
        raise KitError(f"The catalogue has no {kind} {name!r}.", f"Known: {', '.join(known)}.")
    return entry
