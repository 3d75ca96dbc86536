"""Arguments that components of serving have in common.

They are also the inputs of the component package, whose analyzer knows neither `Literal` nor unions.
"""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.objects import ModelRef, OverrideArgs, ReleaseRef, ShapeRef


class NodeTaintArgs(TypedDict):
    """A taint of GPU nodes beside those of their shape, which pods on them tolerate."""

    key: str
    """Its key."""
    value: str
    """Its value."""
    effect: str
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class BenchPodArgs(TypedDict):
    """Arguments of a pod that asks a model's servers from inside the cluster."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name of the model's objects, and of its Service."""
    image: str
    """Image with Python and what vLLM depends on: the one that the model's servers run."""
    shape: ShapeRef
    """OCI shape of the servers' nodes, from the catalogue. Its nodes have the image, so that the pod prefers them."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of those nodes beside those of their shape; none if left out."""


class ServersArgs(TypedDict):
    """Equal vLLM servers of one role."""

    replicas: int
    """Number of servers."""
    tensor_parallel_size: int
    """GPUs that share each layer of a server."""
    data_parallel_size: NotRequired[int | None]
    """Ranks of each server, with attention weights, KV cache and requests of their own; 1 if left out."""
    expert_parallel: NotRequired[bool | None]
    """Whether GPUs have whole experts, in place of a part of each; as the model's entry has it if left out."""
    nodes: NotRequired[int | None]
    """Nodes that each server spans, with all of their GPUs and as many of its ranks on each; 1 if left out. With more
    the servers are a LeaderWorkerSet, whose controller must be in the cluster."""
    autoscaled: NotRequired[bool | None]
    """Whether something else changes the number later: `replicas` is then what is started with; false if left out."""
    max_surge: NotRequired[int | None]
    """Pods that an update may add; 0 if left out, as full nodes need it."""
    max_unavailable: NotRequired[int | None]
    """Pods that an update may take away; 1 if left out."""
    create_timeout_s: NotRequired[int | None]
    """Limit of the first start in seconds; the model's start-up budget and ten minutes if left out."""
    update_timeout_s: NotRequired[int | None]
    """Limit of an update in seconds; the start-up budget for each wave of pods and ten minutes if left out."""


class EngineUserArgs(TypedDict):
    """A user by number. It is in the group of the cache's files too."""

    id: int
    """Number of the user, not 0."""
    groups: NotRequired[list[int]]
    """Numbers of the groups that the GPUs' device files belong to on the nodes."""


class KvCacheArgs(TypedDict):
    """Hand-over of KV cache, and KV cache in the nodes' memory."""

    connector: NotRequired[str | None]
    """`nixl`, `mori-io` or `mooncake`; `nixl` if left out."""
    host_memory_gib: NotRequired[int | None]
    """GiB of its node's memory in which each prefill or aggregated server keeps KV cache; none if left out."""


class AdapterSlotsArgs(TypedDict):
    """Room for LoRA adapters in each server."""

    slots: NotRequired[int | None]
    """Adapters whose requests a server computes at a time; 4 if left out."""
    max_rank: NotRequired[int | None]
    """The largest rank of an adapter, one of vLLM's; 16 if left out."""
    host_slots: NotRequired[int | None]
    """Adapters that a server keeps in its node's memory; as many as `slots` if left out."""


class SpeculationArgs(TypedDict):
    """Speculative decoding by what the catalogue knows to draft for the model."""

    tokens: NotRequired[int | None]
    """Tokens that are drafted for each sequence at each step; the catalogue's if left out."""
    revision: NotRequired[str | None]
    """Commit of the draft's repository; the catalogue's if left out."""


class RoleEngineArgs(TypedDict):
    """vLLM settings of the servers of one role, in place of those of all roles or beside them."""

    settings: NotRequired[dict[str, str] | None]
    """Settings as text, by vLLM's flag with underscores: `max_num_seqs`, `max_num_batched_tokens` and
    `gpu_memory_utilization`."""
    extra_args: NotRequired[list[str]]
    """Further vLLM arguments, after those of all."""
    env: NotRequired[dict[str, str]]
    """Further environment variables; they win over those of all."""


class EngineArgs(TypedDict):
    """vLLM settings; defaults are those of `values/vllm/engine-settings.yaml`."""

    max_model_len: NotRequired[int]
    """vLLM's `--max-model-len` in tokens; the model's own if left out."""
    max_num_seqs: NotRequired[int]
    """vLLM's `--max-num-seqs`; the kit's default if left out."""
    gpu_memory_utilization: NotRequired[float]
    """vLLM's `--gpu-memory-utilization`; the kit's default if left out."""
    block_size: NotRequired[int]
    """vLLM's `--block-size` in tokens; the release's if left out."""
    settings: NotRequired[dict[str, str] | None]
    """Further settings of the stack file's `engine` as text, by vLLM's flag with underscores; `true` or `false` for a
    flag that is given or not."""
    features: NotRequired[list[str] | None]
    """Features of the model that servers have, such as `tool-calling`; all that the catalogue knows of it if left
    out."""
    adapters: NotRequired[AdapterSlotsArgs | None]
    """Room for LoRA adapters, which a pre-warmed model cache has; none if left out."""
    speculation: NotRequired[SpeculationArgs | None]
    """Speculative decoding; none if left out."""
    kv_cache: NotRequired[KvCacheArgs | None]
    """Hand-over of KV cache, and KV cache in the nodes' memory."""
    extra_args: NotRequired[list[str]]
    """Further vLLM arguments."""
    env: NotRequired[dict[str, str]]
    """Further environment variables; they win over the kit's own."""
    user: NotRequired[EngineUserArgs | None]
    """A user that servers run as; the image's own, root, if left out."""
    prefill: NotRequired[RoleEngineArgs | None]
    """Settings of prefill servers alone."""
    decode: NotRequired[RoleEngineArgs | None]
    """Settings of decode servers alone."""
    aggregated: NotRequired[RoleEngineArgs | None]
    """Settings of aggregated servers alone."""


