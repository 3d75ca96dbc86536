"""Schema of the node agent's JSON configuration file."""

from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from llmd_rehearsal.real_vllm.servers import RealServers


class NodeTaint(BaseModel):
    """Taint of a node, with the keys and effects of Kubernetes' API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str | None = None


class NodeConfig(BaseModel):
    """Simulated node with the resources (as Kubernetes quantities), labels and taints of an OCI shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    provider_id: str | None = Field(default=None, description="OCID of the instance (`providerID` of OKE's nodes)")
    capacity: dict[str, str] = Field(
        description='quantities by resource name, for example {"cpu": "112", "amd.com/gpu": "8", "pods": "110"}'
    )
    devices: dict[str, str] = Field(
        default={},
        description="quantities of devices that the node advertises once their providers run (devices.yaml)",
    )
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()


FIRST_NODE_HOST = 10
MAX_NODES = 500


def node_address(pods: IPv4Interface, index: int) -> str:
    """Return the IP address of the node with this index (from 0), in the first /22 of the pod network, which only nodes
    use.
    """
    return str(pods.network.network_address + FIRST_NODE_HOST + index)


class BackOffConfig(BaseModel):
    """Shortest and longest delay in seconds between restarts of a container that ends repeatedly; the first restart is
    immediate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_s: float = Field(default=1.0, gt=0, description="kubelet waits 10 s")
    longest_s: float = Field(default=15.0, gt=0, description="kubelet waits at most 300 s")


class UserSecret(BaseModel):
    """Secret that a stack names and its user creates; in a rehearsal the node agent creates it in each of `namespaces`,
    as soon as the namespace exists.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    namespaces: tuple[str, ...]
    type: str = Field(description="type of the Secret, such as kubernetes.io/tls")
    files: dict[str, Path] = Field(description="files with the values, by the keys of the Secret's data")


class RegistryConfig(BaseModel):
    """Private registry from which simulated nodes pull images with the credentials of pods' image pull Secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefix: str = Field(description="host and path that the names of its images begin with")
    url: str = Field(description="URL at which it can be reached")


class AgentConfig(BaseModel):
    """Configuration of the node agent, written as JSON when the local cluster's processes are prepared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path
    state_folder: Path = Field(description="folder for pods/, nodes/, volumes/ and logs/pods/")
    images: Path = Field(description="path of the image table, values/rehearsal/images.yaml")
    programs: dict[str, Path] = Field(description="paths of the image table's programs by name: epp, pd-sidecar, envoy")
    nodes: tuple[NodeConfig, ...] = ()
    definitions: tuple[dict[str, Any], ...] = Field(
        default=(), description="CustomResourceDefinitions that exist before the stack"
    )
    objects: tuple[dict[str, Any], ...] = Field(default=(), description="objects that exist before the stack")
    user_secrets: tuple[UserSecret, ...] = Field(
        default=(), description="Secrets that are created in namespaces of the stack, as their user would"
    )
    registry: RegistryConfig | None = Field(default=None, description="private registry; None if there is none")
    simulator_url: str | None = Field(default=None, description="base URL of the simulated vLLM's control API")
    real_vllm: RealServers | None = Field(
        default=None, description="settings of vLLM itself; None if vLLM is simulated"
    )
    control_port: int | None = Field(default=None, description="port of the control API that adds and removes nodes")
    pod_network: IPv4Interface = Field(
        default=IPv4Interface("10.244.0.1/16"),
        description="network of nodes and pods, with the local cluster's own address",
    )
    service_cidr: IPv4Network = IPv4Network("10.96.0.0/16")
    dns_address: str = "10.96.0.10"
    cluster_domain: str = "cluster.local"
    api_server: str = Field(default="10.244.0.1:6443", description="endpoint of the Service `kubernetes`, host:port")
    outside_names: dict[str, str] = Field(default={}, description="IP addresses of hosts outside the cluster, by name")
    outside_aliases: dict[str, str] = Field(
        default={}, description="names of Services inside the cluster, by the name outside it that leads there"
    )
    outside_authority: Path | None = Field(
        default=None, description="PEM file of the authority of these hosts' certificates"
    )
    certificate: tuple[Path, Path] | None = Field(
        default=None, description="PEM files of a certificate and its key, for programs that would generate their own"
    )
    pod_environment: dict[str, str] = Field(
        default={}, description="environment variables of Python programs in pods, beside their own"
    )
    faults: Path | None = Field(default=None, description="path of the fault file, with faults of nodes")
    time_scale: float = Field(default=1.0, gt=0, description="wall seconds for one second of the servers' model time")
    probe_time_scale: float = Field(default=1.0, gt=0, description="factor on delays and periods of probes")
    back_off: BackOffConfig = BackOffConfig()
    stop_grace_s: float = Field(
        default=2.0, ge=0, description="seconds of grace for pods' processes when the agent ends"
    )
