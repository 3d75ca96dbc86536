"""Pools of nodes in the stack file, with GPUs or without."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from llmd_oke.config.base import (
    AvailabilityDomain,
    Checksum,
    ConfigPart,
    DnsLabel,
    FaultDomain,
    HttpsUrl,
    Items,
    KubernetesVersion,
    LabelKey,
    LabelValue,
    Ocid,
    matching,
)

PercentOrCount = Annotated[str, matching(r"^[0-9]+%?$", "a number of nodes or a percentage, such as 1 or 25%")]
Size = Annotated[int, Field(ge=1, le=1000)]

MAX_PODS = 110
"""Kubernetes' maximum number of pods per node."""

CPU_BOOT_VOLUME_GIB = 128
GPU_BOOT_VOLUME_GIB = 512
GPU_MAX_PODS = 64
"""Default maximum number of pods on a GPU node. These three defaults apply in stack files and to the pool components in
other programs.
"""

Launch = Literal["managed-compute-cluster", "cluster-network", "compute-cluster-instances", "plain"]


class ImageImport(ConfigPart):
    """Image file that OCI imports into the compartment."""

    name: str
    """Name of the image in the catalogue, which has its operating system and compatible shapes."""

    uri: HttpsUrl | None = None
    """URL of the file in Object Storage, if the file is public. A URL with a pre-authenticated request is a secret:
    omit this key, and set the URL with `pulumi config set --secret --path llmd-oke:imageLinks.<pool>`, with the name of
    the pool (`system` for the system pool). Such URLs expire: a changed URL alone doesn't import the image again.
    """

    checksum: Checksum
    """Checksum of the file: `md5:` as Object Storage reports it for the object, or `sha256:`. A changed checksum
    imports the image again.
    """


class Image(ConfigPart):
    """Image that nodes boot from: either `ocid` or `import`."""

    ocid: Ocid | None = None
    """OCID of an existing image."""

    import_: Annotated[ImageImport | None, Field(alias="import")] = None
    """Image that this stack imports."""


class Taint(ConfigPart):
    """Taint that nodes register with."""

    key: LabelKey
    """Key of the taint."""

    value: LabelValue = ""
    """Value of the taint."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """Effect of the taint on pods that don't tolerate it."""


CycleMode = Literal["replace-node", "replace-boot-volume"]


class Cycling(ConfigPart):
    """Replacement of a managed pool's nodes by OKE after a change of image, version or metadata. By default OKE never
    terminates an instance before its successor exists.
    """

    mode: CycleMode | None = None
    """`replace-node`: OKE replaces the instance. `replace-boot-volume`: OKE replaces the boot volume of the same
    instance; this is the only mode that needs no spare GPU node, and applies to changes of image, version, metadata,
    and key or size of the boot volume. If left out, `replace-boot-volume` for GPU nodes and `replace-node` for others.
    """

    max_surge: PercentOrCount | None = None
    """Nodes that may be added during the replacement; if left out, 1 with `replace-node`, else 0."""

    max_unavailable: PercentOrCount | None = None
    """Nodes that may be missing during the replacement; if left out, 0 where nodes may be added, else 1."""


class SizeLimits(NamedTuple):
    """Minimum and maximum number of nodes of a pool."""

    least: int
    most: int


class FixedSize(ConfigPart):
    """Fixed size: the pool has `size` nodes."""

    mode: Literal["fixed"]
    """`fixed`: the pool has `size` nodes. If something else changes the number, an update with refresh (`pulumi up
    --refresh`) restores `size`.
    """

    def limits(self, size: int) -> SizeLimits:
        """Return the limits of a pool with `size` nodes."""
        return SizeLimits(size, size)


