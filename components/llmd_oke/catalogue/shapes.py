"""Shapes of OCI and their GPUs: what a node has, how its pods ask for it, and the limits that nothing on it exceeds."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Protocol

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, WithJsonSchema

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.config.pools import Taint
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.values import Entry, follows_project, required_entry

POOL_LABEL = "oke.oraclecloud.com/pool.name"
"""The label that says which pool a node is of."""


INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""The label that says which shape a node has; only the cloud's own controller sets it."""


class Link(Entry):
    """Connection of a node's GPUs: GB/s in one direction, to each other GPU, or to all together if `switched`."""

    gb_per_s: PositiveFloat
    switched: bool


class DenseTflops(Entry):
    """Peak rates of matrix units by number format, without sparsity; None for a format that they don't have."""

    bf16: PositiveFloat
    fp8: PositiveFloat | None = None
    mxfp4: PositiveFloat | None = None

    def of(self, number_format: str) -> float:
        """The rate for weights in that format; that of BF16 where matrix units lack it, so that it is only stored."""
        return getattr(self, number_format, None) or self.bf16


class OtherNode(Entry):
    """The nodes of a GPU without a shape in the catalogue; no price where OCI's public list has none."""

    gpus: PositiveInt
    port_gbit_per_s: PositiveFloat
    price_usd_per_gpu_hour: PositiveFloat | None = None


class Gpu(Entry):
    """One GPU. Memory in GiB, bandwidth in GB/s; `resource` is how pods ask for it. `host_link_gb_per_s` is the peak
    rate between its memory and its node's, in one direction; that of PCIe 5.0 x16 if left out.
    """

    product: str
    vendor: str
    resource: str
    architecture: str
    memory_gib: PositiveFloat
    memory_bandwidth_gb_per_s: PositiveFloat
    dense_tflops: DenseTflops
    link: Link
    host_link_gb_per_s: PositiveFloat = 64.0
    node: OtherNode | None = None


GPUS = EntryKind("gpus", Gpu, key="product")


@follows_project
def gpu(product: str) -> Gpu | None:
    """The GPU of that product, or None."""
    return entries.entry(GPUS, product)


def gpu_names() -> list[str]:
    """All GPU products of the catalogue."""
    return entries.names(GPUS.folder)


def _known_gpu(product: object) -> object:
    """The GPU that a shape names."""
    if not isinstance(product, str):
        return product
    if (known := gpu(product)) is None:
        raise ValueError(f"the catalogue has no such GPU: {did_you_mean(product, gpu_names())}")
    return known


KnownGpu = Annotated[
    Gpu,
    BeforeValidator(_known_gpu),
    WithJsonSchema({"type": "string", "description": "a GPU of values/gpus"}),
]
"""A GPU that a shape names by its product."""


class NetworkAttachment(Entry):
    """The NetworkAttachmentDefinition that gives a pod one virtual function."""

    name: str
    namespace: str


class SriovPorts(Entry):
    """The ports that virtual functions are made of: PCI vendor, and PCI addresses of the physical functions."""

    vendor: str
    ports: tuple[str, ...]


class RdmaPorts(Entry):
    """The RDMA ports of a node, and the environments that UCX and RCCL need to use them.

    `adapters` are the host channel adapters by name, in the order of the GPUs. `sriov` is None for a shape whose ports
    nobody is known to have split.
    """

    virtual_functions: NonNegativeInt
    port_gbit_per_s: PositiveFloat
    resource: str
    network_attachment: NetworkAttachment
    environment: dict[str, str]
    sriov: SriovPorts | None = None
    adapters: tuple[str, ...] = ()
    rccl: dict[str, str] = Field(default_factory=dict[str, str])


class LocalDisks(Entry):
    """A node's own disks; each of that many TB (10^12 bytes)."""

    count: PositiveInt
    terabytes: PositiveFloat


class NodeDefaults(Entry):
    """Labels and taints of the shape's nodes."""

    labels: dict[str, str]
    taints: tuple[Taint, ...]


class ServerRequests(Entry):
    """Requests of a server to the node for each of its GPUs."""

    cpus: PositiveInt
    memory_gib: PositiveInt


class Shape(Entry):
    """A bare-metal GPU shape. `cpus` counts hardware threads, `memory_gib` is host memory. `limit` is the service limit
    that counts the GPUs of its nodes, None where its name is not published.
    """

    name: str
    gpus: PositiveInt
    gpu: KnownGpu
    limit: str | None = None
    cpus: PositiveInt
    memory_gib: PositiveInt
    price_usd_per_hour: PositiveFloat
    rdma: RdmaPorts
    node: NodeDefaults
    disks: LocalDisks | None = None
    server_requests_per_gpu: ServerRequests

    @property
    def port_gbit_per_s(self) -> float:
        """Rate of one RDMA port."""
        return self.rdma.port_gbit_per_s

    def devices(self, *, rdma: bool) -> dict[str, int]:
        """Return what pods ask of a node by resource: GPUs, and with `rdma` virtual functions."""
        functions = {self.rdma.resource: self.rdma.virtual_functions} if rdma and self.rdma.virtual_functions else {}
        return {self.gpu.resource: self.gpus, **functions}

    @property
    def price_usd_per_gpu_hour(self) -> float:
        """List price of a node, for each of its GPUs."""
        return self.price_usd_per_hour / self.gpus


SHAPES = EntryKind("shapes", Shape, key="name")


@follows_project
def shape(name: str) -> Shape | None:
    """The shape of that name, or None."""
    return entries.entry(SHAPES, name)


def shape_names() -> list[str]:
    """All shapes of the catalogue."""
    return entries.names(SHAPES.folder)


class NodeHardware(Protocol):
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
        """Number of GPUs."""
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


def node_of_gpu(product: str) -> NodeHardware | None:
    """The first shape with that GPU, else the nodes that it comes in elsewhere; None for an unknown product."""
    shapes = (item for name in shape_names() if (item := shape(name)) and item.gpu.product == product)
    if (node := next(shapes, None)) is not None:
        return node
    known = gpu(product)
    if known is None or known.node is None:
        return None
    other = known.node
    return GpuNode(known.product, known, other.gpus, other.port_gbit_per_s, other.price_usd_per_gpu_hour)


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
