"""Operators that the kit installs: their charts, what they are told, and the custom resources that they act on."""

from functools import cache
from typing import Any, Literal, Self

from llmd_base.errors import KitError
from llmd_base.records import document
from pydantic import Field, model_validator

from llmd_oke.catalogue.container_images import ContainerImage, LockedImage, locked_image
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.shapes import NetworkAttachment, Shape
from llmd_oke.config.cluster import AddOn
from llmd_oke.values import Entry, entry, follows_project, required_entry

_OCI = "oci://"


class HelmChart(Entry):
    """A published chart: an OCI reference, which the lock of container images pins like an image, or a name in a chart
    repository with the SHA-256 of its archive, None with the reason. Helm holds what it fetches to the digest of a
    reference (Helm, pkg/registry/client.go: ValidateReference), and archives of repositories to nothing.
    """

    reference: str
    version: str
    repository: str | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    reason: str | None = None
    digest: str | None = None
    """Of a copy in a private registry, which the lock doesn't have."""

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if self.repository is None and not self.reference.startswith(_OCI):
            raise ValueError("a chart without a repository needs a reference that begins with oci://")
        if (self.repository is not None) != bool(self.sha256 or self.reason):
            raise ValueError(
                "a chart of a repository needs sha256 or the reason why it has none, and no other chart has"
            )
        return self

    @property
    def artifact(self) -> ContainerImage | None:
        """Chart in a registry, with the lock's digest; None for a chart of a repository."""
        if self.repository is not None:
            return None
        image = locked_image(f"{self.reference.removeprefix(_OCI)}:{self.version.replace('+', '_')}")
        return image.model_copy(update={"digest": self.digest}) if self.digest else image

    @property
    def published(self) -> ContainerImage:
        """Chart as it is copied into a private registry, by the name that its registry or its repository gives it."""
        if self.repository is None:
            assert self.artifact is not None  # noqa: S101 - a chart without a repository is in a registry
            return self.artifact
        registry, _, path = self.repository.partition("://")[2].partition("/")
        repository = "/".join(part for part in (path, self.reference) if part)
        return ContainerImage(registry=registry, repository=repository, tag=self.version.replace("+", "_"))

    def taken_from(self, mirror: MirrorRegistry) -> "HelmChart":
        """The chart's copy in a private registry."""
        copy = mirror.copy_of(self.published)
        return HelmChart(reference=f"{_OCI}{copy.registry}/{copy.repository}", version=self.version, digest=copy.digest)

    @property
    def pinned(self) -> str:
        """Reference for Helm, with the digest where it is known."""
        digest = self.artifact.digest if self.artifact else None
        return f"{self.reference}@{digest}" if digest else self.reference


class ImagePlace(Entry):
    """Place of an image in values: in one text, or `in_parts` as a map of repository and tag. With `digest_key` the map
    has registry and digest apart, the digest under that key: `sha` and `digest` with the name of its algorithm,
    `sha-without-algorithm` as `sha` without.
    """

    at: tuple[str, ...]
    image: LockedImage
    in_parts: bool = False
    digest_key: Literal["sha", "sha-without-algorithm", "digest"] | None = None

    @property
    def value(self) -> str | dict[str, str]:
        """Value at the place."""
        image = self.image
        if self.digest_key is not None:
            key, _, without_algorithm = self.digest_key.partition("-")
            digest = image.digest or ""
            own = digest.removeprefix("sha256:") if without_algorithm else digest
            return {**document("registry repository tag", image), key: own}
        if not self.in_parts:
            return image.pinned
        return {"repository": f"{image.registry}/{image.repository}", "tag": image.pinned_tag}


