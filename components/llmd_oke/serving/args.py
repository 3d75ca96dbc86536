"""Arguments that several components of `llmd_oke.serving` share.

They are also inputs of the component package, whose analyzer supports neither `Literal` nor unions.
"""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.objects import ModelRef, OverrideArgs, ReleaseRef, ShapeRef


class NodeTaintArgs(TypedDict):
    """A taint of GPU nodes beyond those of their shape, which the pods on these nodes tolerate."""

    key: str
    """Key of the taint."""
    value: str
    """Value of the taint."""
    effect: str
    """Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class BenchPodArgs(TypedDict):
    """Arguments of a pod that sends requests to a model's servers from inside the cluster."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name of the model's objects, which is also the name of its Service."""
    image: str
    """Image with Python and the dependencies of vLLM: the one that the model's servers run."""
    shape: ShapeRef
    """OCI shape of the servers' nodes, from the catalogue. The pod prefers such nodes, since they have its image."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of those nodes beyond those of their shape; none if left out."""


class ServersArgs(TypedDict):
    """Identical vLLM servers of one role."""

    replicas: int
    """Number of servers."""
    tensor_parallel_size: int
    """GPUs over which each layer of a server is split (vLLM's `--tensor-parallel-size`)."""
    data_parallel_size: NotRequired[int | None]
    """Data-parallel ranks of each server, each with attention weights, KV cache and requests of its own; 1 if left out.
    """
    expert_parallel: NotRequired[bool | None]
    """Whether each GPU holds whole experts instead of a part of every expert; the value in the model's catalogue entry
    if left out."""
    nodes: NotRequired[int | None]
    """Nodes that each server spans, with all GPUs of each node and an equal number of ranks on each; 1 if left out.
    With more than 1 the servers are a LeaderWorkerSet, whose controller must be installed in the cluster."""
    autoscaled: NotRequired[bool | None]
    """Whether an autoscaler changes the number of servers: `replicas` is then the initial number; false if left out."""
    max_surge: NotRequired[int | None]
    """Pods that a rolling update may add; 0 if left out, since full nodes have no room for more."""
    max_unavailable: NotRequired[int | None]
    """Pods that a rolling update may remove at a time; 1 if left out."""
    create_timeout_s: NotRequired[int | None]
    """Limit of the first start in seconds; the model's start-up budget plus ten minutes if left out."""
    update_timeout_s: NotRequired[int | None]
    """Limit of an update in seconds; the start-up budget for each batch of replaced pods plus ten minutes if left out.
    """


class EngineUserArgs(TypedDict):
    """User that the servers' processes run as. The group that owns the cache's files is the user's primary group."""

    id: int
    """User ID, not 0."""
    groups: NotRequired[list[int]]
    """IDs of the groups that own the GPUs' device files on the nodes."""


class KvCacheArgs(TypedDict):
    """Settings of the hand-over of KV cache, and of KV cache offloaded to host memory and disks."""

    connector: NotRequired[str | None]
    """`nixl`, `mori-io` or `mooncake`; `nixl` if left out."""
    host_memory_gib: NotRequired[int | None]
    """Host memory in GiB that each prefill or aggregated server uses for offloaded KV cache; none if left out."""
    disk_gib: NotRequired[int | None]
    """Space in GiB on each node's local disks for files with offloaded KV cache; none if left out. Needs
    `host_memory_gib`, and a model cache with `kv_cache_path`."""


class AdapterSlotsArgs(TypedDict):
    """Limits on LoRA adapters in each server."""

    slots: NotRequired[int | None]
    """Adapters that one batch may use (vLLM's `--max-loras`); 4 if left out."""
    max_rank: NotRequired[int | None]
    """Largest rank of an adapter (vLLM's `--max-lora-rank`, which accepts certain values only); 16 if left out."""
    host_slots: NotRequired[int | None]
    """Adapters that a server keeps in host memory (vLLM's `--max-cpu-loras`); as many as `slots` if left out."""