class AutoscaledSize(ConfigPart):
    """Size decided by OKE's cluster autoscaler: it adds nodes for pods that can't be scheduled, and removes empty
    nodes.
    """

    mode: Literal["cluster-autoscaler"]
    """`cluster-autoscaler`: `size` is the initial number of nodes; updates don't change the number after that."""

    min_size: Size
    """Minimum number of nodes. At least one: the autoscaler derives the resources of new nodes from an existing node.
    """

    max_size: Size
    """Maximum number of nodes. The tenancy's service limits and the network must have room for all of them."""

    def limits(self, _size: int) -> SizeLimits:
        """Return the limits of the pool, whatever its initial size."""
        return SizeLimits(self.min_size, self.max_size)


NodeScaling = Annotated[FixedSize | AutoscaledSize, Field(discriminator="mode")]
"""Either a fixed or an autoscaled size, by `mode`."""


class SystemPoolConfig(ConfigPart):
    """Nodes without GPUs for controllers, routers and monitoring; GPU nodes are tainted, so that these pods don't run
    there.
    """

    shape: str = "VM.Standard.E5.Flex"
    """OCI shape of the nodes."""

    ocpus: Annotated[float, Field(ge=1, le=256)] = 16
    """OCPUs of each node, for flexible shapes. The default is enough for three routers and the cluster's own pods on a
    node.
    """

    memory_gib: Annotated[float, Field(ge=4, le=4096)] = 64
    """Memory of each node in GiB, for flexible shapes."""

    size: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of nodes."""

    availability_domains: Items[AvailabilityDomain] = ()
    """Availability domains of the nodes; if left out, all of the region, looked up in OCI at preview."""

    image: Image | None = None
    """Image of the nodes; if left out, the newest OKE image for the Kubernetes version, looked up in OCI at preview."""

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = CPU_BOOT_VOLUME_GIB
    """Size of the boot volume in GiB."""

    kubernetes_version: KubernetesVersion | None = None
    """Kubernetes version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=MAX_PODS)] | None = None
    """Maximum number of pods on a node with a VCN-native pod network; if left out, the number that the shape's VNICs
    support.
    """

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Additional labels of the nodes."""

    cycling: Cycling | None = None
    """Replacement of nodes by OKE after a change; existing nodes are not changed if left out."""

    @property
    def limits(self) -> SizeLimits:
        """Minimum and maximum number of nodes. They are equal: the system pool is never autoscaled, because the
        autoscaler runs on it.
        """
        return SizeLimits(self.size, self.size)


class CpuPoolConfig(SystemPoolConfig):
    """Additional pool of nodes without GPUs."""

    name: DnsLabel
    """Name of the pool, which is the value of the nodes' label `oke.oraclecloud.com/pool.name`."""

    taints: Items[Taint] = ()
    """Taints of the nodes."""

    scaling: NodeScaling = FixedSize(mode="fixed")
    """Number of nodes: fixed by the stack file, or decided by OKE's cluster autoscaler."""

    @property
    def limits(self) -> SizeLimits:
        """Minimum and maximum number of nodes."""
        return self.scaling.limits(self.size)

    @property
    def autoscaled(self) -> bool:
        """True if the cluster autoscaler decides the number of nodes."""
        return isinstance(self.scaling, AutoscaledSize)