class Operator(Entry):
    """A Helm release. `values` are the chart's, and `images` what of them is an image, its own defaults included.
    `tolerations_at` is their list that tolerates the GPU nodes' taints, `pull_secrets_at` that of the Secrets that
    pods pull with.

    `images_of` is the version of the chart that brings these images, where their own tags don't show it: another chart
    needs another look at them.

    `timeout_s` is how long Helm may wait for all of it to be ready, in seconds; `oldest_minor` the oldest minor version
    of Kubernetes 1 that the chart accepts.
    """

    name: str
    release: str
    namespace: str
    chart: HelmChart
    timeout_s: int
    values: dict[str, Any]
    images: tuple[ImagePlace, ...] = ()
    oldest_minor: int = 0
    tolerations_at: tuple[str, ...] = ()
    pull_secrets_at: tuple[str, ...]
    images_of: str | None = None

    @model_validator(mode="after")
    def _of_this_chart(self) -> Self:
        number = self.chart.version.removeprefix("v")
        others = [place.image.tag for place in self.images if number not in place.image.tag]
        if others and self.images_of != self.chart.version:
            raise ValueError(f"images_of has to say that {', '.join(others)} are what {self.chart.version} brings")
        return self

    def taken_from(self, mirror: MirrorRegistry | None) -> "Operator":
        """The operator with its chart and images from a private registry; as it is if None."""
        if mirror is None:
            return self
        values = _with_pull_secret(self.values, self.pull_secrets_at, mirror.pull_secret)
        copies = {"chart": self.chart.taken_from(mirror), "images": _copies(self.images, mirror)}
        return self.model_copy(update={**copies, "values": values})


class PublishedManifest(Entry):
    """A file of Kubernetes objects that a project publishes."""

    url: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PolicyEngineNode(Entry):
    """Changes of the DaemonSet `name` beside OKE's network."""

    name: str
    removed_environment: tuple[str, ...]
    removed_volumes: tuple[str, ...]
    environment: dict[str, str]


class PolicyEngine(Entry):
    """Engine that enforces network policies: its manifest, without the objects of `left_out` (`Kind/name`), and the
    images of what is left. `timeout_s` is how long each object may take to be ready, in seconds.
    """

    name: str
    version: str
    manifest: PublishedManifest
    left_out: frozenset[str]
    node: PolicyEngineNode
    timeout_s: int
    images: tuple[LockedImage, ...]


class NodeOperations(Entry):
    """Rules by which OKE acts on a node that somebody labels: their kind, and their actions by the label's value.

    `definition_timeout_s` is the limit of the wait for the kind's definition, in seconds; `max_parallelism` how many
    nodes one rule acts on at a time.
    """

    api_version: str
    kind: str
    definition: str
    definition_timeout_s: int
    trigger_label: str
    max_parallelism: int = Field(ge=1, le=20)
    actions: dict[str, Literal["reboot", "replaceBootVolume"]]


class DeviceConfig(Entry):
    """The AMD GPU operator's custom resource. `images` belong into its `spec`; `tolerations_at` are the lists that
    tolerate the GPU nodes' taints, `pull_secrets_at` is that of the Secrets that pods pull with.
    """

    name: str
    api_version: str
    selector: dict[str, str]
    spec: dict[str, Any]
    images: tuple[ImagePlace, ...]
    tolerations_at: tuple[tuple[str, ...], ...]
    pull_secrets_at: tuple[str, ...]

    def taken_from(self, mirror: MirrorRegistry | None) -> "DeviceConfig":
        """The resource with its images from a private registry; as it is if None."""
        if mirror is None:
            return self
        spec = _with_pull_secret(self.spec, self.pull_secrets_at, mirror.pull_secret)
        return self.model_copy(update={"images": _copies(self.images, mirror), "spec": spec})


def _copies(places: tuple[ImagePlace, ...], mirror: MirrorRegistry) -> tuple[ImagePlace, ...]:
    return tuple(place.model_copy(update={"image": mirror.copy_of(place.image)}) for place in places)


def _with_pull_secret(tree: dict[str, Any], at: tuple[str, ...], secret: str | None) -> dict[str, Any]:
    """A copy of a tree with the Secret that pods pull with in its list, where there is one."""
    if secret is None:
        return tree
    first, *further = at
    inner = _with_pull_secret(tree.get(first, {}), tuple(further), secret) if further else [{"name": secret}]
    return {**tree, first: inner}


class PoolConfig(Entry):
    """Limit of nodes that are drained at a time while virtual functions are made: a number or a percentage."""

    name: str
    max_unavailable: str


class IpPool(Entry):
    """The addresses of virtual functions; `per_node_block_size` is how many of them each node gives out."""

    name: str
    subnet: str
    gateway: str
    per_node_block_size: int


class FunctionPolicy(Entry):
    """Split of ports into virtual functions. `mtu` in bytes."""

    device_type: str
    mtu: int
    functions_per_port: int
    priority: int


