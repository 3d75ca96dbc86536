"""The plan of a stack: what the config means, worked out and checked. Pure data."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llmd_pods.acceptance import CheckName, NodeRequirements

from llmd_oke.catalogue import CatalogueModel, Release, Shape
from llmd_oke.catalogue.cluster import Need
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.entries import ProjectEntry
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.server_settings import ServerSettings
from llmd_oke.catalogue.serving import GatewayProvider
from llmd_oke.config import (
    Cluster,
    Engine,
    ExistingCluster,
    Layer,
    Role,
    RouterConfig,
    Scaling,
    ServersScaling,
    SizeLimits,
    Slo,
    Smoke,
    StackConfig,
    Topology,
    WorkloadConfig,
)
from llmd_oke.config.cluster import AddOn, Oidc
from llmd_oke.config.front_door import Authentication, CacheIsolation, Exposure, LoadBalancer, Tls
from llmd_oke.config.gateway import CreatedGateway
from llmd_oke.config.model import RouterProfileName
from llmd_oke.config.network_policies import NetworkPolicies
from llmd_oke.config.pools import CycleMode, ImageImport, Taint
from llmd_oke.config.stack import GpuStack, Override
from llmd_oke.planning.network import NetworkPlan


@dataclass(frozen=True)
class Memory:
    """How one server of a role fits its GPUs, in GiB over all of them; `key_value_tokens` is a bound, not a
    measurement. `state_tokens` are those whose room the state of a sequence takes, in layers of linear attention.
    """

    gpu_gib: float
    weights_gib: float
    activation_gib: float
    key_value_gib: float
    key_value_tokens: int
    state_tokens: int = 0

    def sequences(self, tokens: int) -> int:
        """Sequences of that many tokens that the KV cache holds at a time."""
        return self.key_value_tokens // (tokens + self.state_tokens)


@dataclass(frozen=True)
class Rollout:
    """How a Deployment replaces its pods: counts of pods."""

    max_surge: int
    max_unavailable: int


UpdateWay = Literal["rolling", "beside", "one by one", "outage"]
"""How servers of another version, or of another tensor parallel size, take the place of the old ones.

`beside`: as another unit, which gets the requests when it is ready, before the old one goes. Where there is no room for
all servers twice: `rolling`, pod by pod, if servers work alone; if they hand KV cache over, the old ones of a unit go
before the new ones come, `one by one` of several units or else with an `outage`.
"""


@dataclass(frozen=True)
class RolePlan:
    """The servers of one role in one unit, each started with `settings`. Timeouts in seconds.

    With `scaling`, `replicas` is what is started with.
    """

    settings: ServerSettings
    replicas: int
    memory: Memory
    rollout: Rollout
    startup_budget_s: int
    create_timeout_s: int
    update_timeout_s: int
    scaling: ServersScaling | None = None

    @property
    def role(self) -> Role:
        """What the servers do."""
        return self.settings.role

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs of each server."""
        return self.settings.tensor_parallel_size

    @property
    def virtual_functions(self) -> int:
        """Virtual functions of each server."""
        return self.settings.virtual_functions

    @property
    def autoscaled(self) -> bool:
        """Whether the number of servers follows the load."""
        return self.scaling is not None

    @property
    def most_replicas(self) -> int:
        """The most servers that there may ever be."""
        return self.scaling.max_replicas if self.scaling else self.replicas

    @property
    def gpus(self) -> int:
        """GPUs of all servers of the role."""
        return self.replicas * self.tensor_parallel_size


@dataclass(frozen=True)
class UnitPlan:
    """One unit of a model: its servers, behind a router of their own."""

    name: str
    roles: tuple[RolePlan, ...]

    @property
    def gpus(self) -> int:
        """GPUs of the unit."""
        return sum(role.gpus for role in self.roles)

    def role(self, role: Role) -> RolePlan | None:
        """The plan of that role, or None where the unit has none."""
        return next((plan for plan in self.roles if plan.role == role), None)


@dataclass(frozen=True)
class AnswerChange:
    """What has a model answer otherwise than it was evaluated to: `path` in the stack file, and `what` in words."""

    path: str
    what: str