class SpeculationArgs(TypedDict):
    """Speculative decoding with the draft model or draft layers that the catalogue names for the model."""

    tokens: NotRequired[int | None]
    """Number of draft tokens for each sequence in each step; the catalogue's if left out."""
    revision: NotRequired[str | None]
    """Commit of the draft's repository; the catalogue's if left out."""


class RoleEngineArgs(TypedDict):
    """vLLM settings of the servers of one role. They replace or extend the settings of all roles."""

    settings: NotRequired[dict[str, str] | None]
    """Settings as text, by vLLM's flag with underscores: `max_num_seqs`, `max_num_batched_tokens` and
    `gpu_memory_utilization`."""
    extra_args: NotRequired[list[str]]
    """Additional vLLM arguments, appended to those of all roles."""
    env: NotRequired[dict[str, str]]
    """Additional environment variables; they override those of all roles."""


class EngineArgs(TypedDict):
    """vLLM settings; the defaults are in `values/vllm/engine-settings.yaml`."""

    max_model_len: NotRequired[int]
    """vLLM's `--max-model-len` in tokens; the model's maximum if left out."""
    max_num_seqs: NotRequired[int]
    """vLLM's `--max-num-seqs`; the kit's default if left out."""
    gpu_memory_utilization: NotRequired[float]
    """vLLM's `--gpu-memory-utilization`; the kit's default if left out."""
    block_size: NotRequired[int]
    """vLLM's `--block-size` in tokens; the release's if left out."""
    settings: NotRequired[dict[str, str] | None]
    """Further settings of the stack file's `engine` as text, by vLLM's flag with underscores; `true` or `false` for a
    flag without a value."""
    features: NotRequired[list[str] | None]
    """Features of the model to enable, such as `tool-calling`; all features in the model's catalogue entry if left out.
    """
    adapters: NotRequired[AdapterSlotsArgs | None]
    """Limits on LoRA adapters, which a pre-warmed model cache provides; no adapters if left out."""
    speculation: NotRequired[SpeculationArgs | None]
    """Speculative decoding; none if left out."""
    kv_cache: NotRequired[KvCacheArgs | None]
    """Settings of the hand-over of KV cache, and of KV cache offloaded to host memory."""
    extra_args: NotRequired[list[str]]
    """Additional vLLM arguments."""
    env: NotRequired[dict[str, str]]
    """Additional environment variables; they override the kit's."""
    user: NotRequired[EngineUserArgs | None]
    """User that the servers' processes run as; the user of the image, root, if left out."""
    prefill: NotRequired[RoleEngineArgs | None]
    """Settings of prefill servers only."""
    decode: NotRequired[RoleEngineArgs | None]
    """Settings of decode servers only."""
    aggregated: NotRequired[RoleEngineArgs | None]
    """Settings of aggregated servers only."""


class PrewarmArgs(TypedDict):
    """Download of weights into a cache before servers start."""

    source: str
    """`hugging-face` or `object-storage`. A bucket has each model's files below a prefix that is the repository's name,
    and the vocabularies' files below `encodings/`."""
    revision: NotRequired[str]
    """Commit of the repository, or of the files in a bucket; the commit in the model's catalogue entry if left out."""
    connections: NotRequired[int]
    """Files that one Job downloads concurrently; 8 if left out."""
    belongs_to_root: NotRequired[bool]
    """Whether root owns the cache's directory, so that a first container must change the owner to the user that
    downloads, as on local disks and Lustre, but not for File Storage, whose export maps all users to one. If left out,
    `ModelCache` goes by the kind of the cache, and a unit's servers change no owner."""


class DraftFilesArgs(TypedDict):
    """Repository of a draft whose files aren't part of the model's repository."""

    repository: str
    """Repository on Hugging Face, or prefix of the bucket's objects."""
    revision: NotRequired[str | None]
    """Commit of the repository; the newest at the time of the download if left out."""


