"""OCI shapes and their GPUs: hardware of a node, resource names for pods, and peak rates."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    WithJsonSchema,
    field_validator,
)

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.config.pools import Taint
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.values import Entry, entry_reader, follows_project

GID_VARIABLE = "UCX_IB_GID_INDEX"
"""Variable of UCX with the index of the address that an RDMA port sends from."""

POOL_LABEL = "oke.oraclecloud.com/pool.name"
"""Node label with the name of the node's pool."""


INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Node label with the name of the node's shape; only OCI's cloud controller sets it."""


class Link(Entry):
    """Link between a node's GPUs: rate in GB/s in one direction, to each other GPU, or to all together if
    `switched`.
    """

    gb_per_s: PositiveFloat
    switched: bool


class DenseTflops(Entry):
    """Peak rates of matrix products in TFLOPS by number format, without sparsity; None for a format that the GPU
    doesn't support.
    """

    bf16: PositiveFloat
    fp8: PositiveFloat | None = None
    mxfp4: PositiveFloat | None = None

    def of(self, number_format: str) -> float:
        """Return the rate for weights in a number format; that of BF16 if the GPU only stores the format."""
        return getattr(self, number_format, None) or self.bf16


class OtherNode(Entry):
    """Node with a GPU for which the catalogue has no shape; the price is None if OCI's public list has none."""

    gpus: PositiveInt
    port_gbit_per_s: PositiveFloat
    price_usd_per_gpu_hour: PositiveFloat | None = None


class Gpu(Entry):
    """One GPU. Memory is in GiB, bandwidth in GB/s; `resource` is the Kubernetes resource name. `host_link_gb_per_s` is
    the peak rate in one direction between GPU memory and host memory, by default that of PCIe 5.0 x16.
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
    """Return the GPU with this product name; None if the catalogue has none."""
    return entries.entry(GPUS, product)


def gpu_names() -> list[str]:
    """Return the product names of all GPUs of the catalogue, sorted."""
    return entries.names(GPUS.folder)


def _known_gpu(product: object) -> object:
    """Return the GPU whose product name a shape has; other values are returned unchanged for pydantic's validation."""
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
"""GPU of the catalogue, written as its product name."""


class NetworkAttachment(Entry):
    """NetworkAttachmentDefinition that gives a pod one virtual function."""

    name: str
    namespace: str


class SriovPorts(Entry):
    """Ports that are split into virtual functions: PCI vendor, and PCI addresses of the physical functions."""

    vendor: str
    ports: tuple[str, ...]


class RdmaPorts(Entry):
    """RDMA ports of a node, and the environment variables by which UCX and RCCL use them.

    `adapters` are the names of the host channel adapters, in the order of the GPUs, which begin with their driver's
    name (`mlx5_0`); empty if they aren't known. `sriov` is None for a shape whose
    ports aren't known to support virtual functions.
    """

    virtual_functions: NonNegativeInt
    port_gbit_per_s: PositiveFloat
    resource: str
    network_attachment: NetworkAttachment
    environment: dict[str, str]
    sriov: SriovPorts | None = None
    adapters: tuple[str, ...] = ()
    rccl: dict[str, str] = Field(default_factory=dict[str, str])

    @field_validator("environment")
    @classmethod
    def _gid_index_is_a_number(cls, variables: dict[str, str]) -> dict[str, str]:
        if GID_VARIABLE in variables and not variables[GID_VARIABLE].isdecimal():
            raise ValueError(f"{GID_VARIABLE} is no number")
        return variables

    @property
    def gid_index(self) -> int:
        """Index of the address (GID) that a port sends from; 3 if the environment names none."""
        return int(self.environment.get(GID_VARIABLE, "3"))


class LocalDisks(Entry):
    """Local NVMe disks of a node: their number, and the capacity of each in TB (10^12 bytes)."""

    count: PositiveInt
    terabytes: PositiveFloat


class NodeDefaults(Entry):
    """Labels and taints that the nodes of a shape have by default."""

    labels: dict[str, str]
    taints: tuple[Taint, ...]