@dataclass(frozen=True)
class ModelPlan:
    """A model with all its units. `profile` is what its routers choose servers by, `router_replicas` how many pods each
    of them has. `engine` is what the stack file asks for, from which other stack files are made: `RolePlan.settings` is
    what servers are started with.

    `min_accuracy` is the share of the kit's own questions (`values/evals/builtin.yaml`) that the benchmark of each
    update must find answered right; None where it asks none. It always asks where something changes answers.
    """

    name: str
    model: CatalogueModel
    topology: Topology
    router: RouterConfig
    profile: RouterProfileName
    router_replicas: int
    workload: WorkloadConfig
    slo: Slo | None
    engine: Engine
    units: tuple[UnitPlan, ...]
    update_way: UpdateWay
    scaling: Scaling | None = None
    answer_changes: tuple[AnswerChange, ...] = ()
    min_accuracy: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all units."""
        return sum(unit.gpus for unit in self.units)

    @property
    def settings(self) -> ServerSettings:
        """Those of the servers of its first role; what isn't a matter of roles is the same for all."""
        return self.units[0].roles[0].settings

    @property
    def max_model_len(self) -> int:
        """Tokens that one sequence may have."""
        return self.settings.max_model_len

    @property
    def block_size(self) -> int:
        """Tokens in a block of KV cache."""
        return self.settings.block_size

    @property
    def routed(self) -> bool:
        """Whether requests come through endpoint pickers."""
        return self.router.mode != "none"

    @property
    def behind_gateway(self) -> bool:
        """Whether a Gateway asks the endpoint pickers, and no Envoy of the kit."""
        return self.router.mode == "gateway"

    @property
    def copies(self) -> int:
        """Units side by side."""
        return len(self.units)

    @property
    def update_note(self) -> str:
        """What another version costs, in words. Minutes are a bound: the start-up budget of the slowest servers."""
        minutes = -(-max(role.startup_budget_s for role in self.units[0].roles) // 60)
        changes = "another image, block size, KV cache type, attention backend or tensor parallel size"
        if self.update_way == "beside":
            return f"{changes} comes beside what serves, which then goes: no outage, and GPUs for both meanwhile"
        if self.update_way == "rolling":
            return "servers of another version take the place of the old ones pod by pod"
        if self.update_way == "one by one":
            return (
                f"{changes} takes one of {len(self.units)} units after the other out of service, each for a start-up of"
                f" at most {minutes} minutes: there is no room for others beside them"
            )
        return (
            f"{changes} is an outage of a start-up, at most {minutes} minutes: there is no room for another unit beside"
            " this one; GPUs for twice the servers avoid it, or copies"
        )


@dataclass(frozen=True)
class PlannedPool:
    """A pool of equal GPU nodes: `size` of them at first, and as few and as many as `limits` says later, where the
    cluster autoscaler decides (`autoscaled`).

    `taints` are those that the shape doesn't have, `pod_disk_gib` is what the pods of a node may fill, `exists` says
    that nothing of it is created, `ready_timeout_s` how long its gate waits for new nodes.
    """

    name: str
    shape: Shape
    size: int
    limits: SizeLimits
    autoscaled: bool
    taints: tuple[Taint, ...]
    pod_disk_gib: float
    exists: bool
    ready_timeout_s: int

    def at_first(self) -> "PlannedPool":
        """The pool without what the cluster autoscaler may do to it."""
        return replace(self, limits=SizeLimits(self.size, self.size), autoscaled=False)

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.size * self.shape.gpus

    @property
    def virtual_functions(self) -> int:
        """Virtual functions of the pool."""
        return self.size * self.shape.rdma.virtual_functions

    @property
    def price_usd_per_hour(self) -> float:
        """List price of all its nodes."""
        return self.size * self.shape.price_usd_per_hour


@dataclass(frozen=True)
class PlacedServer:
    """One server to be placed: a pod with its GPUs and virtual functions."""

    unit: str
    role: Role
    index: int
    gpus: int
    virtual_functions: int = 0


@dataclass(frozen=True)
class PlacedNode:
    """A node with the servers that fit it. Kubernetes decides where a pod really goes; this shows that all of them can
    be placed.
    """

    pool: str
    index: int
    gpus: int
    servers: tuple[PlacedServer, ...]
    virtual_functions: int = 0

    @property
    def free_gpus(self) -> int:
        """GPUs that no server uses."""
        return self.gpus - sum(server.gpus for server in self.servers)

    @property
    def free_virtual_functions(self) -> int:
        """Virtual functions that no server uses."""
        return self.virtual_functions - sum(server.virtual_functions for server in self.servers)


@dataclass(frozen=True)
class GpuStackPlan:
    """What a cluster needs so that pods get GPUs and RDMA.

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
    """What is needed before the cluster and what before its pools, and the OCIDs that statements are repeated for."""

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
    """How weights get into the model cache before servers start."""

    source: Literal["hugging-face", "object-storage"]
    connections: int


@dataclass(frozen=True)
class ModelCachePlan:
    """Where the weights of all models are kept.

    `path` is a folder on nodes' own disks, `capacity_gib` the size of a Lustre file system, `volume_handle` what the
    storage driver knows a file system by that is there already. The first server downloads what it needs where nothing
    pre-warms the cache; where something does, `revisions` are commits by the models' names. `timeout_s` is the limit
    for one model.
    """

    kind: Literal["node-disk", "file-storage", "lustre"]
    path: str | None
    capacity_gib: int | None
    volume_handle: str | None
    timeout_s: int
    prewarm: PrewarmPlan | None
    revisions: Mapping[str, str] | None


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
    """How OKE replaces the nodes of a pool: `max_surge` and `max_unavailable` are numbers of nodes or percentages."""

    mode: CycleMode
    max_surge: str
    max_unavailable: str

    @property
    def grows(self) -> bool:
        """Whether nodes may be added meanwhile."""
        return self.max_surge not in {"0", "0%"}

    @property
    def shrinks(self) -> bool:
        """Whether nodes may be missing meanwhile."""
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
    """What a stack creates beside models: network, rights, pools, add-ons, storage, and who changes pools' sizes.

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
        """The same where an update may delete and replace cluster, network and pools."""
        return replace(
            self,
            protect=False,
            network=replace(self.network, protect=False),
            gpu_pools=tuple(replace(pool, protect=False) for pool in self.gpu_pools),
            cpu_pools=tuple(replace(pool, protect=False) for pool in self.cpu_pools),
        )


@dataclass(frozen=True)
class GatewayPlan:
    """A Gateway that routes are attached to: for clients those of `listener`, for the models' own Services those of
    `cluster_listener`; None for any listener. Both `service`, on port 80, and the pods behind it are in
    `service_namespace`. `created` is what the stack makes; None where the Gateway is there.
    """

    provider: GatewayProvider
    name: str
    namespace: str
    listener: str | None
    cluster_listener: str | None
    service: str
    service_namespace: str
    created: CreatedGateway | None

    @property
    def service_host(self) -> str:
        """Host name of the Service."""
        return f"{self.service}.{self.service_namespace}.svc.cluster.local"

    @property
    def pod_labels(self) -> dict[str, str]:
        """Labels of the pods."""
        return {key: value.replace("<gateway>", self.name) for key, value in self.provider.pod_labels.items()}


@dataclass(frozen=True)
class FrontDoorModel:
    """A model behind the front door: the `name` of its objects, the `served_name` that requests say in their body, the
    hosts that lead to it alone, and its `units`: where servers have no routers, all of them together are one.
    """

    name: str
    served_name: str
    hosts: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True)