class ModelCacheMountArgs(TypedDict):
    """Model cache as a server mounts it: a directory of each node (`path`) or a volume shared by all
    nodes (`claim`).
    """

    path: NotRequired[str]
    """Directory on the nodes."""
    claim: NotRequired[pulumi.Input[str]]
    """Name of the PersistentVolumeClaim of a volume that all nodes share."""
    compiled_path: NotRequired[str | None]
    """Directory on the nodes, of this stack only, for code that servers compile at their start; not stored if left out.
    """
    kv_cache_path: NotRequired[str | None]
    """Directory on the nodes, of this stack only, for files with KV cache; needed by servers with `disk_gib`."""
    prewarm: NotRequired[PrewarmArgs]
    """Download of the weights before servers start; each server downloads the weights itself if left out."""
    adapters: NotRequired[str]
    """Name of the ConfigMap with the list of the model's LoRA adapters; no adapters if left out."""
    drafts: NotRequired[list[DraftFilesArgs]]
    """Repositories of drafts for the model, cached beside its weights; none if left out."""


class GatewayPodsArgs(TypedDict):
    """Pods of a Gateway, which call endpoint pickers and send requests to servers."""

    namespace: str
    """Namespace of the pods."""
    labels: dict[str, str]
    """Labels that select the pods."""


class TracingArgs(TypedDict):
    """Destination of traces (OTLP over gRPC), and the share of requests that is traced."""

    endpoint: str
    """Address of a collector without TLS, such as `http://otel-collector:4317`."""
    sampled_share: float
    """Share of the requests to trace, 0 to 1, where the client hasn't decided."""


class DestinationArgs(TypedDict):
    """IPv4 addresses and ports that pods may connect to."""

    cidr: str
    """IPv4 CIDR block."""
    ports: NotRequired[list[int] | None]
    """TCP ports; all ports of all protocols if left out."""


class UnitArgs(TypedDict):
    """Arguments that aggregated and prefill/decode units share. A unit is the servers of one topology with a router of
    their own.
    """

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    model: ModelRef
    """Model of the catalogue."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beyond those of their shape; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit's objects."""
    service_account: pulumi.Input[str]
    """Service account of the model servers."""
    model_label: NotRequired[str | None]
    """Value of the label `llmd-oke/model` on the unit's objects; the unit's name if left out."""
    rdma: NotRequired[bool | None]
    """Whether servers that hand KV cache over or span nodes get one RDMA virtual function for each of their GPUs; true
    if left out. Other servers get none."""
    virtual_functions: NotRequired[str | None]
    """Naming scheme of the virtual functions' resource and network attachment if the kit didn't create them, such as
    `oci-hpc-oke`; the kit's own if left out."""
    priority_class_prefix: NotRequired[str | None]
    """Prefix of the names of the PriorityClasses, one for each number of GPUs; no PriorityClass if left out."""
    inference_pool: NotRequired[str | None]
    """Name of the unit's InferencePool. With a release that supports it, decode servers then send prompts for remote
    prefill only to pods of this pool, whatever the headers of a request say; not checked if left out."""
    engine: NotRequired[EngineArgs | None]
    """vLLM settings."""
    kv_events: NotRequired[bool | None]
    """Whether servers publish KV cache events to the unit's router and tokenize prompts for it; false if left out."""
    keeps_to_pools: NotRequired[bool | None]
    """Whether all pods of a server that spans nodes must run in one pool, instead of only preferring one pool. It needs
    nodes with the label of their pool, and Kubernetes 1.31; false if left out."""
    routed: NotRequired[bool | None]
    """Whether requests come through a router, so that network policies admit only the kit's pods to the servers; false
    if left out."""
    signed_in: NotRequired[bool | None]
    """Without `routed`: whether clients authenticate at the stack's front door, so that only the front door, measuring
    pods, monitoring and the API server may send requests; false if left out."""
    gateway: NotRequired[GatewayPodsArgs | None]
    """With `routed`: pods of the Gateway that sends requests; the Envoys beside the endpoint pickers send them if left
    out."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """Source addresses of connections from the API server to pods; none are admitted if left out."""
    model_cache: NotRequired[ModelCacheMountArgs | None]
    """Cache with the weights; an `emptyDir` of each pod if left out."""
    tracing: NotRequired[TracingArgs | None]
    """Destination of the traces of model servers and routing sidecars; no traces if left out."""