class ServerRequests(Entry):
    """Resource requests of a server for each of its GPUs."""

    cpus: PositiveInt
    memory_gib: PositiveInt


class Shape(Entry):
    """Bare-metal GPU shape. `cpus` are hardware threads, `memory_gib` is host memory. `limit` is the service limit for
    GPUs of the shape; None if its name isn't published.
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
        """Rate of one RDMA port of the shape in Gbit/s."""
        return self.rdma.port_gbit_per_s

    def devices(self, *, rdma: bool) -> dict[str, int]:
        """Return the allocatable devices of a node by resource name: GPUs, and with `rdma` virtual functions."""
        functions = {self.rdma.resource: self.rdma.virtual_functions} if rdma and self.rdma.virtual_functions else {}
        return {self.gpu.resource: self.gpus, **functions}

    @property
    def price_usd_per_gpu_hour(self) -> float:
        """List price in US dollars per hour of a node, divided by its number of GPUs."""
        return self.price_usd_per_hour / self.gpus


SHAPES = EntryKind("shapes", Shape, key="name")


@follows_project
def shape(name: str) -> Shape | None:
    """Return the shape with this name; None if the catalogue has none."""
    return entries.entry(SHAPES, name)


def shape_names() -> list[str]:
    """Return the names of all shapes of the catalogue, sorted."""
    return entries.names(SHAPES.folder)


class NodeHardware(Protocol):
    """Protocol for a node with `gpus` equal GPUs and one RDMA port for each of them."""

    @property
    def name(self) -> str:
        """Name of the node's shape, or of its GPU's product."""
        ...

    @property
    def gpu(self) -> Gpu:
        """Type of GPU that the node has."""
        ...

    @property
    def gpus(self) -> int:
        """Number of GPUs of the node."""
        ...

    @property
    def port_gbit_per_s(self) -> float:
        """Rate of one of the node's RDMA ports in Gbit/s."""
        ...

    @property
    def price_usd_per_gpu_hour(self) -> float | None:
        """List price of the node in US dollars per hour and GPU; None if no price list has it."""
        ...


@dataclass(frozen=True)
class GpuNode:
    """Node with a GPU that no shape of the catalogue has."""

    name: str
    gpu: Gpu
    gpus: int
    port_gbit_per_s: float
    price_usd_per_gpu_hour: float | None


def node_of_gpu(product: str) -> NodeHardware | None:
    """Return the first shape with that GPU, else the node in the GPU's own entry; None if the catalogue has neither."""
    shapes = (item for name in shape_names() if (item := shape(name)) and item.gpu.product == product)
    if (node := next(shapes, None)) is not None:
        return node
    known = gpu(product)
    if known is None or known.node is None:
        return None
    other = known.node
    return GpuNode(known.product, known, other.gpus, other.port_gbit_per_s, other.price_usd_per_gpu_hour)


class ShapeLimits(Entry):
    """Service limits for OCPUs and for memory in GB, each with the names that it may have, the most likely first."""

    ocpus: tuple[str, ...]
    memory_gb: tuple[str, ...]


class FlexibleShape(Entry):
    """Limits of a flexible shape: maximum OCPUs and memory of a node, and minimum and maximum memory per OCPU; memory
    in GB. Infinite values are unknown; `limits` is None if the names of the service limits are unknown.
    """

    ocpus: float
    memory_gb: float
    memory_gb_per_ocpu: tuple[float, float]
    limits: ShapeLimits | None = None


class _FlexibleShapes(Entry):
    shapes: dict[str, FlexibleShape]
    others: FlexibleShape


_all = entry_reader("flexible-shapes", "oci", _FlexibleShapes)


def flexible_shape(name: str) -> FlexibleShape | None:
    """Return the limits of a flexible shape, with infinite values if no figures are published; None if the shape isn't
    flexible.
    """
    return _all().shapes.get(name, _all().others if name.endswith(".Flex") else None)