class ClientLimitsPlan:
    """What one client may ask of one Envoy: requests and tokens in a minute, requests at a time at each model, and
    models by their served names. None is what all clients have, or as much as it likes.
    """

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FrontDoorPlan:
    """One address for all models. `weights` has percents by the names of units; units of models that have none are
    missing. `limits` are those of each client, `clients` have other ones by their names.
    """

    exposure: Exposure
    host: str | None
    tls: Tls | None
    authentication: Authentication | None
    limits: ClientLimitsPlan
    clients: Mapping[str, ClientLimitsPlan]
    cache_isolation: CacheIsolation
    models: tuple[FrontDoorModel, ...]
    weights: Mapping[str, int]
    load_balancer: LoadBalancer

    @property
    def hosts(self) -> tuple[str, ...]:
        """All its names in the DNS: its own, and those that lead to one model."""
        return (*([self.host] if self.host else []), *(host for model in self.models for host in model.hosts))


@dataclass(frozen=True)
class PoolAcceptance:
    """What the nodes of a pool must show before they serve: `checks` with their `limits`, within `limit_s`.

    `in_update` says that updates test new nodes. `needed` nodes suffice for the models; with `on_failure` `hold` all
    nodes must pass. `disk_folder` is where nodes have the file system of their local disks, None where there is none.
    """

    pool: PlannedPool
    in_update: bool
    needed: int
    on_failure: Literal["spares", "hold"]
    checks: tuple[CheckName, ...]
    limits: NodeRequirements
    limit_s: int
    disk_folder: str | None

    @property
    def price_usd(self) -> float:
        """What the nodes cost meanwhile at list price, a bound: the whole limit."""
        return self.pool.price_usd_per_hour * self.limit_s / 3600

    @property
    def cost_sentence(self) -> str:
        """What the test of the nodes takes, in words."""
        time = f"{', '.join(self.checks)} within {self.limit_s / 60:.0f} minutes"
        return f"of {self.pool.name}: {time}, at most {self.price_usd:,.0f} US dollars of nodes (list price, bound)"


@dataclass(frozen=True)
class MonitoringPlan:
    """How a stack is watched. `url` is the Prometheus as pods of the cluster reach it, `labels` what monitors and rules
    carry, `slo_ttft_s` the targets for the time to first token in seconds by the models' names, `usd_per_gpu_hour` the
    list price of a GPU; None where there are none.
    """

    install: bool
    url: str
    labels: Mapping[str, str] | None
    disaggregated: bool
    slo_ttft_s: Mapping[str, float] | None
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True)
class TracingPlan:
    """Where traces go, and of which share of the requests."""

    endpoint: str
    sampled_share: float


