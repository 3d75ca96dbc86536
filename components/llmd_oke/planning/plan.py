"""The plan of a stack: what the config means, worked out and checked. Pure data."""

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
    hosts that lead to it alone, and its `units`: where servers have no routers, all of them together are one. Requests
    for its `adapters` say their names.
    """

    name: str
    served_name: str
    hosts: tuple[str, ...]
    units: tuple[str, ...]
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClientLimitsPlan:
    """Limits of one client at one Envoy: requests and tokens in a minute, requests at a time at each model, and models
    by their served names. None is the limit of all clients, or no limit.
    """

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FrontDoorPlan:
    """One address for all models. `weights` has percents by the names of units; units of models that have none are
    missing. `limits` are those of each client, `clients` have other ones by their names, and `priorities` are those of
    clients that have one.
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
        """All its names in the DNS: its own, and those that lead to one model."""
        return (*([self.host] if self.host else []), *(host for model in self.models for host in model.hosts))


@dataclass(frozen=True)
class PoolAcceptance:
    """Acceptance of a pool's nodes before they serve: `checks` with their `limits`, within `limit_s`.

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
        """List price of the nodes for the whole limit, in USD: a bound."""
        return self.pool.price_usd_per_hour * self.limit_s / 3600

    @property
    def cost_sentence(self) -> str:
        """Cost of testing the nodes, in words."""
        time = f"{', '.join(self.checks)} within {self.limit_s / 60:.0f} minutes"
        return f"of {self.pool.name}: {time}, at most {self.price_usd:,.0f} US dollars of nodes (list price, bound)"


@dataclass(frozen=True)
class MonitoringPlan:
    """Monitoring of a stack. `url` is the Prometheus as pods of the cluster reach it, `labels` what monitors and rules
    carry, `slo_ttft_s` the targets for the time to first token in seconds by the models' names, `usd_per_gpu_hour` the
    list price of a GPU, `canaries_every_s` how often servers are asked known prompts; None where there are none.
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
    """Target of traces, and the share of requests that are traced."""

    endpoint: str
    sampled_share: float


AdviceKind = Literal["decision", "note", "limit"]
"""Weight of advice: it calls for a decision, it is worth knowing, or it is a known limit of the release, which its page
of the documentation has too.
"""


@dataclass(frozen=True)
class Advice:
    """Something that can be deployed but may not be what is wanted. `path` is where in the stack file."""

    path: str
    text: str
    kind: AdviceKind = "decision"


def merge_advice(advice: Iterable[Advice]) -> list[Advice]:
    """Merge advice of the same text: a person reads it once, with the first place and how many more have it."""
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
    """Say how many known limits of its release a plan meets, and where they stand; empty where it meets none."""
    limits = sum(item.kind == "limit" for item in merge_advice(plan.advice))
    known = "1 known limit" if limits == 1 else f"{limits} known limits"
    return f"{known} of {plan.release.name} ({LIMITS_PAGE})" if limits else ""


def advice_of_update(plan: "Plan") -> list[Advice]:
    """Return what each update tells: all advice but the known limits, which it counts."""
    told = [item for item in merge_advice(plan.advice) if item.kind != "limit"]
    limits = limits_sentence(plan)
    return [*told, *([Advice("release", limits, "limit")] if limits else [])]


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
        """Digest of what is deployed: equal for stack files that say the same, whatever benchmark and tags they ask
        for, with equal entries of the project's own.
        """
        left_out: Any = {"smoke": True, "tags": True, "front_door": {"weights"}}
        text = self.config.model_dump_json(by_alias=True, exclude=left_out)
        text += "".join(f"\n{entry.file} {entry.sha256}" for entry in self.project_entries if entry.is_deployed)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def signed_in(self) -> bool:
        """True if clients sign in at the front door."""
        return self.front_door is not None and self.front_door.authentication is not None

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of all GPU pools that their shapes don't have, each once; the pods of all models tolerate them."""
        return tuple(dict.fromkeys(taint for pool in self.pools for taint in pool.taints))

    def pulled(self, image: ContainerImage) -> ContainerImage:
        """Return the image that nodes pull: its copy where the stack has a private registry."""
        return image if self.registry_mirror is None else self.registry_mirror.copy_of(image)

    @property
    def layer(self) -> Layer:
        """Part of the program that the stack deploys."""
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
    def over_nodes(self) -> bool:
        """True if a server of any model spans nodes."""
        return any(model.over_nodes for model in self.models)

    @property
    def installs_group_controller(self) -> bool:
        """True if the stack installs the controller of LeaderWorkerSets."""
        return self.config.leader_worker_sets == "install"

    @property
    def keeps_to_pools(self) -> bool:
        """True if pods of a server that spans nodes may be required to have nodes of one pool: in clusters that stacks
        create, whose nodes have the label of their pool, of a version that knows pods of a group by themselves.
        """
        if not isinstance(self.cluster, CreateCluster):
            return False
        return int(self.cluster.kubernetes_version.split(".")[1]) >= leader_worker_sets().group_affinity_minor

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
