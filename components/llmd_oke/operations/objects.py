"""Fields of objects from the API server, which lightkube's models all call optional."""

from typing import cast

from lightkube.models.meta_v1 import ObjectMeta

SIMULATED_ANNOTATION = "rehearsal.llmd-oke/simulated"
"""Of pods with containers that a rehearsal has no program for: their names."""


def metadata(item: object) -> ObjectMeta:
    """Give the metadata that every object from the API server has (the models call it optional)."""
    meta: object = getattr(item, "metadata", None)
    return meta if isinstance(meta, ObjectMeta) else ObjectMeta()


def texts(item: object, field: str) -> dict[str, str]:
    """Give a field that maps texts, such as labels; the models say no more of it than that it's a map, or None."""
    return cast("dict[str, str]", getattr(item, field, None) or {})


def plain(item: object) -> dict[str, object]:
    """Give an object as plain data, as YAML or JSON has it."""
    return cast("dict[str, object]", getattr(item, "to_dict")())  # noqa: B009 - the models say no more of it
