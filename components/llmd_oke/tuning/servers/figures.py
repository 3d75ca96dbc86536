"""The latency figures in `values/latency`, and the latency model that they make of a catalogue's model and shape."""

from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import Field, ValidationError

from llmd_oke.catalogue.files import Entry, entry, names, read_yaml
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.shapes import Shape
from llmd_oke.errors import KitError
from llmd_oke.results.files import explain
from llmd_oke.results.row import Basis
from llmd_oke.tuning.servers.latency import Factors, Hardware, LatencyModel, Sizes


class Fit(Entry):
    """What a section was fitted to, and how well. Errors are mean absolute errors of a time, as shares of it."""

    source: str
    """Where the measurements are from."""
    points: int
    tensor_parallel_sizes: tuple[int, ...]
    most_sequences: float
    """The largest batch, or concurrency of prompts, that was measured."""
    most_tokens: float
    """The longest prompt (prefill) or mean context (decode) that was measured."""
    error: float
    """Of the points themselves."""
    unseen_load_error: float | None = None
    """Of each load, predicted from the others; None where there are too few."""
    unseen_size_error: float | None = None
    """Of each tensor parallel size, predicted from the others; None where there are too few."""


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
    fit: Fit | None = None


class DecodeFigures(Entry):
    """Factors of a decode step."""

    basis: Basis
    layer_s: float
    bytes_factor: float
    flops_factor: float
    sequence_s: float
    fixed_s: dict[int, float] = Field(default_factory=dict[int, float])
    """Beside the rest, by tensor parallel size."""
    fit: Fit | None = None


class TransferFigures(Entry):
    """Factors of a KV transfer."""

    basis: Basis
    efficiency: float
    handshake_s: float


class LatencyFigures(Entry):
    """One file of `values/latency`: a model on a GPU product."""

    model: str
    gpu: str
    image: str | None = None
    """The vLLM image that was measured; None where figures of several are joined."""
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


def read_figures(path: Path) -> LatencyFigures:
    """The figures of a file that `figures_text` wrote, or that has the form of those in `values/latency`.

    Raises:
        KitError: the file can't be read, or has another form.
    """
    try:
        return LatencyFigures.model_validate(read_yaml(path))
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise KitError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        raise KitError(
            f"{path} has no latency figures: {explain(error)}", "`llmd-oke tune fit` makes such files."
        ) from error


def figures_text(figures: LatencyFigures) -> str:
    """The figures as YAML, rounded to four digits."""
    document = figures.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(_rounded(document), sort_keys=False, width=120)


def latency_model(model: Model, shape: Shape, key_value_bytes_per_token: float | None = None) -> LatencyModel | None:
    """The latency model of a model on a shape, or None where there are no figures for its GPU.

    `key_value_bytes_per_token` replaces the catalogue's, for a KV cache in another number format.
    """
    figures = latency_figures(model.name)
    if figures is None or figures.gpu != shape.gpu.product:
        return None
    return latency_model_of(figures, model, shape, key_value_bytes_per_token)


def latency_model_of(
    figures: LatencyFigures, model: Model, shape: Shape, key_value_bytes_per_token: float | None = None
) -> LatencyModel:
    """The latency model that some figures make of a model and a shape."""
    cached = model.kv_cache.bytes_per_token if key_value_bytes_per_token is None else key_value_bytes_per_token
    return LatencyModel(_sizes(model, figures.sizes, cached), _hardware(shape, figures.hardware), _factors(figures))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in cast("dict[Any, Any]", value).items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


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
        decode_fixed_s=tuple(sorted(figures.decode.fixed_s.items())),
    )
