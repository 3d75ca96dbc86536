"""The latency figures in `values/latency`, and the latency model that they make of a catalogue's model and node.

A fit without enough different points puts 0 on a factor that it can't tell from the others: it then interpolates well,
but something costs nothing beyond the points. `unphysical` tells such factors, and those beyond a limit of the
hardware: figures can't be extrapolated along them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from llmd_oke.catalogue import entries
from llmd_oke.catalogue.benchmarks import kv_path
from llmd_oke.catalogue.entries import SUFFIX, Kind
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.project import LATENCY, latency_files
from llmd_oke.catalogue.releases import release, release_names
from llmd_oke.catalogue.shapes import Gpu, Node
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.planning import Plan
from llmd_oke.planning.conditions import UNKNOWN_CONDITIONS, Conditions
from llmd_oke.values import VALUES, Entry, follows_project, read_yaml, required_entry
from llmd_pods.documents import explain, require_bounded
from llmd_pods.errors import KitError, Problem
from llmd_pods.row import Basis
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from llmd_tuner.conditions import all_reduce_shares, common_first, differences
from llmd_tuner.latency import Factors, Hardware, LatencyModel, Sizes

Reach = Literal["contexts", "batches", "sizes", "prompts"]
"""What is not extrapolated: longer contexts, larger batches, other tensor parallel sizes, other lengths of prompts."""

_NOTHING = 1e-9
"""What rounding leaves of a factor, or of seconds, that a fit has put at 0."""


class Fit(Entry):
    """What a section was fitted to, and how well. Errors are mean absolute errors of a time, as shares of it."""

    source: str
    """Where the measurements are from."""
    points: int
    tensor_parallel_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
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
    conditions: Conditions | None = None
    """What servers were started with when they were measured; None where the figures as a whole tell."""


class PrefillFigures(Entry):
    """Factors of a prefill."""

    basis: Basis
    overhead_s: NonNegativeFloat
    compute_efficiency: PositiveFloat
    all_reduce_efficiency: PositiveFloat
    fit: Fit | None = None


class DecodeFigures(Entry):
    """Factors of a decode step."""

    basis: Basis
    layer_s: NonNegativeFloat
    bytes_factor: NonNegativeFloat
    flops_factor: NonNegativeFloat
    sequence_s: NonNegativeFloat
    fixed_s: dict[int, float] = Field(default_factory=dict[int, float])
    """Beside the rest, by tensor parallel size."""
    fit: Fit | None = None


class TransferFigures(Entry):
    """Factors of a KV transfer."""

    basis: Basis
    efficiency: PositiveFloat
    descriptor_s: NonNegativeFloat
    handshake_s: NonNegativeFloat


@cache
def assumed_transfer() -> TransferFigures:
    """`values/tuning/transfer.yaml`, for figures that don't tell their own."""
    return required_entry("tuning", "transfer", TransferFigures)


class LatencyFigures(Entry):
    """One file of `values/latency`: a model on a GPU product. Sizes are the model's, limits the GPU's."""

    model: str
    gpu: str
    image: str | None = None
    """The vLLM image that was measured; None where figures of several are joined."""
    conditions: Conditions | None = None
    """What servers were started with when they were measured, where the fit of a role doesn't tell its own; None where
    nothing is told of it."""
    prefill: PrefillFigures
    decode: DecodeFigures
    transfer: TransferFigures = Field(default_factory=assumed_transfer)

    @property
    def basis(self) -> Basis:
        """What latencies by these figures are: bounds where a role's are limits or assumptions."""
        return Basis.BOUND if Basis.BOUND in {self.prefill.basis, self.decode.basis} else Basis.CALIBRATED

    @property
    def measured(self) -> bool:
        """Whether a role was fitted to anything; else they are bounds or assumptions, all of them."""
        return self.prefill.fit is not None or self.decode.fit is not None

    def measured_conditions(self) -> dict[str, Conditions | None]:
        """What the servers were started with that each fitted role was measured of."""
        fits = {"prefill": self.prefill.fit, "decode": self.decode.fit}
        return {name: fit.conditions or self.conditions for name, fit in fits.items() if fit}

    def differences(self, deployed: Conditions) -> list[str]:
        """How servers that are deployed differ from those that were measured; none for figures without a fit."""
        measured = self.measured_conditions()
        return list(
            common_first({name: list(differences(conditions, deployed)) for name, conditions in measured.items()})
        )