class FunctionNames(Entry):
    """Names by which pods ask for virtual functions: the resource, and the network that gives a pod one of them."""

    resource: str
    network_attachment: NetworkAttachment


class RdmaByFunctions(Entry):
    """RDMA for pods by virtual functions: all that doesn't depend on the shape.

    `names` are those of clusters that others made, by who did. `definitions` have to be there first;
    `definitions_timeout_s` is the limit of that wait, in seconds. `node_states` is the definition of what the operator
    tells of each node.
    """

    namespace: str
    resource_prefix: str
    pool_config: PoolConfig
    ip_pool: IpPool
    policy: FunctionPolicy
    meta_plugins: tuple[dict[str, Any], ...]
    names: dict[str, FunctionNames]
    definitions: tuple[str, ...]
    definitions_timeout_s: int
    node_states: str

    @property
    def node_states_resource(self) -> tuple[str, str]:
        """The plural and the API group of what the operator tells of each node."""
        resource, _, group = self.node_states.partition(".")
        return resource, group


class GpuStack(Entry):
    """Needs of one choice in the stack file: add-ons and the kit's components, in order, and labels of GPU nodes."""

    node_labels: dict[str, str] = Field(default_factory=dict[str, str])
    add_ons: tuple[AddOn, ...] = ()
    components: tuple[str, ...] = ()


class NodeAllowance(Entry):
    """Allowance of each node for all that isn't a router: processors (hardware threads) and memory."""

    cpus: int
    memory_gib: int


class SystemNodes(Entry):
    """Nodes without GPUs, which routers share with controllers."""

    cpus_per_ocpu: int
    allowance: NodeAllowance


class GpuStacks(Entry):
    """All choices. `replaces` says which component an add-on takes the place of."""

    gpu_stacks: dict[str, GpuStack]
    rdma: dict[str, GpuStack]
    replaces: dict[str, str]


class ClusterAutoscaler(Entry):
    """OKE's add-on that changes the sizes of pools.

    `follows` are those of its settings that follow from the stack file; `provision_minutes` is how long a node without
    GPUs may take to join; `oldest_minor` the oldest minor version of Kubernetes 1 that has it.
    """

    name: str
    oldest_minor: int
    provision_minutes: int
    configurations: dict[str, str]
    follows: tuple[str, ...]


@follows_project
def operator(name: str) -> Operator:
    """The operator of that name.

    Raises:
        KitError: the catalogue has no such operator.
    """
    if (result := entry("operators", name, Operator)) is None:
        raise KitError(f"The catalogue has no operator {name!r}.")
    return result


@follows_project
def policy_engine() -> PolicyEngine:
    """Return what enforces network policies where the kit installs it."""
    return required_entry("operators", "calico", PolicyEngine)


@cache
def node_operations() -> NodeOperations:
    """Return what has OKE act on single nodes."""
    return required_entry("operators", "node-repair", NodeOperations)


@follows_project
def device_config() -> DeviceConfig:
    """The DeviceConfig of AMD GPU nodes."""
    return required_entry("operators", "device-config", DeviceConfig)


@cache
def rdma() -> RdmaByFunctions:
    """RDMA by virtual functions."""
    return required_entry("operators", "rdma", RdmaByFunctions)


def with_function_names(shape: Shape, maker: str | None) -> Shape:
    """The shape with the names that virtual functions have where someone else made them; as it is if None.

    Raises:
        KitError: the catalogue doesn't know that maker's names.
    """
    if maker is None:
        return shape
    names = rdma().names.get(maker)
    if names is None:
        known = ", ".join(rdma().names)
        raise KitError(f"The catalogue has no names of virtual functions by {maker!r}.", f"Known: {known}.")
    return shape.model_copy(update={"rdma": shape.rdma.model_copy(update=dict(names))})


@cache
def cluster_autoscaler() -> ClusterAutoscaler:
    """OKE's add-on that changes the sizes of pools."""
    return required_entry("operators", "cluster-autoscaler", ClusterAutoscaler)


@cache
def gpu_stacks() -> GpuStacks:
    """Read what each choice of `gpuStack` and `rdma` needs."""
    return required_entry("operators", "gpu-stacks", GpuStacks)


@cache
def system_nodes() -> SystemNodes:
    """Read what nodes without GPUs have for routers."""
    return required_entry("operators", "system-nodes", SystemNodes)
