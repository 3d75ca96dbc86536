"""Plan of a stack: the resolved and checked values of its config. Pure data."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmd_pods.acceptance import CheckName, NodeRequirements

from llmd_oke.catalogue import Release
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.entries import ProjectEntry
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.serving import GatewayProvider, leader_worker_sets
from llmd_oke.config import (
    Cluster,
    CreateCluster,
    ExistingCluster,
    Layer,
    Smoke,
    StackConfig,
)
from llmd_oke.config.front_door import Authentication, CacheIsolation, Exposure, LoadBalancer, Tls
from llmd_oke.config.gateway import CreatedGateway
from llmd_oke.config.network_policies import NetworkPolicies
from llmd_oke.config.pools import Taint
from llmd_oke.config.stack import Override
from llmd_oke.planning.cluster_plan import (
    ClusterPlan,
    GpuStackPlan,
    ModelCachePlan,
    TagsPlan,
)
from llmd_oke.planning.model_plan import (
    ModelPlan,
    PlacedNode,
    PlannedPool,
)


@dataclass(frozen=True)
class GatewayPlan:
    """Gateway that routes are attached to.

    Attributes:
        provider: implementation of the Gateway.
        name: name of the Gateway.
        namespace: namespace of the Gateway.
        listener: listener for clients; None for any listener.
        cluster_listener: listener on port 80 for the models' own Services; None for any listener.
        service: Service in front of the Gateway's pods.
        service_namespace: namespace of the Service and the pods.
        created: Gateway that the stack creates; None if the Gateway exists already.
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
        """Host name of the Gateway's Service."""
        return f"{self.service}.{self.service_namespace}.svc.cluster.local"

    @property
    def pod_labels(self) -> dict[str, str]:
        """Labels of the Gateway's pods."""
        return {key: value.replace("<gateway>", self.name) for key, value in self.provider.pod_labels.items()}


@dataclass(frozen=True)
class FrontDoorModel:
    """Model that the front door routes requests to.

    Attributes:
        name: name of the model's objects.
        served_name: `model` in the body of requests.
        hosts: hosts that route to this model only.
        units: units of the model; servers without router count as one unit.
        adapters: names by which requests select the model's adapters.
    """

    name: str
    served_name: str
    hosts: tuple[str, ...]
    units: tuple[str, ...]
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClientLimitsPlan:
    """Limits of one client that each Envoy replica of the front door enforces; None for the limit of all clients, or
    for no limit.

    Attributes:
        requests_per_minute: requests per minute.
        tokens_per_minute: tokens per minute.
        concurrent_requests: concurrent requests to each model.
        models: permitted models by served name.
    """

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FrontDoorPlan:
    """Front door: one address for all models.

    Attributes:
        exposure: clients that can reach it.
        host: DNS name.
        tls: TLS certificate; None for plain HTTP.
        authentication: authentication of clients; None if there is none.
        limits: limits of each client.
        clients: different limits by client.
        priorities: priorities by client.
        cache_isolation: isolation of prefix caches between clients.
        models: models behind the front door.
        weights: percentages of requests by name of the unit; units of models without weights are missing.
        load_balancer: OCI load balancer.
    """

    exposure: Exposure
    host: str | None
    tls: Tls | None
    authentication: Authentication | None
    limits: ClientLimitsPlan
    clients: Mapping[str, ClientLimitsPlan]
    priorities: Mapping[str, int]
    cache_isolation: CacheIsolation
    models: tuple[FrontDoorModel, ...]
    weights: Mapping[str, int]
    load_balancer: LoadBalancer

    @property
    def hosts(self) -> tuple[str, ...]:
        """All DNS names of the front door: its own, and those that route to one model."""
        return (*([self.host] if self.host else []), *(host for model in self.models for host in model.hosts))


