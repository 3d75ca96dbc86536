"""A model of the stack file: its topology, router, scaling and vLLM settings."""

from typing import Annotated, Any, Literal, Self, get_args

from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form, parse_short_form
from pydantic import Field, JsonValue, ModelWrapValidatorHandler, model_validator

from llmd_oke.config.base import Commit, ConfigPart, DnsLabel, Items, Repository, is_absent, matching
from llmd_oke.config.engine import ROLES, Engine, Role
from llmd_oke.config.flow_control import FlowControlConfig
from llmd_oke.config.gateway import Route

HANDING_OVER: frozenset[Role] = frozenset({"prefill", "decode"})
"""Roles whose servers transfer KV cache between each other. Only their servers have a KV connector for that transfer,
and virtual functions of the RDMA network.
"""

KEEPING: frozenset[Role] = frozenset({"prefill", "aggregated"})
"""Roles whose servers may keep KV cache in their node's memory. A decode server would write to that memory and never
read from it: prompts come from prefill servers first, and vLLM's MultiConnector loads from the first connector that has
the prompt.
"""


class Servers(ConfigPart):
    """Identical vLLM servers of one role."""

    replicas: Annotated[int, Field(ge=1, le=1024)]
    """Number of servers."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)]
    """Number of GPUs that share each layer of the model, in a server or in each of its data-parallel ranks. A rank
    never spans nodes: at most the GPUs of one node.
    """

    data_parallel_size: Annotated[int, Field(ge=1, le=512, exclude_if=lambda ranks: ranks == 1)] = 1
    """Number of data-parallel ranks of each server. Each rank has `tensorParallelSize` GPUs and its own attention
    weights, KV cache and requests; all ranks share the experts. More than 1 only for mixture-of-experts models. A
    server with more GPUs than a node has spans whole nodes, as a LeaderWorkerSet.
    """

    expert_parallel: Annotated[bool | None, Field(exclude_if=is_absent)] = None
    """Whether each GPU holds whole experts instead of a slice of every expert; the default of the model's recipe if
    left out.
    """

    @property
    def gpus(self) -> int:
        """Number of GPUs of one server."""
        return self.tensor_parallel_size * self.data_parallel_size

    def parallelism(self, *, expert_parallel: bool = False, node_gpus: int | None = None) -> Parallelism:
        """Return the parallelism of a server. `expert_parallel` is the model's default, which the stack file's own
        value overrides; with `node_gpus`, a server with more GPUs than that is spread over whole nodes.
        """
        experts = expert_parallel if self.expert_parallel is None else self.expert_parallel
        spread = Parallelism(self.tensor_parallel_size, self.data_parallel_size, experts)
        return spread if node_gpus is None else spread.over_nodes(node_gpus) or spread


class Topology(ConfigPart):
    """Servers of one unit (a router and its servers): either prefill and decode servers, or aggregated servers.

    The short form is one string: `8p-tp1-4d-tp2` or `agg-tp1-16r`; with data and expert parallelism `agg-tp1dp8ep-2r`.
    """

    prefill: Servers | None = None
    """Servers that compute prompts and transfer the KV cache to decode servers."""

    decode: Servers | None = None
    """Servers that generate tokens."""

    aggregated: Servers | None = None
    """Servers that compute prompts and generate tokens."""

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
        """Text of the short form; None if the stack file has the long form. Errors about a short form name the whole
        topology instead of one of its keys.
        """
        return self._source_text

    def __eq__(self, other: object) -> bool:
        """Tell whether the servers are equal, whether written in short or in long form."""
        return isinstance(other, Topology) and self.servers() == other.servers()

    __hash__ = ConfigPart.__hash__

    def servers(self) -> dict[Role, Servers]:
        """Return the servers of each role that a unit has, in the order prefill, decode, aggregated."""
        return {role: servers for role in ROLES if (servers := getattr(self, role)) is not None}

    @property
    def disaggregated(self) -> bool:
        """True if prefill and decode are separate servers."""
        return self.prefill is not None and self.decode is not None

    @property
    def data_parallel(self) -> bool:
        """True if any server has more than one data-parallel rank."""
        return any(servers.data_parallel_size > 1 for servers in self.servers().values())

    @property
    def gpus(self) -> int:
        """Number of GPUs of one unit (a router and its servers)."""
        return sum(servers.replicas * servers.gpus for servers in self.servers().values())

    def __str__(self) -> str:
        """Return the short form (`8p-tp1-4d-tp2`), or a list of the roles if the topology has no short form."""
        servers = self.servers()
        each = {role: part.parallelism() for role, part in servers.items()}
        if all(part.expert_parallel is not False for part in servers.values()):
            if servers.keys() == {"prefill", "decode"}:
                prefill, decode = servers["prefill"], servers["decode"]
                return disaggregated_short_form(prefill.replicas, each["prefill"], decode.replicas, each["decode"])
            if servers.keys() == {"aggregated"}:
                return aggregated_short_form(each["aggregated"], servers["aggregated"].replicas)
        return ", ".join(f"{role} {part.replicas} x {each[role]}" for role, part in servers.items())


MAX_COPIES = 64

Decider = Literal["prefix", "always"]
"""Rule for which prompts are prefilled remotely."""

RouterProfileName = Literal[
    "prefix", "prefix-affinity", "precise-prefix", "session-affinity", "lora-affinity", "token-load", "running-requests"
]
"""Rule by which the endpoint picker chooses servers; `values/endpoint-pickers` has the scorers of each profile."""

PROFILE_NAMES: tuple[RouterProfileName, ...] = get_args(RouterProfileName)
Count = Annotated[int, Field(ge=1, le=1024)]
Threshold = Annotated[float, Field(gt=0)]
WindowSeconds = Annotated[int, Field(ge=0, le=3600)]


class RouterConfig(ConfigPart):
    """Router in front of the model servers."""

    mode: Literal["standalone", "gateway", "none"] = "standalone"
    """`standalone`: an endpoint picker with an Envoy proxy of its own. `gateway`: an endpoint picker that the stack's
    `gateway` calls. `none`: a plain Service that balances connections (the baseline of published benchmarks).
    """

    route: Annotated[Route, Field(exclude_if=lambda route: route == Route())] = Route()
    """With `mode: gateway`: conditions on the requests at the Gateway that go to this model."""

    non_cached_tokens: Annotated[int, Field(ge=1)] = 16
    """Minimum number of prompt tokens missing in the decode server's cache for the prompt to be prefilled remotely; the
    decode server computes prompts with fewer. Never 0: the endpoint picker interprets 0 as "never remotely".
    """

    decider: Annotated[Decider, Field(exclude_if=lambda decider: decider == "prefix")] = "prefix"
    """Prompts that are prefilled remotely: `prefix`, those with at least `nonCachedTokens` uncached tokens; `always`,
    all.
    """

    profile: Annotated[RouterProfileName | None, Field(exclude_if=is_absent)] = None
    """Rule by which the endpoint picker chooses servers. `prefix`: by cached prefixes and waiting requests.
    `token-load`: by the tokens and requests that the picker has sent to a server and that are unanswered.
    `prefix-affinity`: like `token-load`, but among the prefill servers that have cached most of the prompt, unless they
    are much busier, as in llm-d's P/D guide. `precise-prefix`: like `prefix-affinity`, but the cached prefixes are
    those that servers report, not those estimated from earlier requests. `session-affinity`: like `token-load`, but
    requests with a header `x-session-id` go to the servers that answered their session before. `lora-affinity`: by
    loaded LoRA adapters and waiting requests. `running-requests`: by running and waiting requests as servers report
    them. If left out: `prefix` where `workload.sharedPrefixTokens` are a large part of a prompt, otherwise the
    load-based profile that the release supports.
    """

    peak_prefill_tokens_per_s: Annotated[float | None, Field(gt=0, exclude_if=is_absent)] = None
    """With `profile: prefix-affinity` or `precise-prefix`: maximum rate in tokens per second at which a prefill server
    computes prompts, from which the picker estimates how long unfinished prompts still take. If left out, llm-d's
    figure, which is for gpt-oss-120b on an H200.
    """

    config: Annotated[dict[str, JsonValue] | None, Field(exclude_if=is_absent)] = None
    """Complete configuration of the endpoint picker (an EndpointPickerConfig without `apiVersion` and `kind`), in place
    of the one made from `profile` and `decider`. It is checked against the fields that the release's endpoint picker
    accepts.
    """

    flow_control: Annotated[FlowControlConfig | None, Field(exclude_if=is_absent)] = None
    """Flow control: while servers are saturated, requests wait in the endpoint picker, and those of clients with higher
    priority (`frontDoor.priorities`) go first. If left out, requests wait in the servers in the order of their arrival.
    """

    replicas: Annotated[int | None, Field(ge=1, exclude_if=is_absent)] = None
    """With `mode: standalone`: number of router pods, of which one holds the leader lease of the endpoint pickers. If
    left out, the release's number, which is also the maximum.
    """


class WorkloadConfig(ConfigPart):
    """Prompt and output lengths that the deployment is planned and benchmarked for."""

    input_tokens: Annotated[int, Field(ge=1)]
    """Prompt length (ISL) in tokens."""

    output_tokens: Annotated[int, Field(ge=1)]
    """Output length (OSL) in tokens."""

    shared_prefix_tokens: Annotated[int, Field(ge=0, exclude_if=lambda tokens: tokens == 0)] = 0
    """Number of leading prompt tokens shared with other prompts, such as a system prompt or earlier turns of a
    conversation.
    """


class Slo(ConfigPart):
    """Latency targets (service level objectives)."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    """Time to first token in milliseconds."""

    itl_ms: Annotated[float, Field(gt=0)] | None = None
    """Inter-token latency in milliseconds."""


class ServersScaling(ConfigPart):
    """Limits and thresholds for the number of servers of one role in each unit (a router and its servers). A server is
    added while the average over the servers exceeds any threshold.
    """

    min_replicas: Count
    """Minimum number of servers."""

    max_replicas: Count
    """Maximum number of servers. The GPU pools must have room for this many of every role at once."""

    requests: Threshold | None = None
    """Threshold: running and waiting requests of one server."""

    def thresholds(self) -> dict[str, float]:
        """Return the thresholds that are set, by field name."""
        return self.model_dump(exclude={"min_replicas", "max_replicas"}, exclude_none=True)


class PrefillScaling(ServersScaling):
    """Limits and thresholds for prefill servers."""

    prompt_tokens_per_s: Threshold | None = None
    """Threshold: prompt tokens per second of one server: those that it computes, plus the tokens of its waiting prompts
    divided by 30 s.
    """


class DecodeScaling(ServersScaling):
    """Limits and thresholds for decode servers."""

    kv_cache_usage: Annotated[float, Field(gt=0, le=1)] | None = None
    """Threshold: used share of one server's KV cache; 1 is the whole cache."""


