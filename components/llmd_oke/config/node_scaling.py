"""Who decides how many nodes a pool has."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from llmd_oke.config.base import Part

Size = Annotated[int, Field(ge=1, le=1000)]


class SizeLimits(NamedTuple):
    """The fewest and the most nodes that a pool may have."""

    least: int
    most: int


class FixedSize(Part):
    """The stack file decides: the pool has `size` nodes."""

    mode: Literal["fixed"]
    """`fixed`: the pool has `size` nodes. An update that reads what is there (`pulumi up --refresh`) gives the pool its
    `size` again where something else has changed it.
    """

    def limits(self, size: int) -> SizeLimits:
        """The limits of a pool of that size."""
        return SizeLimits(size, size)


class AutoscaledSize(Part):
    """OKE's cluster autoscaler decides: it adds nodes for pods that find no room, and takes nodes that are empty."""

    mode: Literal["cluster-autoscaler"]
    """`cluster-autoscaler`: `size` is what the pool starts with; no update changes the number of nodes after that."""

    min_size: Size
    """Nodes that stay, whatever the load. At least one: the autoscaler learns from a node that is there what the others
    would have.
    """

    max_size: Size
    """Nodes at the highest load. The tenancy's limits and the network must have room for all of them."""

    def limits(self, _size: int) -> SizeLimits:
        """The limits of a pool that starts with some size."""
        return SizeLimits(self.min_size, self.max_size)


NodeScaling = Annotated[FixedSize | AutoscaledSize, Field(discriminator="mode")]
"""One of the two, by `mode`."""
