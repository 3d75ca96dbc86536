"""Pools of GPU nodes."""

from typing import Annotated

from pydantic import Field

from llmd_oke.config.base import Part
from llmd_oke.config.names import DnsLabel


class GpuPool(Part):
    """Nodes of one GPU shape. In an existing cluster this states what is there; nothing is created."""

    name: DnsLabel
    """Name of the pool; its nodes carry it as label `oke.oraclecloud.com/pool.name`."""

    shape: str
    """OCI shape of the nodes, for example `BM.GPU.MI300X.8`."""

    size: Annotated[int, Field(ge=1, le=1000)]
    """Number of nodes."""
