"""GPU nodes as far as the tuner needs to know them: an OCI shape, or what else a GPU comes in."""

from dataclasses import dataclass
from typing import Protocol

from llmd_oke.catalogue.gpus import Gpu, gpu
from llmd_oke.catalogue.shapes import shape, shape_names


class Node(Protocol):
    """A node with `gpus` equal GPUs and a port for each of them. The price is None where no list has it."""

    @property
    def name(self) -> str:
        """The shape, or the GPU's product."""
        ...

    @property
    def gpu(self) -> Gpu:
        """One of its GPUs."""
        ...

    @property
    def gpus(self) -> int:
        """How many it has."""
        ...

    @property
    def port_gbit_per_s(self) -> float:
        """Rate of one port."""
        ...

    @property
    def price_usd_per_gpu_hour(self) -> float | None:
        """List price of the node, for each GPU."""
        ...


@dataclass(frozen=True)
class GpuNode:
    """A node that is known by its GPU alone."""

    name: str
    gpu: Gpu
    gpus: int
    port_gbit_per_s: float
    price_usd_per_gpu_hour: float | None


def node_of_gpu(product: str) -> Node | None:
    """The first shape with that GPU, else the nodes that it comes in elsewhere; None for an unknown product."""
    shapes = (found for name in shape_names() if (found := shape(name)) and found.gpu.product == product)
    return next(shapes, None) or _other_node(gpu(product))


def _other_node(known: Gpu | None) -> Node | None:
    if known is None or known.node is None:
        return None
    other = known.node
    return GpuNode(known.product, known, other.gpus, other.port_gbit_per_s, other.price_usd_per_gpu_hour)
