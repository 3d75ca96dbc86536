"""Arguments that the units have in common.

They are also the inputs of the component package, whose analyzer knows neither `Literal` nor unions.
"""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.serving.cache_args import ModelCacheMountArgs
from llmd_oke.serving.lookup import OverrideArgs


class NodeTaintArgs(TypedDict):
    """A taint of GPU nodes beside those of their shape, which pods on them tolerate."""

    key: str
    """Its key."""
    value: str
    """Its value."""
    effect: str
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class ServersArgs(TypedDict):
    """Equal vLLM servers of one role."""

    replicas: int
    """Number of servers."""
    tensor_parallel_size: int
    """GPUs of each server."""
    autoscaled: NotRequired[bool]
    """Whether something else changes the number later: `replicas` is then what is started with; false if left out."""
    max_surge: NotRequired[int]
    """Pods that an update may add; 0 if left out, as full nodes need it."""
    max_unavailable: NotRequired[int]
    """Pods that an update may take away; 1 if left out."""
    create_timeout_s: NotRequired[int]
    """Limit of the first start in seconds; the model's start-up budget and ten minutes if left out."""
    update_timeout_s: NotRequired[int]
    """Limit of an update in seconds; the start-up budget for each wave of pods and ten minutes if left out."""


class EngineArgs(TypedDict):
    """vLLM settings."""

    max_model_len: NotRequired[int]
    """vLLM's `--max-model-len` in tokens; the model's own if left out."""
    max_num_seqs: NotRequired[int]
    """vLLM's `--max-num-seqs`; 256 if left out."""
    gpu_memory_utilization: NotRequired[float]
    """vLLM's `--gpu-memory-utilization`; 0.95 if left out."""
    block_size: NotRequired[int]
    """vLLM's `--block-size` in tokens; the release's if left out."""
    extra_args: NotRequired[list[str]]
    """Further vLLM arguments."""
    env: NotRequired[dict[str, str]]
    """Further environment variables; they win over the kit's own."""


class UnitArgs(TypedDict):
    """What every unit needs, whatever its roles."""

    release: str
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs]
    """Parts of the release that others take the place of; none if left out."""
    model: str
    """Model of the catalogue."""
    shape: str
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs]]
    """Taints of the nodes beside those of their shape; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit."""
    service_account: pulumi.Input[str]
    """Service account of the model servers."""
    model_label: NotRequired[str]
    """Name that the model's objects carry as label; the unit's name if left out."""
    rdma: NotRequired[bool]
    """Whether each server gets a virtual function of the RDMA network for each of its GPUs; true if left out."""
    virtual_functions: NotRequired[str]
    """Whose names virtual functions have where others made them, such as `oci-hpc-oke`; the kit's own if left out."""
    priority_class_prefix: NotRequired[str]
    """Prefix of the priority classes by size; no priority class if left out."""
    inference_pool: NotRequired[str]
    """InferencePool of the unit: where the release can, decode servers have prompts prefilled by its pods alone,
    whatever a client's headers say; not checked if left out."""
    engine: NotRequired[EngineArgs]
    """vLLM settings."""
    routed: NotRequired[bool]
    """Whether requests come through a router: only the kit's pods may reach the servers then; false if left out."""
    control_plane_cidrs: NotRequired[list[str]]
    """Addresses that the API server speaks to pods from; if left out, every pod may reach the servers."""
    model_cache: NotRequired[ModelCacheMountArgs]
    """Where weights are kept; a folder of each pod if left out."""