@dataclass(frozen=True)
class PoolAcceptance:
    """Acceptance test of a pool's nodes before models are served on them.

    Attributes:
        pool: pool of the nodes.
        in_update: whether updates test new nodes.
        needed: number of nodes that suffice for the models.
        on_failure: effect of failed nodes; with `hold` all nodes must pass.
        checks: checks to run.
        limits: thresholds of the checks.
        limit_s: maximum duration of the test in seconds.
        disk_folder: mount point of the local disks' file system on the nodes; None if they have none.
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
        """List price in US dollars of the nodes for the maximum duration of the test, an upper bound of its cost."""
        return self.pool.price_usd_per_hour * self.limit_s / 3600

    @property
    def cost_sentence(self) -> str:
        """Sentence about the test's maximum duration and the price of the nodes for that time."""
        time = f"{', '.join(self.checks)} within {self.limit_s / 60:.0f} minutes"
        return f"of {self.pool.name}: {time}, at most {self.price_usd:,.0f} US dollars of nodes (list price, bound)"


@dataclass(frozen=True)
class MonitoringPlan:
    """Monitoring of a stack.

    Attributes:
        install: whether the stack installs Prometheus.
        url: URL of Prometheus for pods of the cluster.
        labels: labels of monitors and rules.
        disaggregated: whether a model has prefill servers.
        slo_ttft_s: targets for the time to first token in seconds by model; None if no model has one.
        usd_per_gpu_hour: list price of a GPU.
        canaries_every_s: interval in seconds between canary prompts; None without canaries.
    """

    install: bool
    url: str
    labels: Mapping[str, str] | None
    disaggregated: bool
    slo_ttft_s: Mapping[str, float] | None
    usd_per_gpu_hour: float | None = None
    canaries_every_s: int | None = None


@dataclass(frozen=True)
class TracingPlan:
    """Export of traces: URL of the collector, and the share of requests that are traced."""

    endpoint: str
    sampled_share: float


AdviceKind = Literal["decision", "note", "limit"]
"""Weight of advice: it calls for a decision (`decision`), is worth knowing (`note`), or states a known limit of the
release (`limit`), which docs/releases.md lists too.
"""


@dataclass(frozen=True)
class Advice:
    """Advice on a setting that can be deployed but may be unintended. `path` is its path in the stack file."""

    path: str
    text: str
    kind: AdviceKind = "decision"


def merge_advice(advice: Iterable[Advice]) -> list[Advice]:
    """Return the advice with equal texts merged into one item, which has the first path and the number of others."""
    alike: dict[str, list[Advice]] = {}
    for item in advice:
        alike.setdefault(item.text, []).append(item)
    return [
        first if not more else replace(first, path=f"{first.path} and {len(more)} more")
        for first, *more in alike.values()
    ]


LIMITS_PAGE = "docs/releases.md"
"""Page of the documentation with the known limits of releases."""


def limits_sentence(plan: "Plan") -> str:
    """Return a sentence on how many known limits of its release affect a plan, and where they are listed; empty if none
    does.
    """
    limits = sum(item.kind == "limit" for item in merge_advice(plan.advice))
    known = "1 known limit" if limits == 1 else f"{limits} known limits"
    return f"{known} of {plan.release.name} ({LIMITS_PAGE})" if limits else ""


def advice_of_update(plan: "Plan") -> list[Advice]:
    """Return the advice that each update prints: all items except the known limits of the release, which
    `limits_sentence` counts.
    """
    told = [item for item in merge_advice(plan.advice) if item.kind != "limit"]
    limits = limits_sentence(plan)
    return [*told, *([Advice("release", limits, "limit")] if limits else [])]


