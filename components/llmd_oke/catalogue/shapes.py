"""OCI shapes of GPU nodes: what a node has and how its pods ask for it."""

from functools import cache
from typing import Annotated

from pydantic import BeforeValidator, Field

from llmd_oke.catalogue.files import Entry, entry, names
from llmd_oke.catalogue.gpus import Gpu, gpu


def _known_gpu(product: object) -> object:
    """The GPU that a shape names."""
    return gpu(product) if isinstance(product, str) else product


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

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
"""The label that says which shape a node has; only the cloud's own controller sets it."""


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
    """A bare-metal GPU shape. `cpus` counts hardware threads, `memory_gib` is host memory. `limit` is the service limit
    that counts the GPUs of its nodes, None where its name is not published.
    """

    name: str
    gpus: int
    gpu: Annotated[Gpu, BeforeValidator(_known_gpu)]
    limit: str | None = None
    cpus: int
    memory_gib: int
    price_usd_per_hour: float
    rdma: RdmaNetwork
    node: NodeDefaults
    disks: LocalDisks | None = None
    server_requests_per_gpu: ServerRequests

    @property
    def port_gbit_per_s(self) -> float:
        """Rate of one RDMA port."""
        return self.rdma.port_gbit_per_s

    def devices(self, *, rdma: bool) -> dict[str, int]:
        """What pods ask of a node by resource: GPUs, and with `rdma` virtual functions."""
        functions = {self.rdma.resource: self.rdma.virtual_functions} if rdma and self.rdma.virtual_functions else {}
        return {self.gpu.resource: self.gpus, **functions}

    @property
    def price_usd_per_gpu_hour(self) -> float:
        """List price of a node, for each of its GPUs."""
        return self.price_usd_per_hour / self.gpus


@cache
def shape(name: str) -> Shape | None:
    """The shape of that name, or None."""
    return entry("shapes", name, Shape)


def shape_names() -> list[str]:
    """All shapes of the catalogue."""
    return names("shapes")
