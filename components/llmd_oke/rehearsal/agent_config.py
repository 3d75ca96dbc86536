"""The node agent's configuration file."""

from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from llmd_oke.rehearsal.nodes.config import NodeConfig

POLICIES_FILE = "network-policies"
"""In the state folder: why NetworkPolicies are not enforced; empty where they are."""


class BackOffConfig(BaseModel):
    """Waits between restarts of a container that keeps ending, in seconds; the first restart is at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_s: float = Field(default=1.0, gt=0, description="kubelet waits 10 s")
    longest_s: float = Field(default=15.0, gt=0, description="kubelet waits at most 300 s")


class AgentConfig(BaseModel):
    """All that the node agent needs; written by the world's supervisor as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path
    state_folder: Path = Field(description="pods/, nodes/, volumes/ and logs/pods/ are made in it")
    images: Path = Field(description="the image table, values/rehearsal/images.yaml")
    programs: dict[str, Path] = Field(description="programs of the image table by name: epp, pd-sidecar, envoy")
    nodes: tuple[NodeConfig, ...] = ()
    definitions: tuple[dict[str, Any], ...] = Field(default=(), description="what others have installed beforehand")
    simulator_url: str | None = Field(default=None, description="control API of the simulated vLLM process")
    control_port: int | None = Field(default=None, description="of the control API that nodes come and go by")
    bridge: str = "pods0"
    bridge_address: IPv4Interface = IPv4Interface("10.244.0.1/16")
    service_cidr: IPv4Network = IPv4Network("10.96.0.0/16")
    dns_address: str = "10.96.0.10"
    cluster_domain: str = "cluster.local"
    api_server: str = Field(default="10.244.0.1:6443", description="where the `kubernetes` Service leads, host:port")
    outside_names: dict[str, str] = Field(default={}, description="hosts outside the cluster: name to address")
    outside_authority: Path | None = Field(default=None, description="PEM file of what signs their certificates")
    pod_environment: dict[str, str] = Field(
        default={}, description="what Python programs in pods are told beside theirs"
    )
    time_scale: float = Field(default=1.0, gt=0, description="wall seconds for a second of the model time of servers")
    probe_time_scale: float = Field(default=1.0, gt=0, description="multiplies delays, periods and timeouts of probes")
    back_off: BackOffConfig = BackOffConfig()
    stop_grace_s: float = Field(default=2.0, ge=0, description="given to each pod's processes when the agent ends")
