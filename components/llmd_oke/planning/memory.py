"""Whether a server's weights, activations and KV cache fit its GPUs."""

from llmd_oke.catalogue import Model, Shape
from llmd_oke.catalogue.memory import key_value_gib, key_value_tokens
from llmd_oke.planning.plan import Memory


def memory(model: Model, shape: Shape, tensor_parallel_size: int, utilization: float) -> Memory:
    """The memory of one server with `tensor_parallel_size` GPUs, of which vLLM may take the share `utilization`."""
    return Memory(
        gpu_gib=shape.gpu.memory_gib * tensor_parallel_size,
        weights_gib=model.weights.gib,
        activation_gib=model.activation_gib_per_gpu * tensor_parallel_size,
        key_value_gib=key_value_gib(model, shape, tensor_parallel_size, utilization),
        key_value_tokens=key_value_tokens(model, shape, tensor_parallel_size, utilization),
    )