class PrewarmArgs(TypedDict):
    """Download of weights into a cache before servers start."""

    source: str
    """`hugging-face` or `object-storage`; a bucket has each model's files under its repository's name, and vocabularies
    under `encodings/`."""
    revision: NotRequired[str]
    """Commit of the repository, or of a bucket's files; the catalogue's commit of the model if left out."""
    connections: NotRequired[int]
    """Files that one download reads at a time; 8 if left out."""
    belongs_to_root: NotRequired[bool]
    """Whether the folder is root's and has to be given to the user that fills it, as on nodes' disks and Lustre;
    File Storage maps all users to one by its export, which is what is assumed if left out."""


class DraftFilesArgs(TypedDict):
    """Files of a draft that has a repository of its own."""

    repository: str
    """Repository of Hugging Face, or folder of the bucket."""
    revision: NotRequired[str | None]
    """Commit of it; what lies there at the time of the download if left out."""


class ModelCacheMountArgs(TypedDict):
    """A cache that is on each node (`path`) or shared by all of them (`claim`)."""

    path: NotRequired[str]
    """Folder on the nodes."""
    claim: NotRequired[pulumi.Input[str]]
    """Claim of a volume that all nodes share."""
    compiled_path: NotRequired[str | None]
    """Folder on the nodes for code that servers compile as they start, of one stack alone; kept nowhere if left
    out."""
    prewarm: NotRequired[PrewarmArgs]
    """How weights get there before servers start; servers download them themselves if left out."""
    adapters: NotRequired[str]
    """Name of the ConfigMap with the list of the model's LoRA adapters; servers have none if left out."""
    drafts: NotRequired[list[DraftFilesArgs]]
    """Repositories of drafts for the model, which come beside its weights; none if left out."""


class GatewayPodsArgs(TypedDict):
    """The pods of a Gateway, which ask endpoint pickers and send requests to servers."""

    namespace: str
    """Their namespace."""
    labels: dict[str, str]
    """Labels that they have."""


class TracingArgs(TypedDict):
    """Target of traces (OTLP over gRPC)."""

    endpoint: str
    """Address of a collector without TLS, such as `http://otel-collector:4317`."""
    sampled_share: float
    """Share of the requests that are traced, where their client hasn't decided."""


class DestinationArgs(TypedDict):
    """Addresses that pods may connect to."""

    cidr: str
    """Block of IPv4 addresses."""
    ports: NotRequired[list[int] | None]
    """TCP ports; every port and protocol if left out."""


class UnitArgs(TypedDict):
    """Arguments that every unit needs, whatever its roles."""

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Parts of the release that others take the place of; none if left out."""
    model: ModelRef
    """Model of the catalogue."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beside those of their shape; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit."""
    service_account: pulumi.Input[str]
    """Service account of the model servers."""
    model_label: NotRequired[str | None]
    """Name that the model's objects carry as label; the unit's name if left out."""
    rdma: NotRequired[bool | None]
    """Whether servers that hand KV cache over get a virtual function of the RDMA network for each of their GPUs; true
    if left out. Others get none."""
    virtual_functions: NotRequired[str | None]
    """Whose names virtual functions have where others made them, such as `oci-hpc-oke`; the kit's own if left out."""
    priority_class_prefix: NotRequired[str | None]
    """Prefix of the priority classes by size; no priority class if left out."""
    inference_pool: NotRequired[str | None]
    """InferencePool of the unit: where the release can, decode servers have prompts prefilled by its pods alone,
    whatever a client's headers say; not checked if left out."""
    engine: NotRequired[EngineArgs | None]
    """vLLM settings."""
    kv_events: NotRequired[bool | None]
    """Whether servers report on their KV cache to the unit's router, and make tokens of prompts for it; false if left
    out."""
    keeps_to_pools: NotRequired[bool | None]
    """Whether pods of a server that spans nodes have nodes of one pool or none at all, which takes nodes with the label
    of their pool and Kubernetes 1.31; they prefer one pool if left out."""
    routed: NotRequired[bool | None]
    """Whether requests come through a router: only the kit's pods may reach the servers then; false if left out."""
    signed_in: NotRequired[bool | None]
    """Without `routed`: whether clients sign in at the stack's front door, so that it, pods that measure, monitoring
    and the API server alone send requests; false if left out."""
    gateway: NotRequired[GatewayPodsArgs | None]
    """With `routed`: pods of the Gateway that sends requests; the Envoys beside the picker do if left out."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """Addresses that the API server speaks to pods from; without them it reaches no server."""
    model_cache: NotRequired[ModelCacheMountArgs | None]
    """Where weights are kept; a folder of each pod if left out."""
    tracing: NotRequired[TracingArgs | None]
    """Where model servers and routing sidecars send traces; nowhere if left out."""
