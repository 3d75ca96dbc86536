"""OCI shapes of GPU nodes: what a node has and how its pods ask for it."""

from functools import cache

from pydantic import Field

from llmd_oke.catalogue.files import Entry, entry, names


class Gpu(Entry):
    """One GPU of a shape. Memory in GiB, bandwidth in GB/s, compute in TFLOPS."""

    product: str
    vendor: str
    resource: str
    architecture: str
    memory_gib: float
    memory_bandwidth_gb_per_s: float
    bf16_dense_tflops: float


class NetworkAttachment(Entry):
    """The NetworkAttachmentDefinition that gives a pod one virtual function."""

    name: str
    namespace: str


class SriovPorts(Entry):
    """The ports that virtual functions are made of: PCI vendor, and PCI addresses of the physical functions."""

    vendor: str
    ports: tuple[str, ...]


class RdmaNetwork(Entry):
    """The RDMA ports of a node, and the environments that UCX and RCCL need to use them.

    `adapters` are the host channel adapters by name, in the order of the GPUs. `sriov` is None for a shape whose ports
    nobody is known to have split.
    """

    virtual_functions: int
    port_gbit_per_s: float
    resource: str
    network_attachment: NetworkAttachment
    environment: dict[str, str]
    sriov: SriovPorts | None = None
    adapters: tuple[str, ...] = ()
    rccl: dict[str, str] = Field(default_factory=dict[str, str])


class LocalDisks(Entry):
    """A node's own disks; each of that many TB (10^12 bytes)."""

    count: int
    terabytes: float


POOL_LABEL = "oke.oraclecloud.com/pool.name"
"""The label that says which pool a node is of."""


class Taint(Entry):
    """A taint of the shape's nodes."""

    key: str
    value: str
    effect: str


class NodeDefaults(Entry):
    """Labels and taints of the shape's nodes."""

    labels: dict[str, str]
    taints: tuple[Taint, ...]


class ServerRequests(Entry):
    """What a server asks of the node for each of its GPUs."""

    cpus: int
    memory_gib: int


class Shape(Entry):
    """A bare-metal GPU shape. `cpus` counts hardware threads, `memory_gib` is host memory."""

    name: str
    gpus: int
    gpu: Gpu
    cpus: int
    memory_gib: int
    price_usd_per_hour: float
    rdma: RdmaNetwork
    node: NodeDefaults
    disks: LocalDisks | None = None
    server_requests_per_gpu: ServerRequests


@cache
def shape(name: str) -> Shape | None:
    """The shape of that name, or None."""
    return entry("shapes", name, Shape)


def shape_names() -> list[str]:
    """All shapes of the catalogue."""
    return names("shapes")
