"""Plan of one model: memory, roles, units, and where its servers are placed. Pure data."""

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
    """Memory of one server of a role, in GiB over all of its GPUs; `key_value_tokens` is a bound, not a measurement.
    `state_tokens` are those whose room the state of a sequence takes, in layers of linear attention. Each of the data
    parallel `ranks` has as much of it. `adapters_gib` is room for LoRA adapters.
    """

    gpu_gib: float
    weights_gib: float
    activation_gib: float
    key_value_gib: float
    key_value_tokens: int
    state_tokens: int = 0
    ranks: int = 1
    adapters_gib: float = 0.0

    def sequences(self, tokens: int) -> int:
        """Sequences of that many tokens that the KV cache holds at a time, each in one rank."""
        return self.key_value_tokens // self.ranks // (tokens + self.state_tokens) * self.ranks


@dataclass(frozen=True)
class Rollout:
    """Replacement of a Deployment's pods: counts of pods."""

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

    With `scaling`, `replicas` is what is started with. `host_key_value_tokens` are those whose KV cache a server keeps
    in its node's memory, a bound.
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

    @property
    def role(self) -> Role:
        """Role of the servers."""
        return self.settings.role

    @property
    def parallelism(self) -> Parallelism:
        """Spread of each server over its GPUs."""
        return self.settings.parallelism

    @property
    def virtual_functions(self) -> int:
        """Virtual functions of each pod of a server."""
        return self.settings.virtual_functions

    @property
    def autoscaled(self) -> bool:
        """True if the number of servers follows the load."""
        return self.scaling is not None

    @property
    def most_replicas(self) -> int:
        """The most servers that there may ever be."""
        return self.scaling.max_replicas if self.scaling else self.replicas

    @property
    def gpus(self) -> int:
        """GPUs of all servers of the role."""
        return self.replicas * self.parallelism.gpus


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
    """Setting by which a model answers otherwise than it was evaluated to: `path` in the stack file, and `what` in
    words.
    """

    path: str
    what: str


@dataclass(frozen=True)
class ModelPlan:
    """A model with all its units. `profile` is what its routers choose servers by, `router_replicas` how many pods each
    of them has. `engine` is what the stack file asks for, from which other stack files are made: `RolePlan.settings` is
    what servers are started with.

    `flow_control` is that of the routers whose config is the kit's. `holds_back` says that they hold requests back, by
    it or by a config of the stack's own; `priorities` are those other than 0 that they know requests by, and
    `session_headers` those of requests by which they keep sessions at their servers. With `kv_events` servers report to
    them on their KV cache.

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
    adapters: tuple[Adapter, ...] = ()
    answer_changes: tuple[AnswerChange, ...] = ()
    min_accuracy: float | None = None
    flow_control: FlowControl | None = None
    holds_back: bool = False
    priorities: tuple[int, ...] = ()
    session_headers: tuple[str, ...] = ()
    kv_events: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of all units."""
        return sum(unit.gpus for unit in self.units)

    @property
    def settings(self) -> ServerSettings:
        """Settings of the servers of its first role; what isn't a matter of roles is the same for all."""
        return self.units[0].roles[0].settings

    @property
    def max_model_len(self) -> int:
        """Tokens that one sequence may have."""
        return self.settings.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Sequences that a server runs at a time: one that decodes, where others prefill."""
        return self.units[0].roles[-1].settings.max_num_seqs

    @property
    def block_size(self) -> int:
        """Tokens in a block of KV cache."""
        return self.settings.block_size

    @property
    def router_profile(self) -> str:
        """Name of what its routers choose servers by, for reports: `own` where the stack file has the picker's config,
        `none` without a router.
        """
        return "none" if not self.routed else "own" if self.router.config is not None else self.profile

    @property
    def over_nodes(self) -> bool:
        """True if a server of any role spans nodes."""
        return any(role.parallelism.nodes > 1 for role in self.units[0].roles)

    @property
    def routed(self) -> bool:
        """True if requests come through endpoint pickers."""
        return self.router.mode != "none"

    @property
    def behind_gateway(self) -> bool:
        """True if a Gateway asks the endpoint pickers, and no Envoy of the kit."""
        return self.router.mode == "gateway"

    @property
    def copies(self) -> int:
        """Units side by side."""
        return len(self.units)

    @property
    def update_note(self) -> str:
        """Cost of another version, in words. Minutes are a bound: the start-up budget of the slowest servers."""
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
    """One pod of a server to be placed, with its GPUs and virtual functions; it is the whole server unless that spans
    `nodes`, of which it has the one of number `node_rank`.
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
