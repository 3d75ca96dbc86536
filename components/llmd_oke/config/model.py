"""A model and how it is served: its topology, router, scaling and limits."""

from typing import Annotated, Any, Literal, Self, get_args

from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form, parse_short_form
from pydantic import Field, JsonValue, ModelWrapValidatorHandler, model_validator

from llmd_oke.config.base import Commit, ConfigPart, DnsLabel, Items, Repository, is_absent, is_one, is_zero, matching
from llmd_oke.config.engine import ROLES, Engine, Role
from llmd_oke.config.flow_control import FlowControlConfig
from llmd_oke.config.gateway import Route

HANDING_OVER: frozenset[Role] = frozenset({"prefill", "decode"})
"""Roles whose servers hand KV cache over: they alone have a KV connector of the kit's, and virtual functions."""

KEEPING: frozenset[Role] = frozenset({"prefill", "aggregated"})
"""Roles whose servers may keep KV cache in their node's memory: decode servers would write there what they never read,
as they get prompts from prefill servers first (vLLM's MultiConnector loads from the first connector that has any)."""


class Servers(ConfigPart):
    """Equal vLLM servers of one role."""

    replicas: Annotated[int, Field(ge=1, le=1024)]
    """Number of servers."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)]
    """GPUs that share each layer of a server, or of each of its ranks, which never span nodes: a node's GPUs are the
    limit."""

    data_parallel_size: Annotated[int, Field(ge=1, le=512, exclude_if=is_one)] = 1
    """Ranks of each server, with `tensorParallelSize` GPUs, attention weights, KV cache and requests of their own;
    experts are shared by all ranks. Above 1 for mixtures of experts only. With more GPUs than a node has, a server
    spans whole nodes, as a LeaderWorkerSet."""

    expert_parallel: Annotated[bool | None, Field(exclude_if=is_absent)] = None
    """Whether GPUs have whole experts, in place of a part of each; as the model's recipe has it if left out."""

    @property
    def gpus(self) -> int:
        """GPUs of one server."""
        return self.tensor_parallel_size * self.data_parallel_size

    def parallelism(self, *, expert_parallel: bool, node_gpus: int | None = None) -> Parallelism:
        """Return how a server is spread over its GPUs, and over whole nodes with `node_gpus` each where those are more
        than a node has; `expert_parallel` is what the model has if nothing is said.
        """
        experts = expert_parallel if self.expert_parallel is None else self.expert_parallel
        spread = Parallelism(self.tensor_parallel_size, self.data_parallel_size, experts)
        return spread if node_gpus is None else spread.over_nodes(node_gpus) or spread


class Topology(ConfigPart):
    """Either prefill and decode servers, or aggregated servers, of one unit.

    The short form is one string: `8p-tp1-4d-tp2` or `agg-tp1-16r`; with data and expert parallelism `agg-tp1dp8ep-2r`.
    """

    prefill: Servers | None = None
    """Servers that compute prompts and hand their KV cache over."""

    decode: Servers | None = None
    """Servers that generate tokens."""

    aggregated: Servers | None = None
    """Servers that do both."""

    _source_text: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _from_short_form(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, str):
            return handler(value)
        topology = handler(parse_short_form(value))
        topology._source_text = value
        return topology

    @property
    def source_text(self) -> str | None:
        """The text of the short form, where the stack file has that; problems then name the topology as a whole."""
        return self._source_text

    def __eq__(self, other: object) -> bool:
        """Tell whether the servers are equal, in whichever form they were written."""
        return isinstance(other, Topology) and self.servers() == other.servers()

    __hash__ = ConfigPart.__hash__

    def servers(self) -> dict[Role, Servers]:
        """The roles that the unit has, in the order prefill, decode, aggregated."""
        return {role: servers for role in ROLES if (servers := getattr(self, role)) is not None}

    @property
    def disaggregated(self) -> bool:
        """True if prefill and decode are separate servers."""
        return self.prefill is not None and self.decode is not None

    @property
    def data_parallel(self) -> bool:
        """True if a server has more than one rank."""
        return any(servers.data_parallel_size > 1 for servers in self.servers().values())

    @property
    def gpus(self) -> int:
        """GPUs of one unit."""
        return sum(servers.replicas * servers.gpus for servers in self.servers().values())

    def __str__(self) -> str:
        """The short form where there is one (`8p-tp1-4d-tp2`), otherwise the roles one by one."""
        servers = self.servers()
        each = {role: part.parallelism(expert_parallel=False) for role, part in servers.items()}
        if all(part.expert_parallel is not False for part in servers.values()):
            if servers.keys() == {"prefill", "decode"}:
                prefill, decode = servers["prefill"], servers["decode"]
                return disaggregated_short_form(prefill.replicas, each["prefill"], decode.replicas, each["decode"])
            if servers.keys() == {"aggregated"}:
                return aggregated_short_form(each["aggregated"], servers["aggregated"].replicas)
        return ", ".join(f"{role} {part.replicas} x {each[role]}" for role, part in servers.items())


