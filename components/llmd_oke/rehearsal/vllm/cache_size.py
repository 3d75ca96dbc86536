"""How many KV blocks a server has: the memory of its GPUs without weights and activations."""

from dataclasses import dataclass

from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.shapes import Shape
from llmd_oke.rehearsal.vllm.command import Settings
from llmd_oke.rehearsal.vllm.refusal import Refusal

_GIB = 2**30


@dataclass(frozen=True)
class CacheSize:
    """The KV cache of a server. `bytes_per_token` counts each token once, whatever the number of GPUs."""

    blocks: int
    block_size: int
    max_model_len: int
    bytes_per_token: float
    available_gib_per_gpu: float

    @property
    def tokens(self) -> int:
        """All tokens that fit."""
        return self.blocks * self.block_size


def cache_size(settings: Settings, model: Model, shape: Shape, gpus: int | None = None) -> CacheSize:
    """The KV cache that vLLM's profiling run would find. `gpus` is None where the container has all of the node's.

    Raises:
        Refusal: the model can't be split so, or its weights or one sequence of full length don't fit.
    """
    _check_split(settings.tensor_parallel_size, model, shape.gpus if gpus is None else gpus)
    max_model_len = _max_model_len(settings, model)
    bytes_per_token = model.kv_cache.bytes_per_token * (0.5 if settings.kv_cache_dtype.startswith("fp8") else 1.0)
    available_gib = _available_gib(settings, model, shape)
    token_bytes_per_gpu = bytes_per_token / _shards(model, settings.tensor_parallel_size)
    blocks = int(available_gib * _GIB / (token_bytes_per_gpu * settings.block_size))
    blocks = settings.num_gpu_blocks_override or blocks
    _check_room(blocks * settings.block_size, max_model_len, token_bytes_per_gpu)
    return CacheSize(blocks, settings.block_size, max_model_len, bytes_per_token, available_gib)


def _check_split(tensor_parallel_size: int, model: Model, gpus: int) -> None:
    heads = model.architecture.attention_heads
    if tensor_parallel_size > gpus:
        raise Refusal(
            1,
            f"ValueError: World size ({tensor_parallel_size}) is larger than the number of available GPUs ({gpus}) in "
            "this node. If this is intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.",
        )
    if tensor_parallel_size < 1 or heads % tensor_parallel_size:
        raise Refusal(
            1,
            f"ValueError: Total number of attention heads ({heads}) must be divisible by tensor parallel size "
            f"({tensor_parallel_size}).",
        )


def _max_model_len(settings: Settings, model: Model) -> int:
    asked = settings.max_model_len
    if asked is None:
        return model.max_model_len
    if asked > model.max_model_len and not settings.allow_long_max_model_len:
        raise Refusal(
            1,
            f"ValueError: User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_model_len} or model_max_length=None in model's config.json). "
            "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
        )
    if not settings.enable_chunked_prefill and settings.max_num_batched_tokens < asked:
        raise Refusal(
            1,
            f"ValueError: max_num_batched_tokens ({settings.max_num_batched_tokens}) is smaller than max_model_len "
            f"({asked}). Please increase max_num_batched_tokens or decrease max_model_len.",
        )
    return asked


def _available_gib(settings: Settings, model: Model, shape: Shape) -> float:
    weights_gib = model.weights.gib / settings.tensor_parallel_size
    if weights_gib > shape.gpu.memory_gib:
        raise Refusal(
            1,
            f"torch.OutOfMemoryError: HIP out of memory. GPU 0 has a total capacity of {shape.gpu.memory_gib:.2f} GiB; "
            f"the weights take {weights_gib:.2f} GiB of each GPU.",
        )
    if settings.kv_cache_memory_bytes is not None:
        return settings.kv_cache_memory_bytes / _GIB
    available_gib = shape.gpu.memory_gib * settings.gpu_memory_utilization - weights_gib - model.activation_gib_per_gpu
    if available_gib <= 0:
        raise Refusal(
            1,
            f"Available KV cache memory: {available_gib:.2f} GiB\nValueError: No available memory for the cache "
            "blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        )
    return available_gib


def _shards(model: Model, tensor_parallel_size: int) -> int:
    """Over how many GPUs a token's KV cache is split: too few heads, and a latent cache, are replicated."""
    if model.architecture.latent_attention is not None:
        return 1
    return min(tensor_parallel_size, model.architecture.key_value_heads)


def _check_room(tokens: int, max_model_len: int, token_bytes_per_gpu: float) -> None:
    if tokens >= max_model_len:
        return
    needed_gib, available_gib = max_model_len * token_bytes_per_gpu / _GIB, tokens * token_bytes_per_gpu / _GIB
    raise Refusal(
        1,
        f"ValueError: To serve at least one request with the models's max seq len ({max_model_len}), "
        f"({needed_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({available_gib:.2f} GiB). Based on the available memory, the estimated maximum model length is {tokens}. "
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    )
