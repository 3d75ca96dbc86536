"""How large nodes of flexible shapes may be."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class ShapeLimits(Entry):
    """The service limits of OCPUs and of GB of memory, each by the names that it goes by, the likelier first."""

    ocpus: tuple[str, ...]
    memory_gb: tuple[str, ...]


class FlexibleShape(Entry):
    """The most OCPUs and memory of a node, and the least and the most memory for each OCPU; memory in GB. What is
    infinite is not known, and neither are limits that are None.
    """

    ocpus: float
    memory_gb: float
    memory_gb_per_ocpu: tuple[float, float]
    limits: ShapeLimits | None = None

    def memory_gb_with(self, ocpus: float) -> tuple[float, float]:
        """The least and the most memory of a node with that many OCPUs, in GB."""
        least, most = self.memory_gb_per_ocpu
        return least * ocpus, min(most * ocpus, self.memory_gb)


class _FlexibleShapes(Entry):
    shapes: dict[str, FlexibleShape]
    others: FlexibleShape


@cache
def _all() -> _FlexibleShapes:
    return required_entry("flexible-shapes", "oci", _FlexibleShapes)


def flexible_shape(name: str) -> FlexibleShape | None:
    """The limits of a flexible shape, those of `others` where it has no public figures; None for any other shape."""
    return _all().shapes.get(name, _all().others if name.endswith(".Flex") else None)
