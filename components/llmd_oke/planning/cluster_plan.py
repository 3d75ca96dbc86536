"""Plan of everything that a stack creates besides models: network, IAM policies, pools, add-ons and storage.
Pure data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmd_oke.catalogue.cluster import Need
from llmd_oke.catalogue.oci_monitoring import OciAlarm
from llmd_oke.config import (
    SizeLimits,
)
from llmd_oke.config.budget import BudgetConfig
from llmd_oke.config.cluster import AddOn, Oidc
from llmd_oke.config.oci_monitoring import OciLogs
from llmd_oke.config.pools import CycleMode, ImageImport, Taint
from llmd_oke.config.stack import GpuStack
from llmd_oke.planning.network import NetworkPlan


@dataclass(frozen=True)
class GpuStackPlan:
    """Operators, add-ons, labels and taints by which pods of a cluster get GPUs and RDMA.

    Attributes:
        kind: the stack file's `gpuStack`, or the default for the cluster.
        add_ons: OKE cluster add-ons, in the order of their creation.
        components: the kit's own components, in the order of their creation: `cert-manager`, `node-feature-discovery`,
            `amd-gpu-operator`, `rdma-network`.
        node_labels: labels that GPU nodes need when they register.
        gpu_selector: labels by which the AMD GPU operator selects its nodes.
        tolerations: taints of GPU nodes, from shapes and pools, that operators tolerate.
    """

    kind: GpuStack
    add_ons: tuple[AddOn, ...] = ()
    components: tuple[str, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()
    gpu_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class IamNeeds:
    """Keys of the IAM permissions that must be granted before the cluster and before its pools are created, and the
    OCIDs for which policy statements are repeated.
    """

    cluster: tuple[Need, ...]
    nodes: tuple[Need, ...]
    resource_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class NodeTag:
    """Defined tag that identifies nodes, as `Namespace.Key`, and its value."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class IamPlan(IamNeeds):
    """Dynamic groups and policies of a created cluster, in the tenancy's home region. Compartments that are None are
    the cluster's. All names begin with `unique_name`, because the home region has the groups and policies of all
    regions and compartments.
    """

    unique_name: str
    style: Literal["identity-domain", "classic"]
    domain: str
    domain_url: str | None
    home_region: str | None
    dynamic_group_ids: Mapping[str, str]
    node_tag: NodeTag | None
    ignored_tags: tuple[str, ...]
    tag_namespace_compartment_id: str | None
    network_compartment_id: str | None
    image_compartment_id: str | None
    key_compartment_id: str | None
    reservation_compartment_id: str | None


@dataclass(frozen=True)
class PrewarmPlan:
    """Download of weights into the model cache before servers start; `connections` is the number of files that it reads
    in parallel.
    """

    source: Literal["hugging-face", "object-storage"]
    connections: int


@dataclass(frozen=True)
class ModelCachePlan:
    """Cache for the weights of all models.

    Attributes:
        kind: kind of storage.
        path: directory on the nodes' local disks; None for a shared file system.
        capacity_gib: capacity of a Lustre file system in GiB.
        volume_handle: volume handle of an existing file system for the CSI driver; None if it doesn't exist yet.
        timeout_s: maximum time in seconds of filling the cache with one model.
        prewarm: pre-warming; None if the first server downloads the weights.
        revisions: commits by model; None without pre-warming.
        compiled_path: stack's directory on the nodes' local disks for code that servers compile at startup; None if it
            isn't kept.
        kv_cache_path: stack's directory on the nodes' local disks for KV cache in files; None if no model keeps any.
    """

    kind: Literal["node-disk", "file-storage", "lustre"]
    path: str | None
    capacity_gib: int | None
    volume_handle: str | None
    timeout_s: int
    prewarm: PrewarmPlan | None
    revisions: Mapping[str, str] | None
    compiled_path: str | None
    kv_cache_path: str | None


@dataclass(frozen=True)
class StoragePlan:
    """File system that is created for the model cache. `anywhere` tells whether nodes that mount it may have any
    address of the VCN, as existing pools do. File Storage has an `export_path`, Lustre a capacity in GB and a
    performance tier.
    """

    kind: Literal["file-storage", "lustre"]
    availability_domain: str
    anywhere: bool
    export_path: str | None = None
    capacity_gb: int | None = None
    performance_tier: str | None = None


@dataclass(frozen=True)
class TagsPlan:
    """OCI tags of a stack's resources: free-form ones by key, defined ones by `Namespace.Key`. The tag namespaces are
    in the root compartment if `namespace_compartment_id` is None. `ignored` are defined tags set by others, which
    updates don't change; if `defined` is empty, updates change no defined tags.
    """

    freeform: Mapping[str, str]
    defined: Mapping[str, str]
    ignored: tuple[str, ...]
    namespace_compartment_id: str | None


@dataclass(frozen=True)
class CyclingPlan:
    """Replacement of a pool's nodes by OKE: `max_surge` and `max_unavailable` are numbers of nodes or percentages."""

    mode: CycleMode
    max_surge: str
    max_unavailable: str

    @property
    def grows(self) -> bool:
        """True if OKE may add nodes while it replaces those of the pool."""
        return self.max_surge not in {"0", "0%"}

    @property
    def shrinks(self) -> bool:
        """True if nodes of the pool may be missing while OKE replaces them."""
        return self.max_unavailable not in {"0", "0%"}


