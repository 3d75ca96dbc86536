"""What hardware can't exceed: a measurement beyond it is wrong. Never a forecast."""

from dataclasses import replace

from llmd_oke.tuning.servers.latency import Factors, LatencyModel

_IDEAL = Factors(
    prefill_overhead_s=0.0,
    prefill_compute_efficiency=1.0,
    all_reduce_efficiency=float("inf"),
    decode_layer_s=0.0,
    decode_bytes_factor=1.0,
    decode_flops_factor=0.0,
    decode_sequence_s=0.0,
    transfer_efficiency=1.0,
    handshake_s=0.0,
)


def most_prefill_tokens_per_s(model: LatencyModel, tokens: int, tensor_parallel_size: int) -> float:
    """Prompt tokens per second at the peak rate of the GPUs' matrix units, with nothing else to do."""
    return tokens / ideal(model).server(tensor_parallel_size).prefill_s(tokens)


def least_step_s(model: LatencyModel, batch: int, context_tokens: float, tensor_parallel_size: int) -> float:
    """A decode step that only reads weights and KV cache at the memory's bandwidth, in seconds."""
    return ideal(model).server(tensor_parallel_size).decode_step_s(batch, context_tokens)


def ideal(model: LatencyModel) -> LatencyModel:
    """The same sizes and hardware without any loss: arithmetic for prefills, memory for decode steps."""
    return replace(model, factors=_IDEAL)
