"""Plan of what a stack creates beside models: network, rights, pools, add-ons and storage. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmd_oke.catalogue.cluster import Need
from llmd_oke.config import (
    SizeLimits,
)
from llmd_oke.config.cluster import AddOn, Oidc
from llmd_oke.config.pools import CycleMode, ImageImport, Taint
from llmd_oke.config.stack import GpuStack
from llmd_oke.planning.network import NetworkPlan


@dataclass(frozen=True)
class GpuStackPlan:
    """Operators, add-ons, labels and taints by which pods of a cluster get GPUs and RDMA.

    Attributes:
        kind: the choice in the stack file, or the default for the cluster.
        add_ons: OKE cluster add-ons, in the order in which they are to be made.
        components: the kit's own, in that order: `cert-manager`, `node-feature-discovery`, `amd-gpu-operator`,
            `rdma-network`.
        node_labels: labels that GPU nodes need from their start.
        gpu_selector: labels by which the AMD GPU operator finds its nodes.
        tolerations: of the GPU nodes' taints, those of the shapes and those of the pools.
    """

    kind: GpuStack
    add_ons: tuple[AddOn, ...] = ()
    components: tuple[str, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()
    gpu_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class IamNeeds:
    """Rights needed before the cluster and before its pools, and the OCIDs that statements are repeated for."""

    cluster: tuple[Need, ...]
    nodes: tuple[Need, ...]
    resource_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class NodeTag:
    """The defined tag that nodes are known by, `Namespace.Key`, and its value."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class IamPlan(IamNeeds):
    """The dynamic groups and policies of a created cluster, in the tenancy's home region.

    Compartments are the cluster's where they are None. `unique_name` is the beginning of all names: clusters of other
    regions and compartments have groups and policies in the same region.
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
    """Download of weights into the model cache before servers start."""

    source: Literal["hugging-face", "object-storage"]
    connections: int


@dataclass(frozen=True)
class ModelCachePlan:
    """Place where the weights of all models are kept.

    `path` is a folder on nodes' own disks, `capacity_gib` the size of a Lustre file system, `volume_handle` what the
    storage driver knows a file system by that is there already. The first server downloads what it needs where nothing
    pre-warms the cache; where something does, `revisions` are commits by the models' names. `timeout_s` is the limit
    for one model. `compiled_path` is the stack's folder on nodes' own disks for code that servers compile as they
    start; None where it is kept nowhere.
    """

    kind: Literal["node-disk", "file-storage", "lustre"]
    path: str | None
    capacity_gib: int | None
    volume_handle: str | None
    timeout_s: int
    prewarm: PrewarmPlan | None
    revisions: Mapping[str, str] | None
    compiled_path: str | None


@dataclass(frozen=True)
class StoragePlan:
    """A file system that is created for the model cache. Nodes that mount it are `anywhere` in the VCN where pools are
    there already. File Storage has an `export_path`, Lustre a capacity in GB and a tier.
    """

    kind: Literal["file-storage", "lustre"]
    availability_domain: str
    anywhere: bool
    export_path: str | None = None
    capacity_gb: int | None = None
    performance_tier: str | None = None


@dataclass(frozen=True)
class TagsPlan:
    """Tags of what a stack creates in OCI: free-form ones by key, defined ones by `Namespace.Key`, whose namespaces are
    in the root compartment where none is given. `ignored` are defined ones of others that updates leave alone; without
    own ones they leave all alone.
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
        """True if nodes may be added meanwhile."""
        return self.max_surge not in {"0", "0%"}

    @property
    def shrinks(self) -> bool:
        """True if nodes may be missing meanwhile."""
        return self.max_unavailable not in {"0", "0%"}


@dataclass(frozen=True)
class NodesPlan:
    """The nodes of a pool of a created cluster, with GPUs or without: `size` of them at first, and as few and as many
    as `limits` says later, where the cluster autoscaler decides (`autoscaled`).

    `image_id` is an image that is there, `image_import` the one that is imported instead; with neither, OCI is asked
    for OKE's newest. `options` are what a node pool takes as the stack file says it, by the component's arguments:
    nothing of it depends on anything else.
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
    """A GPU pool of a created cluster; one that is there already (`pool_id`) has no image and may have no availability
    domain.

    `file_storage` says that nodes mount the file system of the model cache over NFS, `rdma_in_pods` that pods have RDMA
    devices of their own. Nodes are in any of the fault domains where those are None. Before a node goes it is drained
    for `drain_minutes` at most.
    """

    pool_id: str | None
    availability_domain: str
    fault_domains: tuple[str, ...] | None
    topology_manager_policy: str | None
    file_storage: bool
    rdma_in_pods: bool
    drain_minutes: int


@dataclass(frozen=True)
class CpuPoolPlan(NodesPlan):
    """A pool without GPUs of a created cluster. OCI is asked for `availability_domains` where there are none."""

    availability_domains: tuple[str, ...]


@dataclass(frozen=True)
class ClusterPlan:
    """Everything that a stack creates beside models: network, rights, pools, add-ons, storage, and who changes pools'
    sizes.

    The first of `cpu_pools` is the system pool. `cluster_id` is that of a cluster that is there already, which OCI is
    asked for the `kubeconfig` of where that is None; pods have addresses of the VCN where `pods_cidr` is None.
    `storage` is None where no file system is created; `autoscaler` is the add-on that changes the size of pools, None
    where it changes none, and `node_repair` says whether OKE repairs a GPU node that somebody labels.
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

    @property
    def pools(self) -> tuple[GpuPoolPlan | CpuPoolPlan, ...]:
        """All pools, those with GPUs first."""
        return (*self.gpu_pools, *self.cpu_pools)

    @property
    def autoscaled(self) -> tuple[GpuPoolPlan | CpuPoolPlan, ...]:
        """The pools whose number of nodes is the cluster autoscaler's."""
        return tuple(pool for pool in self.pools if pool.autoscaled)

    def without_protection(self) -> "ClusterPlan":
        """Return a copy of the plan whose cluster, network and pools an update may delete and replace."""
        return replace(
            self,
            protect=False,
            network=replace(self.network, protect=False),
            gpu_pools=tuple(replace(pool, protect=False) for pool in self.gpu_pools),
            cpu_pools=tuple(replace(pool, protect=False) for pool in self.cpu_pools),
        )
