"""Operators that the kit installs: charts, Helm values, and the custom resources that configure them."""

from typing import Any, Literal, Self

from llmd_base.errors import KitError
from llmd_base.records import document
from pydantic import Field, PositiveFloat, model_validator

from llmd_oke.catalogue.container_images import ContainerImage, LockedImage, locked_image
from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.shapes import NetworkAttachment, Shape
from llmd_oke.config.cluster import AddOn
from llmd_oke.config.engine import KvConnectorName
from llmd_oke.values import Entry, entry, entry_reader, follows_project, required_entry

_OCI = "oci://"


class HelmChart(Entry):
    """Published Helm chart: either an OCI reference, which the lock of container images pins like an image, or a name
    in a chart repository with the SHA-256 of the archive (if it is None, `reason` says why). Helm verifies the digest
    of a reference (Helm, pkg/registry/client.go: ValidateReference), but not archives of chart repositories.
    """

    reference: str
    version: str
    repository: str | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    reason: str | None = None
    digest: str | None = None
    """Digest of a copy in a private registry, which the lock doesn't have."""

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
        """Chart in an OCI registry, with the lock's digest; None for a chart of a chart repository."""
        if self.repository is not None:
            return None
        image = locked_image(f"{self.reference.removeprefix(_OCI)}:{self.version.replace('+', '_')}")
        return image.model_copy(update={"digest": self.digest}) if self.digest else image

    @property
    def published(self) -> ContainerImage:
        """Chart as an image reference, which its copy in a private registry is named by. For a chart of a chart
        repository, host and path of the repository take the place of the registry.
        """
        if self.repository is None:
            assert self.artifact is not None  # noqa: S101 - a chart without a repository is in a registry
            return self.artifact
        registry, _, path = self.repository.partition("://")[2].partition("/")
        repository = "/".join(part for part in (path, self.reference) if part)
        return ContainerImage(registry=registry, repository=repository, tag=self.version.replace("+", "_"))

    def taken_from(self, mirror: MirrorRegistry) -> "HelmChart":
        """Return the chart's copy in a private registry."""
        copy = mirror.copy_of(self.published)
        return HelmChart(reference=f"{_OCI}{copy.registry}/{copy.repository}", version=self.version, digest=copy.digest)

    @property
    def pinned(self) -> str:
        """Reference of the chart for Helm, with the digest if known."""
        digest = self.artifact.digest if self.artifact else None
        return f"{self.reference}@{digest}" if digest else self.reference