class AggregatedScaling(PrefillScaling, DecodeScaling):
    """Limits and thresholds for aggregated servers."""


class Scaling(ConfigPart):
    """Scaling of the number of servers with the load by KEDA, which must be installed in the cluster. The topology
    gives the initial numbers; where both prefill and decode servers are scaled, they keep the topology's ratio.
    """

    prometheus: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    """URL of the Prometheus that collects vLLM's metrics; if left out, that of the llm-d guides,
    `http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090`.
    """

    prefill: PrefillScaling | None = None
    """Scaling of the prefill servers in each unit; their number is fixed if left out."""

    decode: DecodeScaling | None = None
    """Scaling of each unit's decode servers; their number is fixed if left out."""

    aggregated: AggregatedScaling | None = None
    """Scaling of each unit's aggregated servers; their number is fixed if left out."""

    scale_up_window_s: WindowSeconds | None = None
    """Time in seconds that higher load must last before a server is added (Kubernetes' stabilization window); 0 if left
    out.
    """

    scale_down_window_s: WindowSeconds | None = None
    """Time in seconds that lower load must last before a server is removed; 300 if left out."""

    def servers(self) -> dict[Role, ServersScaling]:
        """Return the scaling of each role that is scaled, by role."""
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
    """LoRA adapter of a model. Adding, changing or removing an adapter restarts no server."""

    name: AdapterName
    """Name of the adapter, which requests give as their `model`."""

    repository: Repository
    """Repository on Hugging Face. Where `storage.prewarm` reads from a bucket, the prefix of that name in the bucket.
    """

    revision: Commit
    """Commit of the repository, or the revision of the bucket's files. Servers load each revision under a separate
    name, so that KV cache of one revision is never used for another.
    """

    @property
    def served_name(self) -> str:
        """Name under which servers load this revision of the adapter."""
        return f"{self.name}-{self.revision[:12]}"


