"""What a simulated node is told to be."""

from ipaddress import IPv4Interface
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Taint(BaseModel):
    """A node's taint, in Kubernetes' own words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str | None = None


class NodeConfig(BaseModel):
    """One simulated node: resources as Kubernetes quantities, labels and taints of the shape that it stands for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    provider_id: str | None = Field(
        default=None, description="OCID of the instance; OKE's nodes have it (`providerID`)"
    )
    capacity: dict[str, str] = Field(
        description='quantities by resource name, for example {"cpu": "112", "amd.com/gpu": "8", "pods": "110"}'
    )
    devices: dict[str, str] = Field(
        default={},
        description="quantities that the node shows only when the cluster has what gives them (devices.yaml)",
    )
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()


FIRST_NODE_HOST = 10
MOST_NODES = 500


def node_address(bridge: IPv4Interface, index: int) -> str:
    """Give the address of the node with that index (from 0): the pod network's first /22 is for nodes."""
    return str(bridge.network.network_address + FIRST_NODE_HOST + index)