def latency_kind(gpu: str) -> Kind[LatencyFigures]:
    """Where the figures of models on a GPU product are."""
    return Kind(f"{LATENCY}/{gpu}", LatencyFigures, key="model")


@follows_project
def latency_figures(model_name: str, gpu: str) -> LatencyFigures | None:
    """The catalogue's figures of a model on a GPU product, or None where it has none.

    Raises:
        Refused: they are the project's own, and something is wrong with them.
    """
    return entries.entry(latency_kind(gpu), model_name)


def project_problems() -> list[Problem]:
    """All that is wrong with the latency figures of the open project's own `values/`."""
    return [problem for gpu, model in latency_files() for problem in _of_file(gpu, model)]


def _of_file(gpu: str, model: str) -> Iterator[Problem]:
    figures, problems = entries.judged(latency_kind(gpu), model)
    yield from problems
    if figures is not None and figures.gpu != gpu:
        file = f"{VALUES}/{LATENCY}/{gpu}/{model}{SUFFIX}"
        yield Problem("gpu", figures.gpu, gpu, "the folder is called so", file=file)


def known_figures(model: Model, gpu: Gpu) -> LatencyFigures:
    """The catalogue's latency figures of a model on a GPU; bounds of the hardware where it has none."""
    return latency_figures(model.name, gpu.product) or bound_figures(model, gpu)


def bound_models(plan: Plan) -> tuple[str, ...]:
    """The models, by repository, whose simulated servers take times that are bounds."""
    figures = {model.model.repository: known_figures(model.model, plan.pools[0].shape.gpu) for model in plan.models}
    return tuple(sorted(repository for repository, known in figures.items() if known.basis is Basis.BOUND))


def bound_figures(model: Model, gpu: Gpu) -> LatencyFigures:
    """Figures of servers that lose nothing to their hardware's limits: where a fit starts, and never a forecast."""
    return LatencyFigures(
        model=model.name,
        gpu=gpu.product,
        prefill=PrefillFigures(basis=Basis.BOUND, overhead_s=0.0, compute_efficiency=1.0, all_reduce_efficiency=1.0),
        decode=DecodeFigures(basis=Basis.BOUND, layer_s=0.0, bytes_factor=1.0, flops_factor=0.0, sequence_s=0.0),
    )


def read_figures(path: Path) -> LatencyFigures:
    """The figures of a file that `figures_text` wrote, or that has the form of those in `values/latency`.

    Raises:
        KitError: the file can't be read, or has another form.
    """
    try:
        require_bounded(path.read_text(encoding="utf-8"))
        return LatencyFigures.model_validate(read_yaml(path))
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise KitError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        wrong = explain(error, "the file")
        raise KitError(f"{path} has no latency figures: {wrong}", "`llmd-oke tune fit` makes such files.") from error
    except (ValueError, TypeError) as error:
        raise KitError(f"{path} has no latency figures: {error}") from error


def figures_text(figures: LatencyFigures) -> str:
    """The figures as YAML, rounded to four digits."""
    document = figures.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(_rounded(document), sort_keys=False, width=120)


def latency_model(
    model: Model,
    node: Node,
    conditions: Conditions = UNKNOWN_CONDITIONS,
    key_value_bytes_per_token: float | None = None,
) -> LatencyModel | None:
    """The latency model of a model on a node, or None where there are no figures for its GPU."""
    figures = latency_figures(model.name, node.gpu.product)
    return None if figures is None else latency_model_of(figures, model, node, conditions, key_value_bytes_per_token)