class ImagePlace(Entry):
    """Position of an image in Helm values.

    Attributes:
        at: path of keys in the values.
        image: image at this position.
        in_parts: whether the value is a map of repository and tag instead of one text.
        digest_key: key of the digest if the value is a map with separate registry and digest: `sha` and `digest`
            include the name of the digest's algorithm, `sha-without-algorithm` is `sha` without it. None if the value
            has no separate digest.
    """

    at: tuple[str, ...]
    image: LockedImage
    in_parts: bool = False
    digest_key: Literal["sha", "sha-without-algorithm", "digest"] | None = None

    @property
    def value(self) -> str | dict[str, str]:
        """Text or map that a chart's values have for the image at this position."""
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
    """Operator that the kit installs as a Helm release.

    Attributes:
        name: name of the operator.
        release: name of the Helm release.
        namespace: namespace of the release.
        chart: Helm chart.
        timeout_s: maximum time in seconds that Helm waits for readiness.
        values: Helm values.
        images: all images in the values, including the chart's defaults.
        oldest_minor: oldest minor version of Kubernetes 1 that the chart accepts.
        tolerations_at: path in the values of the tolerations for GPU nodes.
        pull_secrets_at: path in the values of the image pull Secrets.
        images_of: version of the chart whose images these are, needed if their tags don't contain it, so that a new
            chart version forces a review of the images.
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
        """Return the operator with its chart and images from a private registry; unchanged if `mirror` is None."""
        if mirror is None:
            return self
        values = _with_pull_secret(self.values, self.pull_secrets_at, mirror.pull_secret)
        copies = {"chart": self.chart.taken_from(mirror), "images": _copies(self.images, mirror)}
        return self.model_copy(update={**copies, "values": values})


class PublishedManifest(Entry):
    """YAML file of Kubernetes objects that another project publishes, with its SHA-256."""

    url: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PolicyEngineNode(Entry):
    """Changes that the kit makes to the policy engine's DaemonSet `name` for its use with OKE's own pod network."""

    name: str
    removed_environment: tuple[str, ...]
    removed_volumes: tuple[str, ...]
    environment: dict[str, str]


class PolicyEngine(Entry):
    """Engine that enforces NetworkPolicies: its manifest, without the objects of `left_out` (`Kind/name`), and the
    images of the remaining objects. `timeout_s` is the maximum time in seconds for each object to become ready.
    """

    name: str
    version: str
    manifest: PublishedManifest
    left_out: frozenset[str]
    node: PolicyEngineNode
    timeout_s: int
    images: tuple[LockedImage, ...]


class NodeOperations(Entry):
    """Custom resources by which OKE reboots or repairs a node after somebody labels it: their kind, and the actions by
    the label's value.

    `definition_timeout_s` is the limit in seconds of the wait for the kind's definition; `max_parallelism` is the
    maximum number of nodes that one resource acts on at a time.
    """

    api_version: str
    kind: str
    definition: str
    definition_timeout_s: int
    trigger_label: str
    max_parallelism: int = Field(ge=1, le=20)
    actions: dict[str, Literal["reboot", "replaceBootVolume"]]


class DeviceConfig(Entry):
    """Custom resource of the AMD GPU operator. The `images` are inserted into its `spec`; `tolerations_at` are the
    paths in `spec` of the tolerations for GPU nodes, `pull_secrets_at` is that of the image pull Secrets.
    """

    name: str
    api_version: str
    selector: dict[str, str]
    spec: dict[str, Any]
    images: tuple[ImagePlace, ...]
    tolerations_at: tuple[tuple[str, ...], ...]
    pull_secrets_at: tuple[str, ...]

    def taken_from(self, mirror: MirrorRegistry | None) -> "DeviceConfig":
        """Return the resource with its images from a private registry; unchanged if `mirror` is None."""
        if mirror is None:
            return self
        spec = _with_pull_secret(self.spec, self.pull_secrets_at, mirror.pull_secret)
        return self.model_copy(update={"images": _copies(self.images, mirror), "spec": spec})


def _copies(places: tuple[ImagePlace, ...], mirror: MirrorRegistry) -> tuple[ImagePlace, ...]:
    return tuple(place.model_copy(update={"image": mirror.copy_of(place.image)}) for place in places)


def _with_pull_secret(tree: dict[str, Any], at: tuple[str, ...], secret: str | None) -> dict[str, Any]:
    """Return a copy of a tree with the image pull Secret in the list at the path `at`; the tree itself if `secret` is
    None.
    """
    if secret is None:
        return tree
    first, *further = at
    inner = _with_pull_secret(tree.get(first, {}), tuple(further), secret) if further else [{"name": secret}]
    return {**tree, first: inner}


class PoolConfig(Entry):
    """Maximum number, or percentage, of a pool's nodes that the SR-IOV operator drains at a time while it creates
    virtual functions.
    """

    name: str
    max_unavailable: str


class IpPool(Entry):
    """Address pool of virtual functions; `per_node_block_size` is the number of addresses per node."""

    name: str
    subnet: str
    gateway: str
    per_node_block_size: int


class FunctionPolicy(Entry):
    """Split of RDMA ports into virtual functions; `mtu` in bytes."""

    device_type: str
    mtu: int
    functions_per_port: int
    priority: int


class FunctionNames(Entry):
    """Names of virtual functions for pods: the resource, and the NetworkAttachmentDefinition that adds one to a pod.
    `adapters` is the driver of the adapters that the functions are of.
    """

    adapters: str
    resource: str
    network_attachment: NetworkAttachment


class RdmaAdapters(Entry):
    """Facts about RDMA adapters with one driver: the largest piece of memory that they register, in GB (10^9 bytes),
    None if there is no such limit; the reason why servers on them need an image of the user's own, None if the
    release's works; and known limits, `part_of_ports` of pods that get a part of a node's ports, and `connectors` by
    the KV connector that they apply to.
    """

    largest_region_gb: PositiveFloat | None = None
    own_image: KnownLimit | None = None
    limits: tuple[KnownLimit, ...] = ()
    part_of_ports: KnownLimit | None = None
    connectors: dict[KvConnectorName, KnownLimit] = Field(default={})


class RdmaByFunctions(Entry):
    """Settings of RDMA by virtual functions that don't depend on the shape.

    `names` are those of clusters made by others, by maker, and `adapters` facts about adapters, by the driver that
    their names begin with. `definitions` must be installed first; `definitions_timeout_s` is the limit in seconds of
    the wait for them. `node_states` is the definition of the resource in which the operator reports the state of each
    node.
    """

    namespace: str
    resource_prefix: str
    pool_config: PoolConfig
    ip_pool: IpPool
    policy: FunctionPolicy
    meta_plugins: tuple[dict[str, Any], ...]
    names: dict[str, FunctionNames]
    adapters: dict[str, RdmaAdapters]
    definitions: tuple[str, ...]
    definitions_timeout_s: int
    node_states: str

    @property
    def node_states_resource(self) -> tuple[str, str]:
        """Plural name and API group of the resource in which the operator reports the state of each node."""
        resource, _, group = self.node_states.partition(".")
        return resource, group


class GpuStack(Entry):
    """Requirements of one choice of `gpuStack` or `rdma` in the stack file: OKE add-ons and the kit's components, in
    order, and labels of GPU nodes.
    """

    node_labels: dict[str, str] = Field(default_factory=dict[str, str])
    add_ons: tuple[AddOn, ...] = ()
    components: tuple[str, ...] = ()


class NodeAllowance(Entry):
    """Capacity of each node reserved for everything but routers: CPUs (hardware threads) and memory."""

    cpus: int
    memory_gib: int


class SystemNodes(Entry):
    """Capacity of nodes without GPUs: hardware threads per OCPU, and the capacity reserved for everything but
    routers.
    """

    cpus_per_ocpu: int
    allowance: NodeAllowance


class GpuStacks(Entry):
    """Requirements of all choices of `gpuStack` and `rdma`. `replaces` maps the name of an OKE add-on to the kit's
    component that isn't installed beside it.
    """

    gpu_stacks: dict[str, GpuStack]
    rdma: dict[str, GpuStack]
    replaces: dict[str, str]


class ClusterAutoscaler(Entry):
    """OKE's cluster autoscaler add-on.

    `follows` are the settings that are derived from the stack file; `provision_minutes` is the maximum time for a node
    without GPUs to join; `oldest_minor` the oldest minor version of Kubernetes 1 that has the add-on.
    """

    name: str
    oldest_minor: int
    provision_minutes: int
    configurations: dict[str, str]
    follows: tuple[str, ...]


@follows_project
def operator(name: str) -> Operator:
    """Return the operator with this name.

    Raises:
        KitError: the catalogue has no such operator.
    """
    if (result := entry("operators", name, Operator)) is None:
        raise KitError(f"The catalogue has no operator {name!r}.")
    return result


@follows_project
def policy_engine() -> PolicyEngine:
    """Return the NetworkPolicy engine that the kit can install."""
    return required_entry("operators", "calico", PolicyEngine)


node_operations = entry_reader("operators", "node-repair", NodeOperations)
"""Return the custom resources by which OKE acts on single nodes."""


@follows_project
def device_config() -> DeviceConfig:
    """Return the DeviceConfig of AMD GPU nodes."""
    return required_entry("operators", "device-config", DeviceConfig)


rdma = entry_reader("operators", "rdma", RdmaByFunctions)
"""Return the settings of RDMA in pods by virtual functions of the nodes' ports."""


