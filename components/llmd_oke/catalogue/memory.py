"""How many tokens the KV cache of a server holds: for planning, and for the tuner, which can't reach planning."""

from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.nodes import Node

BYTES_PER_GIB = 2**30


def key_value_gib(model: Model, node: Node, tensor_parallel_size: int, utilization: float) -> float:
    """Room for the KV cache over all GPUs of a server, in GiB; negative where not even the weights fit.

    KV cache = share of the GPUs' memory that vLLM may take, less weights, less activations; `utilization` is
    vLLM's `--gpu-memory-utilization`.
    """
    gpu_gib = node.gpu.memory_gib * tensor_parallel_size
    return utilization * gpu_gib - model.weights.gib - model.activation_gib_per_gpu * tensor_parallel_size


def key_value_tokens(model: Model, node: Node, tensor_parallel_size: int, utilization: float) -> int:
    """Tokens whose KV cache fits one server beside weights and activations; a bound, as vLLM's profiling run decides.

    A KV head that is on several GPUs (more GPUs than KV heads, or latent attention) is stored on each of them.
    """
    bytes_per_token = model.kv_cache.bytes_per_token * key_value_copies(model, tensor_parallel_size)
    room_gib = key_value_gib(model, node, tensor_parallel_size, utilization)
    return max(0, int(room_gib * BYTES_PER_GIB / bytes_per_token))


def key_value_copies(model: Model, tensor_parallel_size: int) -> int:
    """How many GPUs of a server hold the same part of the KV cache."""
    if model.architecture.latent_attention is not None:
        return tensor_parallel_size
    return max(1, tensor_parallel_size // model.architecture.key_value_heads)