MAX_COPIES = 64

Decider = Literal["prefix", "always"]
"""Which prompts are prefilled remotely."""

RouterProfileName = Literal[
    "prefix", "prefix-affinity", "precise-prefix", "session-affinity", "lora-affinity", "token-load", "running-requests"
]
"""How servers are chosen; `values/endpoint-pickers` says with which scorers."""

PROFILE_NAMES: tuple[RouterProfileName, ...] = get_args(RouterProfileName)
Count = Annotated[int, Field(ge=1, le=1024)]
Threshold = Annotated[float, Field(gt=0)]
WindowSeconds = Annotated[int, Field(ge=0, le=3600)]


class RouterConfig(ConfigPart):
    """Router in front of the model servers."""

    mode: Literal["standalone", "gateway", "none"] = "standalone"
    """`standalone`: endpoint picker with an Envoy beside it. `gateway`: endpoint picker that the stack's `gateway`
    asks. `none`: a plain Service that spreads connections (the published baseline)."""

    route: Annotated[Route, Field(exclude_if=lambda route: route == Route())] = Route()
    """With `mode: gateway`: which requests at the Gateway are for this model."""

    non_cached_tokens: Annotated[int, Field(ge=1)] = 16
    """Prompts with at least this many tokens that decode has not cached are prefilled remotely; shorter ones stay on
    decode. Never 0: the endpoint picker takes that for "never remotely"."""

    decider: Annotated[Decider, Field(exclude_if=lambda decider: decider == "prefix")] = "prefix"
    """Which prompts are prefilled remotely: `prefix`, those with `nonCachedTokens` uncached tokens; `always`, all."""

    profile: Annotated[RouterProfileName | None, Field(exclude_if=is_absent)] = None
    """How servers are chosen. `prefix`: by cached prefixes and waiting requests. `token-load`: by the tokens and
    requests that the picker has sent and that are not answered yet. `prefix-affinity`: likewise, among the prefill
    servers that have most of the prompt cached unless they are much busier, as in llm-d's P/D guide. `precise-prefix`:
    the same by what servers report of their KV cache, in place of what they were sent. `session-affinity`: as
    `token-load`, but requests with a header `x-session-id` go to the servers of their session before. `lora-affinity`:
    by the adapters that servers have loaded, and waiting requests. `running-requests`: by running and waiting requests
    as servers report them. If left out, `prefix` where `workload.sharedPrefixTokens` are a good part of a prompt,
    otherwise by load as the release can."""

    peak_prefill_tokens_per_s: Annotated[float | None, Field(gt=0, exclude_if=is_absent)] = None
    """With `profile: prefix-affinity` or `precise-prefix`: prompt tokens that a prefill server computes in a second at
    most, by which the picker judges how long tokens under way take. llm-d's figure if left out: of gpt-oss-120b on an
    H200."""

    config: Annotated[dict[str, JsonValue] | None, Field(exclude_if=is_absent)] = None
    """The endpoint picker's own config (an EndpointPickerConfig, `apiVersion` and `kind` left out), in place of what
    `profile` and `decider` stand for. It is checked by what the release's endpoint picker reads."""

    flow_control: Annotated[FlowControlConfig | None, Field(exclude_if=is_absent)] = None
    """Has requests wait in the endpoint picker while servers are saturated, those of clients with priority
    (`frontDoor.priorities`) less long; if left out they wait in servers, in the order in which they came."""

    replicas: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `mode: standalone`: pods of the router, one of whose endpoint pickers leads. As many as the release has if
    left out, which is the most."""


class WorkloadConfig(ConfigPart):
    """The lengths that the deployment is planned and benchmarked for."""

    input_tokens: Annotated[int, Field(ge=1)]
    """Prompt length (ISL) in tokens."""

    output_tokens: Annotated[int, Field(ge=1)]
    """Output length (OSL) in tokens."""

    shared_prefix_tokens: Annotated[int, Field(ge=0, exclude_if=is_zero)] = 0
    """Tokens that prompts begin with and share with others, such as a system prompt or a conversation so far."""


class Slo(ConfigPart):
    """Promises to users."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    """Time to first token in milliseconds."""

    itl_ms: Annotated[float, Field(gt=0)] | None = None
    """Inter-token latency in milliseconds."""


class ServersScaling(ConfigPart):
    """Limits and thresholds of one role in each unit. A server is added while any threshold is exceeded on average."""

    min_replicas: Count
    """Servers that stay, whatever the load."""

    max_replicas: Count
    """Servers at the highest load. The GPU pools must have room for all of them at once."""

    requests: Threshold | None = None
    """Requests, running and waiting, of one server."""

    def thresholds(self) -> dict[str, float]:
        """The thresholds that are set, by their names."""
        return self.model_dump(exclude={"min_replicas", "max_replicas"}, exclude_none=True)


class PrefillScaling(ServersScaling):
    """Prefill servers."""

    prompt_tokens_per_s: Threshold | None = None
    """Prompt tokens for one server in a second: those that it computes, and its queue, to be done in half a minute."""


class DecodeScaling(ServersScaling):
    """Decode servers."""

    kv_cache_usage: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of one server's KV cache that is in use."""


