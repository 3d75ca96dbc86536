"""Pools of GPU nodes."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Items, Part
from llmd_oke.config.names import DnsLabel
from llmd_oke.config.node_pools import Cycling, Image, LabelKey, LabelValue, Taint
from llmd_oke.config.node_scaling import AutoscaledSize, FixedSize, NodeScaling, SizeLimits
from llmd_oke.config.oci_names import AvailabilityDomain, FaultDomain, KubernetesVersion, Ocid

Launch = Literal["managed-compute-cluster", "cluster-network", "compute-cluster-instances", "plain"]


class GpuPool(Part):
    """Nodes of one GPU shape. In an existing cluster this states what is there; nothing is created."""

    name: DnsLabel
    """Name of the pool; its nodes carry it as label `oke.oraclecloud.com/pool.name`."""

    shape: str
    """OCI shape of the nodes, for example `BM.GPU.MI300X.8`."""

    size: Annotated[int, Field(ge=1, le=1000)]
    """Number of nodes; what the pool starts with where the cluster autoscaler decides (`scaling`)."""

    scaling: NodeScaling = FixedSize(mode="fixed")
    """Who decides how many nodes there are: the stack file, or OKE's cluster autoscaler. The autoscaler needs a pool of
    OKE: `launch` of `managed-compute-cluster` or `plain`.
    """

    launch: Launch = "managed-compute-cluster"
    """How the nodes come about: `managed-compute-cluster`, a node pool of OKE in a compute cluster; `cluster-network`,
    self-managed, all nodes or none; `compute-cluster-instances`, self-managed, one instance for each node; `plain`, a
    node pool of OKE without the RDMA network.
    """

    pool_id: Ocid | None = None
    """A pool that is there already (node pool or cluster network); then nothing of it is created or changed."""

    compute_cluster_id: Ocid | None = None
    """A compute cluster that is there already."""

    availability_domain: AvailabilityDomain | None = None
    """Where the nodes are. A compute cluster or cluster network never spans availability domains. Needed to create."""

    fault_domains: Items[FaultDomain] = ()
    """Fault domains that the nodes may be in; all if left out."""

    capacity_reservation_id: Ocid | None = None
    """Capacity reservation that the nodes are taken from."""

    host_group_id: Ocid | None = None
    """Host group that the nodes are placed on."""

    image: Image | None = None
    """Image of the nodes, with GPU driver and RDMA software. Needed to create."""

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = 512
    """Size of the boot volume in GiB."""

    boot_volume_vpus_per_gb: Annotated[int, Field(ge=0, le=120)] | None = None
    """Performance of the boot volume in VPUs for each GB."""

    boot_volume_kms_key_id: Ocid | None = None
    """Key that the boot volumes are encrypted with; Oracle's own if left out."""

    kubernetes_version: KubernetesVersion | None = None
    """Version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=110)] = 64
    """Pods of a node."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Further labels of the nodes."""

    taints: Items[Taint] = ()
    """Further taints of the nodes; those of the shape are always there. The serving layer repeats what the stack of the
    cluster says here, and is refused where a taint is missing.
    """

    nvme: Literal["raid-0", "raid-10", "none"] = "raid-10"
    """What the local disks become: one file system that containers and the model cache live on (`raid-0` has twice the
    room, `raid-10` outlives a disk), or nothing.
    """

    huge_pages_gib: Annotated[int, Field(ge=0, le=1024)] = 0
    """Memory of each node that is set aside as huge pages of 2 MiB, in GiB."""

    topology_manager_policy: Literal["none", "best-effort", "restricted"] | None = None
    """Kubelet's Topology Manager policy: `best-effort` gives a server GPUs and virtual functions of one socket where
    they are free, `restricted` refuses pods for which they aren't; `single-numa-node` would refuse every server that
    has GPUs of both sockets. `best-effort` if left out where the stack has `rdma: sriov-vf`, else `none`.
    """

    topology_manager_scope: Literal["container", "pod"] = "container"
    """What kubelet's Topology Manager aligns: each container, or all containers of a pod together."""

    cycling: Cycling | None = None
    """Replace nodes after a change; old nodes stay as they are if left out."""

    eviction_grace_minutes: Annotated[int, Field(ge=0, le=60)] | None = None
    """How long OKE drains a node before it goes by force, in minutes; 5 if left out, and 60 with `cycling`."""

    ready_timeout_minutes: Annotated[int, Field(ge=1, le=360)] = 90
    """How long the update waits for the nodes to be Ready with all their GPUs, in minutes: for all of a fixed pool, for
    those that the first servers need where the cluster autoscaler decides.
    """

    @property
    def limits(self) -> SizeLimits:
        """The fewest and the most nodes."""
        return self.scaling.limits(self.size)

    @property
    def autoscaled(self) -> bool:
        """Whether the cluster autoscaler decides how many nodes there are."""
        return isinstance(self.scaling, AutoscaledSize)
