"""Plan of one model: its units (each a router and its servers), their memory, and the placement of servers.
Pure data.
"""

from dataclasses import dataclass, replace
from typing import Literal

from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue import CatalogueModel, Shape
from llmd_oke.catalogue.flow_control import FlowControl
from llmd_oke.catalogue.server_settings import ServerSettings
from llmd_oke.config import (
    Engine,
    Role,
    RouterConfig,
    Scaling,
    ServersScaling,
    SizeLimits,
    Slo,
    Topology,
    WorkloadConfig,
)
from llmd_oke.config.model import Adapter, RouterProfileName
from llmd_oke.config.pools import Taint


@dataclass(frozen=True)
class Memory:
    """Memory of one server of a role, in GiB over all of its GPUs.

    Attributes:
        gpu_gib: memory of the GPUs.
        weights_gib: weights.
        activation_gib: activations.
        key_value_gib: memory left for KV cache.
        key_value_tokens: number of tokens whose KV cache fits; an upper bound, not a measurement.
        state_tokens: number of tokens whose KV cache is as large as one sequence's state in layers of linear attention.
        ranks: number of data-parallel ranks, which share these amounts equally.
        adapters_gib: slots for LoRA adapters.
        draft_gib: weights of the module that drafts tokens.
    """

    gpu_gib: float
    weights_gib: float
    activation_gib: float
    key_value_gib: float
    key_value_tokens: int
    state_tokens: int = 0
    ranks: int = 1
    adapters_gib: float = 0.0
    draft_gib: float = 0.0

    @property
    def longest_sequence(self) -> int:
        """Number of tokens of the longest sequence that fits the KV cache, which is within one rank; 0 if none does."""
        return max(0, self.key_value_tokens // self.ranks - self.state_tokens)

    def sequences(self, tokens: int) -> int:
        """Return the number of sequences with this many tokens that fit the KV cache at a time, each within
        one rank.
        """
        return self.key_value_tokens // self.ranks // (tokens + self.state_tokens) * self.ranks


@dataclass(frozen=True)
class Rollout:
    """Rolling update of a Deployment: its `maxSurge` and `maxUnavailable`, as numbers of pods."""

    max_surge: int
    max_unavailable: int


UpdateWay = Literal["rolling", "beside", "one by one", "outage"]
"""Strategy by which new servers replace old ones after a change of version or tensor parallel size.

`beside`: as a second unit, which takes over the requests when it is ready, before the old one is removed. Without room
for all servers twice: `rolling`, pod by pod, for aggregated servers; for servers that transfer KV cache, each unit is
removed before its successor is created, `one by one` for several units, otherwise with an `outage`.
"""


@dataclass(frozen=True)
class RolePlan:
    """Servers of one role in one unit (servers with a router of their own).

    Attributes:
        settings: settings of the servers.
        replicas: number of servers; the initial number with `scaling`.
        memory: memory of one server.
        rollout: rollout of the Deployment.
        startup_budget_s: maximum time in seconds of a server's start.
        create_timeout_s: maximum time in seconds to create the servers.
        update_timeout_s: maximum time in seconds to update the servers.
        scaling: scaling of the number of servers; None if it is fixed.
        host_key_value_tokens: number of tokens whose KV cache a server keeps in its node's memory; an upper bound.
        disk_key_value_tokens: number of tokens whose KV cache is kept on the disks of a node, for all servers of the
            role there; an upper bound.
    """

    settings: ServerSettings
    replicas: int
    memory: Memory
    rollout: Rollout
    startup_budget_s: int
    create_timeout_s: int
    update_timeout_s: int
    scaling: ServersScaling | None = None
    host_key_value_tokens: int = 0
    disk_key_value_tokens: int = 0

    @property
    def role(self) -> Role:
        """Role of the servers: prefill, decode or aggregated."""
        return self.settings.role

    @property
    def parallelism(self) -> Parallelism:
        """Parallelism of each server: its GPUs, ranks and nodes."""
        return self.settings.parallelism

    @property
    def virtual_functions(self) -> int:
        """Number of virtual functions of each pod of a server."""
        return self.settings.virtual_functions

    @property
    def autoscaled(self) -> bool:
        """True if KEDA changes the number of servers with the load."""
        return self.scaling is not None

    @property
    def most_replicas(self) -> int:
        """Maximum number of servers: that of the scaling, or the fixed number."""
        return self.scaling.max_replicas if self.scaling else self.replicas

    @property
    def gpus(self) -> int:
        """Number of GPUs of all servers of the role in one unit."""
        return self.replicas * self.parallelism.gpus


@dataclass(frozen=True)
class UnitPlan:
    """Unit of a model: servers with a router of their own."""

    name: str
    roles: tuple[RolePlan, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs of the unit."""
        return sum(role.gpus for role in self.roles)

    def role(self, role: Role) -> RolePlan | None:
        """Return the plan of a role's servers in the unit; None if the unit doesn't have the role."""
        return next((plan for plan in self.roles if plan.role == role), None)


@dataclass(frozen=True)
class AnswerChange:
    """Setting that changes a model's answers and with which the catalogue has no passed evaluation: `path` in the stack
    file, and a description.
    """

    path: str
    what: str


@dataclass(frozen=True)
class ModelPlan:
    """Model with all its units, each of which has its own servers and router.

    Attributes:
        name: name of the model's objects.
        model: catalogue entry.
        topology: servers of one unit.
        router: router in the stack file.
        profile: profile by which the routers choose servers.
        router_replicas: number of pods of each router.
        workload: prompt and output lengths.
        slo: latency targets; None if there are none.
        engine: vLLM settings in the stack file, from which other stack files are derived; `RolePlan.settings` has the
            resolved settings.
        units: units.
        update_way: strategy by which new servers replace old ones.
        scaling: scaling; None if all numbers are fixed.
        adapters: LoRA adapters.
        answer_changes: settings that change answers.
        min_accuracy: minimum share of right answers to the kit's own questions (`values/evals/builtin.yaml`) in the
            benchmark after each update; None if it asks none. It always asks if a setting changes answers.
        flow_control: flow control in the routers' config; None if there is none, or the stack file has the picker's own
            config.
        holds_back: whether the routers have flow control, by `flow_control` or by the picker's own config.
        priorities: priorities of requests other than 0.
        session_headers: HTTP headers by which routers keep sessions at their servers.
        kv_events: whether servers publish KV cache events to the routers.
        disaggregated_set: whether the servers of each unit are roles of one DisaggregatedSet.
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
    adapters: tuple[Adapter, ...] = ()
    answer_changes: tuple[AnswerChange, ...] = ()
    min_accuracy: float | None = None
    flow_control: FlowControl | None = None
    holds_back: bool = False
    priorities: tuple[int, ...] = ()
    session_headers: tuple[str, ...] = ()
    kv_events: bool = False
    disaggregated_set: bool = False

    @property
    def gpus(self) -> int:
        """Number of GPUs of all units of the model."""
        return sum(unit.gpus for unit in self.units)

    @property
    def settings(self) -> ServerSettings:
        """Settings of the servers of the first role, for settings that are equal for all roles."""
        return self.units[0].roles[0].settings

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a sequence, prompt and output together."""
        return self.settings.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Maximum number of sequences that a server runs at a time: a decode server if prefill is separate."""
        return self.units[0].roles[-1].settings.max_num_seqs

    @property
    def block_size(self) -> int:
        """Number of tokens in a block of KV cache."""
        return self.settings.block_size

    @property
    def router_profile(self) -> str:
        """Name of the router profile for reports: `own` if the stack file has the picker's config, `none` without a
        router.
        """
        return "none" if not self.routed else "own" if self.router.config is not None else self.profile

    @property
    def over_nodes(self) -> bool:
        """True if the model has servers that span several nodes."""
        return any(role.parallelism.nodes > 1 for role in self.units[0].roles)

    @property
    def needs_group_controller(self) -> bool:
        """True if the controller of LeaderWorkerSets makes the pods of any of the model's servers."""
        return self.over_nodes or self.disaggregated_set

    @property
    def routed(self) -> bool:
        """True if requests for the model pass through an endpoint picker."""
        return self.router.mode != "none"

    @property
    def behind_gateway(self) -> bool:
        """True if a Gateway, rather than an Envoy of the kit, calls the endpoint pickers."""
        return self.router.mode == "gateway"

    @property
    def copies(self) -> int:
        """Number of equal units (servers with a router of their own) that the model has."""
        return len(self.units)

    @property
    def update_note(self) -> str:
        """Sentence about how the model is served while a new version of its servers is rolled out. Its minutes are an
        upper bound: the start-up budget of the slowest servers.
        """
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
    """Pool of equal GPU nodes.

    Attributes:
        name: name of the pool.
        shape: shape of the nodes.
        size: initial number of nodes.
        limits: minimum and maximum number of nodes.
        autoscaled: whether the cluster autoscaler decides the number of nodes.
        taints: taints other than the shape's.
        pod_disk_gib: disk space in GiB that the pods of a node may fill.
        exists: whether the pool exists already, so that nothing of it is created.
        ready_timeout_s: maximum time in seconds that the pool's gate waits for new nodes.
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
        """Return the pool as it is before any autoscaling, with its initial size as minimum and maximum."""
        return replace(self, limits=SizeLimits(self.size, self.size), autoscaled=False)

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes of the pool at its initial size."""
        return self.size * self.shape.gpus

    @property
    def price_usd_per_hour(self) -> float:
        """List price of all nodes of the pool in US dollars per hour."""
        return self.size * self.shape.price_usd_per_hour


@dataclass(frozen=True)
class PlacedServer:
    """Pod of a server with the GPUs and virtual functions that it needs on its node. The pod is the whole server unless
    the server spans `nodes`; then it is the pod on the node with index `node_rank`.
    """

    unit: str
    role: Role
    index: int
    gpus: int
    virtual_functions: int = 0
    nodes: int = 1
    node_rank: int = 0


@dataclass(frozen=True)
class PlacedNode:
    """Node with the pods placed on it. Kubernetes decides the actual placement; this one shows that all pods fit."""

    pool: str
    index: int
    gpus: int
    servers: tuple[PlacedServer, ...]
    virtual_functions: int = 0

    @property
    def free_gpus(self) -> int:
        """Number of GPUs of the node that no server uses."""
        return self.gpus - sum(server.gpus for server in self.servers)

    @property
    def free_virtual_functions(self) -> int:
        """Number of virtual functions of the node that no server uses."""
        return self.virtual_functions - sum(server.virtual_functions for server in self.servers)
