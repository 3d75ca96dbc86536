"""What pools of nodes have in common, and the pools without GPUs."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmd_oke.config.base import Items, Part
from llmd_oke.config.names import DnsLabel
from llmd_oke.config.node_scaling import AutoscaledSize, FixedSize, NodeScaling, SizeLimits
from llmd_oke.config.oci_names import AvailabilityDomain, Checksum, HttpsUrl, KubernetesVersion, Ocid

LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
PERCENT_OR_COUNT = r"^[0-9]+%?$"

WORDS = {
    LABEL_KEY: "a Kubernetes label key such as example.com/team",
    LABEL_VALUE: "a Kubernetes label value: letters, digits, dashes, dots and underscores",
    PERCENT_OR_COUNT: "a number of nodes or a percentage, such as 1 or 25%",
}
"""The patterns in words."""

LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY, max_length=253)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]
PercentOrCount = Annotated[str, StringConstraints(pattern=PERCENT_OR_COUNT)]


class ImageImport(Part):
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


class Image(Part):
    """The image that nodes boot from: one of the two."""

    ocid: Ocid | None = None
    """An image that is there already."""

    import_: Annotated[ImageImport | None, Field(alias="import")] = None
    """An image that this stack imports."""


class Taint(Part):
    """A taint that nodes register with."""

    key: LabelKey
    """Its key."""

    value: LabelValue = ""
    """Its value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    """What it does to pods that don't tolerate it."""


class Cycling(Part):
    """How OKE replaces the nodes of a managed pool after a change of image, version or metadata."""

    mode: Literal["replace-node", "replace-boot-volume"] = "replace-node"
    """`replace-node`: another instance; `replace-boot-volume`: the same instance with a new boot volume, the only way
    that needs no spare GPU node.
    """

    max_surge: PercentOrCount = "0"
    """Nodes that may be added meanwhile."""

    max_unavailable: PercentOrCount = "1"
    """Nodes that may be missing meanwhile."""


class SystemPool(Part):
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

    boot_volume_gib: Annotated[int, Field(ge=50, le=32768)] = 128
    """Size of the boot volume in GiB."""

    kubernetes_version: KubernetesVersion | None = None
    """Version of the nodes; the cluster's if left out."""

    max_pods: Annotated[int, Field(ge=1, le=110)] | None = None
    """Pods of a node with a VCN-native network; what the shape's VNICs carry if left out."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Further labels of the nodes."""

    cycling: Cycling | None = None
    """Replace nodes after a change; old nodes stay as they are if left out."""

    @property
    def limits(self) -> SizeLimits:
        """The fewest and the most nodes: the system pool never changes its size, because the autoscaler runs on it."""
        return SizeLimits(self.size, self.size)


class CpuPool(SystemPool):
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
        """Whether the cluster autoscaler decides how many nodes there are."""
        return isinstance(self.scaling, AutoscaledSize)
