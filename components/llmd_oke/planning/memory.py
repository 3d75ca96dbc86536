"""Whether a server's weights, activations and KV cache fit its GPUs."""

from llmd_oke.catalogue import Model, Shape
from llmd_oke.planning.plan import Memory

BYTES_PER_GIB = 2**30


def memory(model: Model, shape: Shape, tensor_parallel_size: int, utilization: float) -> Memory:
    """The memory of one server with `tensor_parallel_size` GPUs.

    KV cache = share of the GPUs' memory that vLLM may take, less weights, less activations; `utilization` is
    vLLM's `--gpu-memory-utilization`. A KV head that is on several GPUs (more GPUs than KV heads, or latent
    attention) is stored on each of them.
    """
    gpu_gib = shape.gpu.memory_gib * tensor_parallel_size
    activation_gib = model.activation_gib_per_gpu * tensor_parallel_size
    key_value_gib = utilization * gpu_gib - model.weights.gib - activation_gib
    bytes_per_token = model.kv_cache.bytes_per_token * key_value_copies(model, tensor_parallel_size)
    tokens = max(0, int(key_value_gib * BYTES_PER_GIB / bytes_per_token))
    return Memory(gpu_gib, model.weights.gib, activation_gib, key_value_gib, tokens)


def key_value_copies(model: Model, tensor_parallel_size: int) -> int:
    """How many GPUs of a server hold the same part of the KV cache."""
    if model.architecture.latent_attention is not None:
        return tensor_parallel_size
    return max(1, tensor_parallel_size // model.architecture.key_value_heads)
