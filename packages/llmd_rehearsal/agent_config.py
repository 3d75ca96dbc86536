"""The node agent's configuration file."""

from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from llmd_rehearsal.real_vllm.servers import RealServers


class NodeTaint(BaseModel):
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
    taints: tuple[NodeTaint, ...] = ()


FIRST_NODE_HOST = 10
MAX_NODES = 500


def node_address(pods: IPv4Interface, index: int) -> str:
    """Give the address of the node with that index (from 0): the pod network's first /22 is for nodes."""
    return str(pods.network.network_address + FIRST_NODE_HOST + index)


class BackOffConfig(BaseModel):
    """Seconds to wait between restarts of a container that keeps ending; the first restart is at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_s: float = Field(default=1.0, gt=0, description="kubelet waits 10 s")
    longest_s: float = Field(default=15.0, gt=0, description="kubelet waits at most 300 s")


class AgentConfig(BaseModel):
    """All that the node agent needs; written by the local cluster's supervisor as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path
    state_folder: Path = Field(description="pods/, nodes/, volumes/ and logs/pods/ are made in it")
    images: Path = Field(description="the image table, values/rehearsal/images.yaml")
    programs: dict[str, Path] = Field(description="programs of the image table by name: epp, pd-sidecar, envoy")
    nodes: tuple[NodeConfig, ...] = ()
    definitions: tuple[dict[str, Any], ...] = Field(default=(), description="what others have installed beforehand")
    objects: tuple[dict[str, Any], ...] = Field(
        default=(), description="objects of theirs, by these definitions or not"
    )
    simulator_url: str | None = Field(default=None, description="control API of the simulated vLLM process")
    real_vllm: RealServers | None = Field(default=None, description="vLLM itself, in place of the simulated one")
    control_port: int | None = Field(default=None, description="of the control API that nodes come and go by")
    pod_network: IPv4Interface = Field(
        default=IPv4Interface("10.244.0.1/16"), description="of nodes and pods, with the local cluster's own address"
    )
    service_cidr: IPv4Network = IPv4Network("10.96.0.0/16")
    dns_address: str = "10.96.0.10"
    cluster_domain: str = "cluster.local"
    api_server: str = Field(default="10.244.0.1:6443", description="where the `kubernetes` Service leads, host:port")
    outside_names: dict[str, str] = Field(default={}, description="hosts outside the cluster: name to address")
    outside_authority: Path | None = Field(default=None, description="PEM file of what signs their certificates")
    certificate: tuple[Path, Path] | None = Field(
        default=None, description="PEM files of a certificate and its key, for programs that would make their own"
    )
    pod_environment: dict[str, str] = Field(
        default={}, description="what Python programs in pods are told beside theirs"
    )
    faults: Path | None = Field(default=None, description="the fault file, for what is wrong with nodes")
    time_scale: float = Field(default=1.0, gt=0, description="wall seconds for a second of the model time of servers")
    probe_time_scale: float = Field(default=1.0, gt=0, description="multiplies delays, periods and timeouts of probes")
    back_off: BackOffConfig = BackOffConfig()
    stop_grace_s: float = Field(default=2.0, ge=0, description="given to each pod's processes when the agent ends")