class AggregatedScaling(PrefillScaling, DecodeScaling):
    """Aggregated servers, which do both."""


class Scaling(ConfigPart):
    """Servers come and go with the load, by KEDA, which must be in the cluster. They start as the topology says, and
    where both prefill and decode are scaled they keep its proportion."""

    prometheus: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    """Address of the Prometheus that has vLLM's metrics; the one of the llm-d guides if left out,
    `http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090`."""

    prefill: PrefillScaling | None = None
    """Prefill servers of each unit; their number stays if left out."""

    decode: DecodeScaling | None = None
    """Decode servers of each unit; their number stays if left out."""

    aggregated: AggregatedScaling | None = None
    """Aggregated servers of each unit; their number stays if left out."""

    scale_up_window_s: WindowSeconds | None = None
    """Seconds that more load must last before a server is added (Kubernetes' stabilization window); 0 if left out."""

    scale_down_window_s: WindowSeconds | None = None
    """Seconds that less load must last before a server is taken away; 300 if left out."""

    def servers(self) -> dict[Role, ServersScaling]:
        """The roles that are scaled."""
        return {role: servers for role in ROLES if (servers := getattr(self, role)) is not None}


AdapterName = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "letters, digits, dots, dashes and underscores, the first a letter or a digit",
        max_length=63,
    ),
]


class Adapter(ConfigPart):
    """A LoRA adapter of a model. Another revision, another adapter or one fewer replaces no server."""

    name: AdapterName
    """Name by which requests ask for it, as their `model`."""

    repository: Repository
    """Repository of Hugging Face; the folder of that name in the bucket where `storage.prewarm` reads from one."""

    revision: Commit
    """Commit of the repository, or of a bucket's files: servers know each revision by a name of its own, so that what
    they have cached of one is never taken for another's."""

    @property
    def served_name(self) -> str:
        """The name that servers know this revision by."""
        return f"{self.name}-{self.revision[:12]}"


class ModelConfig(ConfigPart):
    """A model, its topology and its router."""

    model: str
    """Key in the catalogue, for example `gpt-oss-120b`."""

    name: DnsLabel | None = None
    """Name of its objects in the cluster; the key with dots made dashes if left out."""

    topology: Topology
    """Servers of one unit, in short form (`8p-tp1-4d-tp2`, `agg-tp1-16r`) or in long form."""

    copies: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 1
    """Units side by side. KV cache is handed over inside a unit only."""

    router: RouterConfig = RouterConfig()
    """Endpoint picker and proxy, or none."""

    workload: WorkloadConfig
    """Lengths that memory, advice and benchmark go by."""

    slo: Slo | None = None
    """Targets that advice goes by."""

    engine: Engine = Engine()
    """vLLM settings."""

    adapters: Annotated[Items[Adapter], Field(exclude_if=lambda adapters: not adapters)] = ()
    """LoRA adapters that its servers have beside the model itself; `engine.adapters` makes room for them."""

    scaling: Annotated[Scaling | None, Field(exclude_if=is_absent)] = None
    """Limits and thresholds between which the number of servers follows the load; it stays if left out."""

    @property
    def object_name(self) -> str:
        """The prefix of the names of all its objects."""
        return self.name or self.model.lower().replace(".", "-").replace("_", "-")

    def most_replicas(self, role: Role) -> int:
        """The most servers of a role that one unit may ever have."""
        scaled = self.scaling.servers().get(role) if self.scaling else None
        return scaled.max_replicas if scaled else self.topology.servers()[role].replicas