class ModelConfig(ConfigPart):
    """A model with its topology, router, workload and vLLM settings."""

    model: str
    """Name of the model in the catalogue, for example `gpt-oss-120b`."""

    name: DnsLabel | None = None
    """Name of the model's Kubernetes objects; if left out, `model` in lower case with dashes for dots."""

    topology: Topology
    """Servers of one unit (a router and its servers), in short form (`8p-tp1-4d-tp2`, `agg-tp1-16r`) or in
    long form.
    """

    copies: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 1
    """Number of identical units, each a router and its servers. KV cache is transferred only within a unit."""

    router: RouterConfig = RouterConfig()
    """Endpoint picker and proxy in front of the servers."""

    workload: WorkloadConfig
    """Prompt and output lengths on which memory estimates, advice and the benchmark are based."""

    slo: Slo | None = None
    """Latency targets for the advice on the topology."""

    engine: Engine = Engine()
    """vLLM settings."""

    adapters: Annotated[Items[Adapter], Field(exclude_if=lambda adapters: not adapters)] = ()
    """LoRA adapters that the servers offer besides the model itself; needs `engine.adapters`, which reserves memory for
    them.
    """

    scaling: Annotated[Scaling | None, Field(exclude_if=is_absent)] = None
    """Scaling of the number of servers with the load; the number is fixed if left out."""

    disaggregated_set: Annotated[bool, Field(exclude_if=lambda together: not together)] = False
    """Whether the prefill and decode servers of each unit are roles of one DisaggregatedSet, whose controller replaces
    servers of both roles in step, instead of a Deployment or LeaderWorkerSet for each role. Needs the LeaderWorkerSet
    controller (`leaderWorkerSets`), and a release that has it.
    """

    @property
    def object_name(self) -> str:
        """Prefix of the names of all Kubernetes objects of the model."""
        return self.name or self.model.lower().replace(".", "-").replace("_", "-")

    def most_replicas(self, role: Role) -> int:
        """Return the maximum number of servers of a role, with scaling, in one unit (a router and its servers)."""
        scaled = self.scaling.servers().get(role) if self.scaling else None
        return scaled.max_replicas if scaled else self.topology.servers()[role].replicas
