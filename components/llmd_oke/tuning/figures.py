"""The latency figures in `values/latency`, and the latency model that they make of a catalogue's model and shape."""

from enum import StrEnum
from functools import cache

from llmd_oke.catalogue.files import Entry, entry, names
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.shapes import Shape
from llmd_oke.tuning.latency import Factors, Hardware, LatencyModel, Sizes


class Basis(StrEnum):
    """How far a figure may be trusted; a report must say it beside each predicted number."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    BOUND = "bound"


class SizeFigures(Entry):
    """Parameters in billions and weights in GB (10^9 bytes) that a token passes through or a step reads."""

    prefill_parameters_billions: float
    decode_parameters_billions: float
    dense_weight_gb: float
    expert_weight_gb: float


class HardwareFigures(Entry):
    """Limits for this model's number format; memory bandwidth and ports are the shape's."""

    basis: Basis
    dense_tflops: float
    link_gb_per_s: float


class PrefillFigures(Entry):
    """Factors of a prefill."""

    basis: Basis
    overhead_s: float
    compute_efficiency: float
    all_reduce_efficiency: float


class DecodeFigures(Entry):
    """Factors of a decode step."""

    basis: Basis
    layer_s: float
    bytes_factor: float
    flops_factor: float
    sequence_s: float


class TransferFigures(Entry):
    """Factors of a KV transfer."""

    basis: Basis
    efficiency: float
    handshake_s: float


class LatencyFigures(Entry):
    """One file of `values/latency`: a model on a GPU product."""

    model: str
    gpu: str
    sizes: SizeFigures
    hardware: HardwareFigures
    prefill: PrefillFigures
    decode: DecodeFigures
    transfer: TransferFigures


@cache
def latency_figures(model_name: str) -> LatencyFigures | None:
    """The figures of that model, or None where the kit has none."""
    return entry("latency", model_name, LatencyFigures)


def latency_figure_names() -> list[str]:
    """All models that have latency figures."""
    return names("latency")


def latency_model(model: Model, shape: Shape, key_value_bytes_per_token: float | None = None) -> LatencyModel | None:
    """The latency model of a model on a shape, or None where there are no figures for its GPU.

    `key_value_bytes_per_token` replaces the catalogue's, for a KV cache in another number format.
    """
    figures = latency_figures(model.name)
    if figures is None or figures.gpu != shape.gpu.product:
        return None
    cached = model.kv_cache.bytes_per_token if key_value_bytes_per_token is None else key_value_bytes_per_token
    return LatencyModel(_sizes(model, figures.sizes, cached), _hardware(shape, figures.hardware), _factors(figures))


def _sizes(model: Model, figures: SizeFigures, key_value_bytes_per_token: float) -> Sizes:
    architecture = model.architecture
    experts, window = architecture.experts, architecture.sliding_window
    return Sizes(
        layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        attention_heads=architecture.attention_heads,
        head_dim=architecture.head_dim,
        prefill_parameters=figures.prefill_parameters_billions * 1e9,
        decode_parameters=figures.decode_parameters_billions * 1e9,
        dense_bytes=figures.dense_weight_gb * 1e9,
        expert_bytes=figures.expert_weight_gb * 1e9,
        experts=experts.count if experts else 0,
        active_experts=experts.active if experts else 0,
        key_value_bytes_per_token=key_value_bytes_per_token,
        window_tokens=window.tokens if window else 0,
        window_layers=window.layers if window else 0,
    )


def _hardware(shape: Shape, figures: HardwareFigures) -> Hardware:
    return Hardware(
        memory_bytes_per_s=shape.gpu.memory_bandwidth_gb_per_s * 1e9,
        flops=figures.dense_tflops * 1e12,
        link_bytes_per_s=figures.link_gb_per_s * 1e9,
        port_bytes_per_s=shape.rdma.port_gbit_per_s * 1e9 / 8,
    )


def _factors(figures: LatencyFigures) -> Factors:
    return Factors(
        prefill_overhead_s=figures.prefill.overhead_s,
        prefill_compute_efficiency=figures.prefill.compute_efficiency,
        all_reduce_efficiency=figures.prefill.all_reduce_efficiency,
        decode_layer_s=figures.decode.layer_s,
        decode_bytes_factor=figures.decode.bytes_factor,
        decode_flops_factor=figures.decode.flops_factor,
        decode_sequence_s=figures.decode.sequence_s,
        transfer_efficiency=figures.transfer.efficiency,
        handshake_s=figures.transfer.handshake_s,
    )