@dataclass(frozen=True)
class Advice:
    """Something that can be deployed but may not be what is wanted. `path` is where in the stack file."""

    path: str
    text: str


def merge_advice(advice: Iterable[Advice]) -> list[Advice]:
    """What a person reads: the same text once, with the first place and how many more have it."""
    paths: dict[str, list[str]] = {}
    for item in advice:
        paths.setdefault(item.text, []).append(item.path)
    return [
        Advice(places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more", text)
        for text, places in paths.items()
    ]


@dataclass(frozen=True)
class Plan:
    """All that a stack deploys. `config` is the stack file, for planning's own advice and the hash of it.

    `override` is what the user put in place of the release's parts, `router_release` the release whose router runs.
    `model_cache` is None where servers keep weights in their pods. `virtual_functions_owner` says whose names virtual
    functions have, where not the kit's own. `created` is None where the cluster is there already or another stack's.
    `control_plane_cidrs` are the addresses that the API server speaks to pods from, None where they can't be known
    beforehand. `acceptance` has the pools whose nodes can be tested. `registry_mirror` is the private registry that
    everything is pulled from, where there is one. `project_entries` are those that come from the project's own
    `values/`.
    """

    config: StackConfig
    cluster: Cluster | None
    namespace: str
    pools: tuple[PlannedPool, ...]
    rdma: bool
    release: Release
    override: Override
    router_release: str
    models: tuple[ModelPlan, ...]
    nodes: tuple[PlacedNode, ...]
    model_cache: ModelCachePlan | None
    smoke: Smoke
    virtual_functions_owner: str | None
    gpu_stack: GpuStackPlan
    created: ClusterPlan | None
    control_plane_cidrs: tuple[str, ...] | None
    network_policies: NetworkPolicies
    front_door: FrontDoorPlan | None
    gateway: GatewayPlan | None
    acceptance: tuple[PoolAcceptance, ...]
    monitoring: MonitoringPlan | None
    tracing: TracingPlan | None
    registry_mirror: MirrorRegistry | None
    tags: TagsPlan
    advice: tuple[Advice, ...]
    project_entries: tuple[ProjectEntry, ...]

    @property
    def config_hash(self) -> str:
        """Names what is deployed: equal for stack files that say the same, whatever benchmark and tags they ask for,
        with equal entries of the project's own.
        """
        left_out: Any = {"smoke": True, "tags": True, "front_door": {"weights"}}
        text = self.config.model_dump_json(by_alias=True, exclude=left_out)
        text += "".join(f"\n{entry.file} {entry.sha256}" for entry in self.project_entries if entry.is_deployed)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def signed_in(self) -> bool:
        """Whether clients sign in at the front door."""
        return self.front_door is not None and self.front_door.authentication is not None

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of all GPU pools that their shapes don't have, each once; the pods of all models tolerate them."""
        return tuple(dict.fromkeys(taint for pool in self.pools for taint in pool.taints))

    def pulled(self, image: ContainerImage) -> ContainerImage:
        """What nodes pull for an image: its copy where the stack has a private registry."""
        return image if self.registry_mirror is None else self.registry_mirror.copy_of(image)

    @property
    def layer(self) -> Layer:
        """What of it the stack deploys."""
        return self.config.layer

    @property
    def cluster_stack(self) -> str | None:
        """The stack that made the cluster, as organization/project/stack; None where it is not another stack's."""
        return self.config.cluster_stack

    @property
    def kubeconfig_context(self) -> str | None:
        """The context of the user's kubeconfig that leads to an existing cluster; its current one if None."""
        return self.cluster.kubeconfig_context if isinstance(self.cluster, ExistingCluster) else None

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def used_gpus(self) -> int:
        """GPUs of all models."""
        return sum(model.gpus for model in self.models)

    @property
    def nodes_at_first(self) -> Sequence[PlacedNode]:
        """The nodes before a cluster autoscaler has changed anything."""
        sizes = {pool.name: pool.size for pool in self.pools}
        return [node for node in self.nodes if node.index < sizes[node.pool]]

    @property
    def idle_nodes(self) -> Sequence[PlacedNode]:
        """Nodes without any server that are sure to be there."""
        least = {pool.name: pool.limits.least for pool in self.pools}
        return [node for node in self.nodes if not node.servers and node.index < least[node.pool]]

    @property
    def price_usd_per_hour(self) -> float:
        """List price of all pools."""
        return sum(pool.price_usd_per_hour for pool in self.pools)