@dataclass(frozen=True)
class Plan:
    """Plan of everything that a stack deploys.

    Attributes:
        config: stack file, for advice and the hash.
        cluster: cluster in the stack file; None if another stack creates it.
        namespace: namespace of the models.
        pools: GPU pools.
        rdma: whether pods use the RDMA network.
        release: release with the user's replacements.
        override: replacements of the release's parts.
        router_release: name of the release whose router runs.
        models: models.
        nodes: GPU nodes with the servers placed on them.
        model_cache: model cache; None if servers keep weights in their pods.
        smoke: smoke benchmark.
        virtual_functions_owner: naming scheme of virtual functions; None for the kit's own.
        gpu_stack: operators and add-ons for GPUs and RDMA.
        created: cluster that the stack creates; None if it exists already or another stack creates it.
        control_plane_cidrs: IP ranges from which the API server connects to pods; None if unknown at planning.
        network_policies: engine and destinations of NetworkPolicies.
        front_door: front door; None if the stack has none.
        gateway: Gateway; None if the stack has none.
        acceptance: acceptance tests of the pools whose nodes can be tested.
        monitoring: monitoring; None if the stack has none.
        tracing: export of traces; None if the stack has none.
        registry_mirror: private registry that everything is pulled from; None if the stack has none.
        tags: OCI tags.
        advice: advice on the plan.
        project_entries: catalogue entries from the project's own `values/`.
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

    def without_questions(self) -> "Plan":
        """Return a copy of the plan whose smoke benchmarks ask no questions with known answers."""
        return replace(self, models=tuple(replace(model, min_accuracy=None) for model in self.models))

    @property
    def config_hash(self) -> str:
        """Hash of the deployed configuration: equal for stack files with the same settings and equal project entries,
        whatever their smoke benchmark, tags, budget, alarms and logs of OCI, and weights of the front door.
        """
        left_out: Any = {"smoke": True, "tags": True, "budget": True, "oci_monitoring": True, "front_door": {"weights"}}
        text = self.config.model_dump_json(by_alias=True, exclude=left_out)
        text += "".join(f"\n{entry.file} {entry.sha256}" for entry in self.project_entries if entry.is_deployed)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def signed_in(self) -> bool:
        """True if clients must authenticate at the front door."""
        return self.front_door is not None and self.front_door.authentication is not None

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Taints of all GPU pools other than those of their shapes, without repetitions; the pods of all models
        tolerate them.
        """
        return tuple(dict.fromkeys(taint for pool in self.pools for taint in pool.taints))

    def pulled(self, image: ContainerImage) -> ContainerImage:
        """Return the reference by which nodes pull an image: that of its copy if the stack has a private registry."""
        return image if self.registry_mirror is None else self.registry_mirror.copy_of(image)

    @property
    def layer(self) -> Layer:
        """Part of the stack file that the stack deploys: `all`, `cluster` or `serving`."""
        return self.config.layer

    @property
    def cluster_stack(self) -> str | None:
        """Stack that created the cluster, as organization/project/stack; None unless another stack did."""
        return self.config.cluster_stack

    @property
    def kubeconfig_context(self) -> str | None:
        """Context of the user's kubeconfig for an existing cluster; None for the current context."""
        return self.cluster.kubeconfig_context if isinstance(self.cluster, ExistingCluster) else None

    @property
    def gpus(self) -> int:
        """Number of GPUs of all GPU pools of the stack."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def used_gpus(self) -> int:
        """Number of GPUs that the servers of all models use."""
        return sum(model.gpus for model in self.models)

    @property
    def needs_group_controller(self) -> bool:
        """True if the controller of LeaderWorkerSets makes the pods of any model's servers: they span nodes, or are
        roles of a DisaggregatedSet.
        """
        return any(model.needs_group_controller for model in self.models)

    @property
    def installs_group_controller(self) -> bool:
        """True if the stack installs the controller of LeaderWorkerSets."""
        return self.config.leader_worker_sets == "install"

    @property
    def keeps_to_pools(self) -> bool:
        """True if the pods of a server that spans nodes can be required to be in one pool: in created clusters, whose
        nodes are labelled with their pool, if the Kubernetes version can select the pods of one group.
        """
        if not isinstance(self.cluster, CreateCluster):
            return False
        return int(self.cluster.kubernetes_version.split(".")[1]) >= leader_worker_sets().group_affinity_minor

    @property
    def nodes_at_first(self) -> Sequence[PlacedNode]:
        """Nodes that exist before a cluster autoscaler changes the size of a pool."""
        sizes = {pool.name: pool.size for pool in self.pools}
        return [node for node in self.nodes if node.index < sizes[node.pool]]

    @property
    def idle_nodes(self) -> Sequence[PlacedNode]:
        """Nodes without servers that exist even if the cluster autoscaler shrinks every pool to its minimum."""
        least = {pool.name: pool.limits.least for pool in self.pools}
        return [node for node in self.nodes if not node.servers and node.index < least[node.pool]]

    @property
    def price_usd_per_hour(self) -> float:
        """List price of all GPU pools in US dollars per hour."""
        return sum(pool.price_usd_per_hour for pool in self.pools)