def with_function_names(shape: Shape, maker: str | None) -> Shape:
    """Return the shape with the names of virtual functions that another cluster's maker chose, one function for each
    adapter, and none where the functions are of other adapters than the shape's; as many as the shape has if its
    adapters aren't known, and unchanged if `maker` is None.

    Raises:
        KitError: the catalogue doesn't have this maker's names.
    """
    if maker is None:
        return shape
    names = rdma().names.get(maker)
    if names is None:
        known = ", ".join(rdma().names)
        raise KitError(f"The catalogue has no names of virtual functions by {maker!r}.", f"Known: {known}.")
    driver, count = driver_of(shape), shape.rdma.virtual_functions
    if driver:
        count = len(shape.rdma.adapters) if driver == names.adapters else 0
    changes = {"virtual_functions": count, **dict(names, adapters=shape.rdma.adapters)}
    return shape.model_copy(update={"rdma": shape.rdma.model_copy(update=changes)})


def driver_of(shape: Shape) -> str:
    """Return the driver of a shape's RDMA adapters, which their names begin with; empty if no names are known."""
    return shape.rdma.adapters[0].partition("_")[0] if shape.rdma.adapters else ""


def virtual_function_makers(shape: Shape) -> list[str]:
    """Return who makes virtual functions of adapters like a shape's, as `cluster.virtualFunctions` names them."""
    return [maker for maker, names in rdma().names.items() if names.adapters == driver_of(shape)]


def rdma_adapters(shape: Shape) -> RdmaAdapters:
    """Return the facts about a shape's RDMA adapters."""
    return rdma().adapters.get(driver_of(shape), RdmaAdapters())


cluster_autoscaler = entry_reader("operators", "cluster-autoscaler", ClusterAutoscaler)
"""Return the settings of OKE's cluster autoscaler add-on."""


gpu_stacks = entry_reader("operators", "gpu-stacks", GpuStacks)
"""Return the requirements of each choice of `gpuStack` and `rdma`."""


system_nodes = entry_reader("operators", "system-nodes", SystemNodes)
"""Return how much of a node without GPUs is left for routers: CPUs per OCPU, and the capacity reserved for other
pods.
"""
