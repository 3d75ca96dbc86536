"""Pools of nodes, with GPUs or without."""

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
"""Kubernetes' own limit for the pods of a node."""

CPU_BOOT_VOLUME_GIB = 128
GPU_BOOT_VOLUME_GIB = 512
GPU_MAX_PODS = 64
"""What pools have that say nothing else: in stack files, and as components of other programs."""

Launch = Literal["managed-compute-cluster", "cluster-network", "compute-cluster-instances", "plain"]


class ImageImport(ConfigPart):
    """An image file that is imported into the compartment."""

    name: str
    """Name of the image in the catalogue, which knows its operating system and the shapes that it is made for."""

    uri: HttpsUrl | None = None
    """Where the file lies in Object Storage, if anyone may read it. A link with a pre-authenticated request is a
    secret: leave this out, and give the link with `pulumi config set --secret --path llmd-oke:imageLinks.<pool>`, by
    the name of the pool (`system` for the system pool). Links expire, so that a changed one alone imports nothing
    again.
    """

    checksum: Checksum
    """What the file is: `md5:` as Object Storage states it for the object, or `sha256:`. A changed checksum imports
    the image again.
    """


class Image(ConfigPart):
    """The image that nodes boot from: one of the two."""

    ocid: Ocid | None = None
    """An image that is there already."""

    import_: Annotated[ImageImport | None, Field(alias="import")] = None
    """An image that this stack imports."""


class Taint(ConfigPart):
    """A taint that nodes register with."""

    key: LabelKey
    """Its key."""

    value: LabelValue = ""
    """Its value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """What it does to pods that don't tolerate it."""


CycleMode = Literal["replace-node", "replace-boot-volume"]


class Cycling(ConfigPart):
    """Replacement of a managed pool's nodes by OKE after a change of image, version or metadata. What is left out
    returns no machine before there is another one.
    """

    mode: CycleMode | None = None
    """`replace-node`: another instance; `replace-boot-volume`: the same instance with a new boot volume, the only way
    that needs no spare GPU node, for changes of image, version, metadata, and key or size of the boot volume. If left
    out, `replace-boot-volume` for GPU nodes and `replace-node` for others.
    """

    max_surge: PercentOrCount | None = None
    """Nodes that may be added meanwhile; if left out 1 with `replace-node`, else 0."""

    max_unavailable: PercentOrCount | None = None
    """Nodes that may be missing meanwhile; 0 if left out where nodes may be added, else 1."""


class SizeLimits(NamedTuple):
    """The fewest and the most nodes that a pool may have."""

    least: int
    most: int


class FixedSize(ConfigPart):
    """The stack file decides: the pool has `size` nodes."""

    mode: Literal["fixed"]
    """`fixed`: the pool has `size` nodes. An update that reads what is there (`pulumi up --refresh`) gives the pool its
    `size` again where something else has changed it.
    """

    def limits(self, size: int) -> SizeLimits:
        """The limits of a pool of that size."""
        return SizeLimits(size, size)


class AutoscaledSize(ConfigPart):
    """OKE's cluster autoscaler decides: it adds nodes for pods that find no room, and takes nodes that are empty."""

    mode: Literal["cluster-autoscaler"]
    """`cluster-autoscaler`: `size` is what the pool starts with; no update changes the number of nodes after that."""

    min_size: Size
    """Nodes that stay, whatever the load. At least one: the autoscaler learns from a node that is there what the others
    would have.
    """

    max_size: Size
    """Nodes at the highest load. The tenancy's limits and the network must have room for all of them."""

    def limits(self, _size: int) -> SizeLimits:
        """The limits of a pool that starts with some size."""
        return SizeLimits(self.min_size, self.max_size)


NodeScaling = Annotated[FixedSize | AutoscaledSize, Field(discriminator="mode")]
"""One of the two, by `mode`."""


class SystemPoolConfig(ConfigPart):
    """The nodes without GPUs that controllers, routers and monitoring run on; GPU nodes are tainted."""

    shape: str = "VM.Standard.E5.Flex"
    """OCI shape of the nodes."""

    ocpus: Annotated[float, Field(ge=1, le=256)] = 16
    """OCPUs of each node, for flexible shapes. So large a node holds three routers and what the cluster itself runs."""

    memory_gib: Annotated[float, Field(ge=4, le=4096)] = 64
    """Memory of each node in GiB, for flexible shapes."""

    size: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of nodes."""

    availability_domains: Items[AvailabilityDomain] = ()
    """Where the nodes are placed; all availability domains of the region if left out, which asks OCI at preview."""

    image: Image | None = None
    """Image of the nodes; the newest OKE image of the version if left out, which asks OCI at preview."""

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = CPU_BOOT_VOLUME_GIB
    """Size of the boot volume in GiB."""

    kubernetes_version: KubernetesVersion | None = None
    """Version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=MAX_PODS)] | None = None
    """Pods of a node with a VCN-native network; what the shape's VNICs carry if left out."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Further labels of the nodes."""

    cycling: Cycling | None = None
    """Replace nodes after a change; old nodes stay as they are if left out."""

    @property
    def limits(self) -> SizeLimits:
        """The fewest and the most nodes: the system pool never changes its size, because the autoscaler runs on it."""
        return SizeLimits(self.size, self.size)


class CpuPoolConfig(SystemPoolConfig):
    """A further pool of nodes without GPUs."""

    name: DnsLabel
    """Name of the pool; its nodes carry it as label `oke.oraclecloud.com/pool.name`."""

    taints: Items[Taint] = ()
    """Taints of the nodes."""

    scaling: NodeScaling = FixedSize(mode="fixed")
    """Who decides how many nodes there are: the stack file, or OKE's cluster autoscaler."""

    @property
    def limits(self) -> SizeLimits:
        """The fewest and the most nodes."""
        return self.scaling.limits(self.size)

    @property
    def autoscaled(self) -> bool:
        """True if the cluster autoscaler decides how many nodes there are."""
        return isinstance(self.scaling, AutoscaledSize)


class GpuPoolConfig(ConfigPart):
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

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = GPU_BOOT_VOLUME_GIB
    """Size of the boot volume in GiB."""

    boot_volume_vpus_per_gb: Annotated[int, Field(ge=0, le=120)] | None = None
    """Performance of the boot volume in VPUs for each GB."""

    boot_volume_kms_key_id: Ocid | None = None
    """Key that the boot volumes are encrypted with; Oracle's own if left out."""

    kubernetes_version: KubernetesVersion | None = None
    """Version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=MAX_PODS)] = GPU_MAX_PODS
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
        """True if the cluster autoscaler decides how many nodes there are."""
        return isinstance(self.scaling, AutoscaledSize)
