"""The stack file's one object."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Items, Part
from llmd_oke.config.cluster import Cluster
from llmd_oke.config.gpu_pool import GpuPool
from llmd_oke.config.model import Model
from llmd_oke.config.names import DnsLabel
from llmd_oke.config.smoke import Smoke

Rdma = Literal["sriov-vf", "none"]


class StackConfig(Part):
    """Everything that one stack deploys. It stands under `llmd-oke:stack` in `stacks/Pulumi.<stack>.yaml`."""

    cluster: Cluster
    """The cluster to deploy to."""

    gpu_pools: Annotated[Items[GpuPool], Field(min_length=1)]
    """The pools of GPU nodes that the models are placed on."""

    rdma: Rdma = "sriov-vf"
    """How pods reach the RDMA network: `sriov-vf`, one virtual function for each GPU of a prefill or decode server;
    `none`, no RDMA (one node only)."""

    release: str
    """llm-d release: the versions of endpoint picker, sidecar, charts, CRDs and vLLM that belong together, for example
    `llm-d-0.8`."""

    namespace: DnsLabel = "llm-d"
    """Namespace of all models of this stack."""

    models: Annotated[Items[Model], Field(min_length=1)]
    """The models to serve."""

    smoke: Smoke = Smoke()
    """The benchmark that runs after each update."""
