"""Access to fields of Kubernetes objects that lightkube's types declare as optional."""

from typing import cast

from lightkube.models.meta_v1 import ObjectMeta

SIMULATED_ANNOTATION = "rehearsal.llmd-oke/simulated"
"""Annotation of pods in a rehearsal with the names of containers that are simulated, without a real program."""


def metadata(item: object) -> ObjectMeta:
    """Return an object's metadata; empty metadata if the object has none."""
    meta: object = getattr(item, "metadata", None)
    return meta if isinstance(meta, ObjectMeta) else ObjectMeta()


def texts(item: object, field: str) -> dict[str, str]:
    """Return a field that maps strings to strings, such as labels; empty if the field is None."""
    return cast("dict[str, str]", getattr(item, field, None) or {})


def plain(item: object) -> dict[str, object]:
    """Return a Kubernetes object as plain data for JSON or YAML."""
    return cast("dict[str, object]", getattr(item, "to_dict")())  # noqa: B009 - not declared in lightkube's types