class GpuPoolConfig(ConfigPart):
    """Pool of nodes with one GPU shape. In an existing cluster the entry describes existing nodes; nothing is
    created.
    """

    name: DnsLabel
    """Name of the pool, which is the value of the nodes' label `oke.oraclecloud.com/pool.name`."""

    shape: str
    """OCI shape of the nodes, for example `BM.GPU.MI300X.8`."""

    size: Annotated[int, Field(ge=1, le=1000)]
    """Number of nodes; the initial number if the cluster autoscaler decides it (`scaling`)."""

    scaling: NodeScaling = FixedSize(mode="fixed")
    """Number of nodes: fixed by the stack file, or decided by OKE's cluster autoscaler. The autoscaler works only on
    OKE node pools: `launch` of `managed-compute-cluster` or `plain`.
    """

    launch: Launch = "managed-compute-cluster"
    """Launch mode of the nodes. `managed-compute-cluster`: a node pool of OKE in a compute cluster. `cluster-network`:
    self-managed nodes of a cluster network, which starts either all nodes or none. `compute-cluster-instances`:
    self-managed nodes, one instance resource each. `plain`: a node pool of OKE without RDMA network.
    """

    pool_id: Ocid | None = None
    """Existing pool (node pool or cluster network); it is neither created nor changed."""

    compute_cluster_id: Ocid | None = None
    """Existing compute cluster."""

    availability_domain: AvailabilityDomain | None = None
    """Availability domain of the nodes; needed to create the pool. A compute cluster or cluster network never spans
    availability domains.
    """

    fault_domains: Items[FaultDomain] = ()
    """Fault domains that the nodes may be placed in; all if left out."""

    capacity_reservation_id: Ocid | None = None
    """Capacity reservation that the instances use."""

    host_group_id: Ocid | None = None
    """Host group that the instances are placed on."""

    image: Image | None = None
    """Image of the nodes, with GPU driver and RDMA software; needed to create the pool."""

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = GPU_BOOT_VOLUME_GIB
    """Size of the boot volume in GiB."""

    boot_volume_vpus_per_gb: Annotated[int, Field(ge=0, le=120)] | None = None
    """Performance of the boot volume in VPUs per GB."""

    boot_volume_kms_key_id: Ocid | None = None
    """Key that encrypts the boot volumes; Oracle's own if left out."""

    kubernetes_version: KubernetesVersion | None = None
    """Kubernetes version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=MAX_PODS)] = GPU_MAX_PODS
    """Maximum number of pods on a node."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Additional labels of the nodes."""

    taints: Items[Taint] = ()
    """Additional taints of the nodes; the taints of the shape are always set. A stack of the serving layer must repeat
    the taints from the cluster's stack: it is refused if one is missing.
    """

    nvme: Literal["raid-0", "raid-10", "none"] = "raid-10"
    """Use of the local NVMe disks: `raid-0` or `raid-10`, one file system for containers and the model cache (`raid-0`
    has twice the capacity, `raid-10` survives the failure of a disk); `none`, the disks are not configured.
    """

    huge_pages_gib: Annotated[int, Field(ge=0, le=1024)] = 0
    """Memory of each node reserved as huge pages of 2 MiB, in GiB."""

    topology_manager_policy: Literal["none", "best-effort", "restricted"] | None = None
    """Kubelet's Topology Manager policy. `best-effort` gives a server GPUs and virtual functions of one socket if they
    are free; `restricted` refuses pods for which they aren't. `single-numa-node` isn't available: it would refuse every
    server with GPUs of both sockets. If left out, `best-effort` where the stack has `rdma: sriov-vf`, else `none`.
    """

    topology_manager_scope: Literal["container", "pod"] = "container"
    """Scope of kubelet's Topology Manager alignment: each container, or all containers of a pod together."""

    cycling: Cycling | None = None
    """Replacement of nodes by OKE after a change; existing nodes are not changed if left out."""

    eviction_grace_minutes: Annotated[int, Field(ge=0, le=60)] | None = None
    """Time in minutes that OKE drains a node before it terminates the node regardless; if left out 5, or 60 with
    `cycling`.
    """

    ready_timeout_minutes: Annotated[int, Field(ge=1, le=360)] = 90
    """Time in minutes that the update waits for nodes to be Ready with all their GPUs: for all nodes of a fixed pool,
    for those that the first servers need of an autoscaled pool.
    """

    @property
    def limits(self) -> SizeLimits:
        """Minimum and maximum number of nodes."""
        return self.scaling.limits(self.size)

    @property
    def autoscaled(self) -> bool:
        """True if the cluster autoscaler decides the number of nodes."""
        return isinstance(self.scaling, AutoscaledSize)