@dataclass(frozen=True)
class NodesPlan:
    """Pool of nodes of a created cluster, with GPUs or without.

    Attributes:
        name: name of the pool.
        shape: OCI shape.
        size: initial number of nodes.
        limits: minimum and maximum number of nodes.
        autoscaled: whether the cluster autoscaler decides the number of nodes.
        kubernetes_version: version of the nodes.
        image_id: existing image; None if an image is imported or OKE's newest one is used.
        image_import: image to import; None if there is none.
        max_pods: maximum number of pods on a node.
        labels: labels of the nodes.
        taints: taints of the nodes.
        cycling: replacement of nodes after changes; None if existing nodes are not changed.
        ssh_public_key: SSH key that may sign in to nodes.
        protect: whether deletion and replacement are refused.
        options: settings passed unchanged from the stack file to the component, by the component's arguments.
    """

    name: str
    shape: str
    size: int
    limits: SizeLimits
    autoscaled: bool
    kubernetes_version: str
    image_id: str | None
    image_import: ImageImport | None
    max_pods: int
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cycling: CyclingPlan | None
    ssh_public_key: str | None
    protect: bool
    options: Mapping[str, object]


@dataclass(frozen=True)
class GpuPoolPlan(NodesPlan):
    """GPU pool of a created cluster. An existing pool (`pool_id`) has no image and may have no availability domain.

    Attributes:
        pool_id: existing pool; None if the pool is created.
        availability_domain: availability domain of the nodes.
        fault_domains: fault domains of the nodes; None for any.
        topology_manager_policy: kubelet's Topology Manager policy.
        file_storage: whether nodes mount the model cache's file system over NFS.
        rdma_in_pods: whether pods have RDMA devices of their own.
        agent_logs: whether Oracle's agent on self-managed nodes sends logs.
        drain_minutes: maximum time in minutes that a node is drained before its termination.
    """

    pool_id: str | None
    availability_domain: str
    fault_domains: tuple[str, ...] | None
    topology_manager_policy: str | None
    file_storage: bool
    rdma_in_pods: bool
    agent_logs: bool
    drain_minutes: int


@dataclass(frozen=True)
class CpuPoolPlan(NodesPlan):
    """Pool without GPUs of a created cluster. If `availability_domains` is empty, OCI is asked for those of
    the region.
    """

    availability_domains: tuple[str, ...]


@dataclass(frozen=True)
class OciAlarmsPlan:
    """Alarms of OCI Monitoring to create, as rows of the catalogue, and the mail addresses or the existing topic of OCI
    Notifications that they notify.
    """

    rows: tuple[OciAlarm, ...]
    recipients: tuple[str, ...]
    topic_id: str | None


@dataclass(frozen=True)
class OciMonitoringPlan:
    """Alarms of OCI Monitoring and logs of OCI Logging to create; None where the stack has no alarms, or no logs."""

    alarms: OciAlarmsPlan | None
    logs: OciLogs | None


@dataclass(frozen=True)
class ClusterPlan:
    """Everything that a stack creates besides models: network, IAM policies, pools, add-ons, storage and cluster
    autoscaler.

    The first of `cpu_pools` is the system pool. `cluster_id` is that of an existing cluster, whose `kubeconfig` is
    requested from OCI if None. Pods have addresses of the VCN if `pods_cidr` is None. `storage` is None if no file
    system is created; `autoscaler` is the cluster autoscaler add-on, None if no pool is autoscaled; `node_repair` tells
    whether OKE repairs GPU nodes on request by a label. `budget` is that of the compartment, None if there is none, and
    `oci_monitoring` has OCI's alarms and logs, None for neither.
    """

    cluster_name: str
    region: str
    compartment_id: str
    tenancy_id: str
    kubernetes_version: str
    cluster_id: str | None
    public_api: bool
    flannel: bool
    pods_cidr: str | None
    services_cidr: str
    kms_key_id: str | None
    image_policy_key_ids: tuple[str, ...] | None
    oidc: Oidc | None
    oidc_discovery: bool
    protect: bool
    kubeconfig: str | None
    tags: TagsPlan
    network: NetworkPlan
    iam: IamPlan
    gpu_pools: tuple[GpuPoolPlan, ...]
    cpu_pools: tuple[CpuPoolPlan, ...]
    add_ons: tuple[AddOn, ...]
    storage: StoragePlan | None
    autoscaler: AddOn | None
    node_repair: Literal["none", "on-request"]
    budget: BudgetConfig | None
    oci_monitoring: OciMonitoringPlan | None

    @property
    def pools(self) -> tuple[GpuPoolPlan | CpuPoolPlan, ...]:
        """All pools of the created cluster, those with GPUs first."""
        return (*self.gpu_pools, *self.cpu_pools)

    @property
    def autoscaled(self) -> tuple[GpuPoolPlan | CpuPoolPlan, ...]:
        """Pools whose number of nodes the cluster autoscaler decides."""
        return tuple(pool for pool in self.pools if pool.autoscaled)

    def without_protection(self) -> "ClusterPlan":
        """Return a copy of the plan in which an update may delete and replace cluster, network and pools."""
        return replace(
            self,
            protect=False,
            network=replace(self.network, protect=False),
            gpu_pools=tuple(replace(pool, protect=False) for pool in self.gpu_pools),
            cpu_pools=tuple(replace(pool, protect=False) for pool in self.cpu_pools),
        )