def latency_model_of(
    figures: LatencyFigures,
    model: Model,
    node: Node,
    conditions: Conditions = UNKNOWN_CONDITIONS,
    key_value_bytes_per_token: float | None = None,
) -> LatencyModel:
    """The latency model that some figures make of a model and a node.

    `conditions` are those of the servers that it stands for, of which quantized all-reduce and the pieces of a
    hand-over are counted. `key_value_bytes_per_token` replaces the catalogue's, for another number format.
    """
    cached = model.kv_cache.bytes_per_token if key_value_bytes_per_token is None else key_value_bytes_per_token
    regions = key_value_regions(model, conditions.release)
    sizes = _sizes(model, cached, regions, windows_alone=hands_over_windows(conditions.release))
    return LatencyModel(sizes, _hardware(model, node), _factors(figures, conditions.quick_reduce or "NONE"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in cast("dict[Any, Any]", value).items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _sizes(model: Model, key_value_bytes_per_token: float, regions: int, *, windows_alone: bool) -> Sizes:
    architecture, work = model.architecture, model.work
    experts, window, linear = architecture.experts, architecture.sliding_window, architecture.linear_attention
    return Sizes(
        layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        attention_heads=architecture.attention_heads,
        head_dim=architecture.head_dim,
        prefill_parameters=work.prefill_parameters_billions * 1e9,
        decode_parameters=work.decode_parameters_billions * 1e9,
        dense_bytes=work.dense_weight_gb * 1e9,
        expert_bytes=work.expert_weight_gb * 1e9,
        experts=experts.count if experts else 0,
        active_experts=experts.active if experts else 0,
        key_value_bytes_per_token=key_value_bytes_per_token,
        key_value_parts=1 if architecture.latent_attention else architecture.key_value_heads,
        key_value_regions=regions,
        linear_layers=linear.layers if linear else 0,
        state_bytes=linear.state_bytes_per_sequence if linear else 0.0,
        window_tokens=window.tokens if window else 0,
        window_layers=window.layers if window else 0,
        windows_alone=windows_alone,
    )


def _hardware(model: Model, node: Node) -> Hardware:
    gpu = node.gpu
    return Hardware(
        memory_bytes_per_s=gpu.memory_bandwidth_gb_per_s * 1e9,
        flops=gpu.dense_tflops.of(model.weights.format) * 1e12,
        link_bytes_per_s=gpu.link.gb_per_s * 1e9,
        port_bytes_per_s=node.port_gbit_per_s * 1e9 / 8,
        switched=gpu.link.switched,
    )


def _factors(figures: LatencyFigures, quick_reduce: QuickReduceFormat) -> Factors:
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
        transfer_descriptor_s=figures.transfer.descriptor_s,
        decode_fixed_s=tuple(sorted(figures.decode.fixed_s.items())),
        all_reduce_shares=all_reduce_shares(quick_reduce),
    )


class Physical(Entry):
    """`values/tuning/physical.yaml`."""

    least_bytes_factor: float


@dataclass(frozen=True)
class Unphysical:
    """A factor that is not physical, after how much data, what follows from it, and which measurement would tell it.

    `reach` is None where the consequence is small enough to go on.
    """

    role: Literal["prefill", "decode"]
    factor: str
    data: str
    consequence: str
    remedy: str
    reach: Reach | None = None

    def __str__(self) -> str:
        return f"{self.role}: {self.factor} after {self.data}: {self.consequence}"


def unphysical(figures: LatencyFigures) -> tuple[Unphysical, ...]:
    """What is not physical about the fitted roles; roles without a fit are bounds or assumptions, and said to be."""
    prefill, decode = figures.prefill, figures.decode
    return (
        *(_prefill(prefill, prefill.fit) if prefill.fit else ()),
        *(_decode(decode, decode.fit) if decode.fit else ()),
    )


def _prefill(figures: PrefillFigures, fit: Fit) -> Iterator[Unphysical]:
    data = f"{fit.points} points, prompts up to {fit.most_tokens:,.0f} tokens"
    longer = f"`llmd-oke tune run --workload {round(4 * fit.most_tokens)}/1`: prompts of a second length"
    if figures.compute_efficiency > 1:
        beyond = f"compute_efficiency {figures.compute_efficiency:.3g}"
        yield Unphysical("prefill", beyond, data, "prompts are computed faster than the GPU's peak", longer, "prompts")
    if figures.overhead_s < _NOTHING:
        consequence = "prompts take nothing beside their tokens, so that short ones begin too soon"
        shorter = "`llmd-oke tune run --workload 256/1`: short prompts, one in flight"
        yield Unphysical("prefill", "overhead_s 0", data, consequence, shorter)
    if figures.all_reduce_efficiency >= 1 and max(fit.tensor_parallel_sizes) > 1:
        factor = f"all_reduce_efficiency {figures.all_reduce_efficiency:g}"
        consequence = "all-reduce runs at the links' whole rate, so that other sizes and quick-reduce differ too little"
        remedy = "`llmd-oke tune run --grid full --workload 8192/1`: all sizes, long prompts"
        yield Unphysical("prefill", factor, data, consequence, remedy)


def _decode(figures: DecodeFigures, fit: Fit) -> Iterator[Unphysical]:
    data = f"{fit.points} points, contexts up to {fit.most_tokens:,.0f} tokens, up to {fit.most_sequences:g} sequences"
    longer = f"`llmd-oke tune run --workload {max(4096, round(4 * fit.most_tokens))}/256`: a second, longer context"
    if figures.bytes_factor < 1:
        blind = figures.bytes_factor < required_entry("tuning", "physical", Physical).least_bytes_factor
        much = "hardly anything, or nothing" if blind else "too little"
        consequence = f"memory is read faster than it can be, so that longer contexts cost {much}"
        factor = f"bytes_factor {round(figures.bytes_factor, 3):g}"
        yield Unphysical("decode", factor, data, consequence, longer, "contexts" if blind else None)
    if max(figures.flops_factor, figures.sequence_s) < _NOTHING:
        consequence = "another sequence costs nothing but its KV cache, so that large batches are free"
        remedy = "`llmd-oke tune run --grid full`: more batches of each size"
        yield Unphysical("decode", "flops_factor and sequence_s 0", data, consequence, remedy, "batches")
    # Sizes whose steps have no part that is there without any work.
    fixed_s = {size: figures.layer_s + figures.fixed_s.get(size, 0.0) for size in fit.tensor_parallel_sizes}
    if free := [size for size, start_s in fixed_s.items() if start_s < _NOTHING]:
        factor = f"layer_s and fixed_s of TP{', TP'.join(map(str, free))} 0"
        consequence = "a step takes nothing for its layers, so that small batches and other sizes come out too fast"
        remedy = "`llmd-oke tune run --grid full`: small batches of these sizes"
        yield Unphysical("decode", factor, data, consequence, remedy, "sizes")


def hands_over_windows(name: str | None) -> bool:
    """Whether vLLM of a release hands over the window alone of layers that have one; in full where none is named."""
    found = None if name is None else release(name)
    return found is not None and found.vllm.kv_connector.hybrid_flag is not None


def key_value_regions(model: Model, release: str | None) -> int:
    """Pieces of memory that a block of a model's KV cache is spread over, in vLLM of a release; the newest one's where
    none is named. MLA has one cache for keys and values.
    """
    by_release = kv_path().regions_per_layer
    per_layer = by_release[release if release in by_release else release_names()[-1]]
    linear = model.architecture.linear_attention
    layers = model.architecture.layers - (linear.layers if linear else 0)
    return layers * (1 if model.architecture.latent_attention else per_layer)
