"""Catalogue entries that a component was told the names of."""

from typing import NotRequired, TypedDict, TypeVar

from llmd_oke import catalogue
from llmd_oke.catalogue.releases import overridden
from llmd_oke.errors import KitError

T = TypeVar("T")


class OverrideArgs(TypedDict):
    """Parts of a release that others take the place of."""

    router: NotRequired[str]
    """Release whose endpoint picker, proxy and routing sidecar run."""
    vllm_image: NotRequired[str]
    """Image of vLLM."""
    endpoint_picker_image: NotRequired[str]
    """Image of the endpoint picker."""
    routing_sidecar_image: NotRequired[str]
    """Image of the routing sidecar."""
    proxy_image: NotRequired[str]
    """Image of Envoy."""
    attention_backend: NotRequired[str]
    """vLLM's attention backend."""
    quick_reduce: NotRequired[str]
    """Number format of all-reduce: NONE, FP, INT8, INT6 or INT4."""


def release(name: str, override: OverrideArgs | None = None) -> catalogue.Release:
    """The release of that name, with what the user put in place of its parts.

    Raises:
        KitError: the catalogue has no such release.
    """
    base = _found(catalogue.release(name), "release", name, catalogue.release_names())
    return overridden(base, catalogue.Override.model_validate(override)) if override else base


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
