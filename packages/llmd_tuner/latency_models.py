"""Latency models made from latency figures, a catalogue's model and node; and checks whether figures are physically
possible.

A fit without enough different points puts 0 on a factor that it can't tell from the others: it then interpolates well,
but something costs nothing beyond the points. `unphysical` finds such factors, and those beyond a limit of the
hardware: figures with one can't be extrapolated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llmd_bench.deployment import Parallelism, parse_server_kind
from llmd_oke.catalogue.benchmarks import acceptance, kv_path
from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS, Conditions, all_reduce_shares
from llmd_oke.catalogue.latency_figures import DecodeFigures, Fit, LatencyFigures, PrefillFigures, latency_figures
from llmd_oke.catalogue.models import BYTES_PER_GIB, CatalogueModel
from llmd_oke.catalogue.releases import default_release, release
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.values import Entry, required_entry

from llmd_tuner.latency import Drafting, Factors, GpuLimits, LatencyModel, Sizes

Reach = Literal["contexts", "batches", "sizes", "prompts"]
"""Range beyond which latency figures are not extrapolated: contexts, batches, tensor parallel sizes, or prompt
lengths.
"""

_NOTHING = 1e-9
"""What rounding leaves of a factor, or of seconds, that a fit has put at 0."""


def latency_model(
    model: CatalogueModel,
    node: NodeHardware,
    conditions: Conditions = UNKNOWN_CONDITIONS,
    key_value_bytes_per_token: float | None = None,
) -> LatencyModel | None:
    """Return the latency model of a model on a node by the kit's own figures; None where there are none for its GPU."""
    figures = latency_figures(model.name, node.gpu.product)
    return None if figures is None else latency_model_of(figures, model, node, conditions, key_value_bytes_per_token)


def latency_model_of(
    figures: LatencyFigures,
    model: CatalogueModel,
    node: NodeHardware,
    conditions: Conditions = UNKNOWN_CONDITIONS,
    key_value_bytes_per_token: float | None = None,
) -> LatencyModel:
    """Return the latency model that latency figures give for a model on a node.

    `conditions` are the settings of the modelled servers; quantized all-reduce and the number of pieces of a KV
    transfer depend on them. `key_value_bytes_per_token` replaces the catalogue's value for a KV cache with another
    number format.
    """
    cached = model.kv_cache.bytes_per_token if key_value_bytes_per_token is None else key_value_bytes_per_token
    regions = key_value_regions(model, conditions.release)
    # Of a release that is not named, layers with a window are taken to hand all of their cache over.
    known = None if conditions.release is None else release(conditions.release)
    windows_alone = known is not None and known.vllm.kv_connector.hybrid_flag is not None
    sizes = _sizes(model, cached, regions, windows_alone=windows_alone)
    factors = _factors(figures, conditions.quick_reduce or "NONE")
    tokens, share = conditions.draft_tokens, conditions.accepted_share
    drafting = None if tokens is None or share is None else Drafting(tokens, share)
    return LatencyModel(sizes, _hardware(model, node), factors, drafting)


def _sizes(model: CatalogueModel, key_value_bytes_per_token: float, regions: int, *, windows_alone: bool) -> Sizes:
    architecture, work = model.architecture, model.work
    experts, window, linear = architecture.experts, architecture.sliding_window, architecture.linear_attention
    drafts = model.draft.weights if model.draft else None
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
        expert_parameters=_expert_parameters(model),
        key_value_bytes_per_token=key_value_bytes_per_token,
        key_value_parts=1 if architecture.latent_attention else architecture.key_value_heads,
        key_value_regions=regions,
        layers_without_attention=architecture.layers - architecture.attention_layers,
        state_bytes=linear.state_bytes_per_sequence if linear else 0.0,
        window_tokens=window.tokens if window else 0,
        window_layers=window.layers if window else 0,
        windows_alone=windows_alone,
        draft_bytes=(drafts.gib - drafts.expert_gib) * BYTES_PER_GIB if drafts else 0.0,
        draft_expert_bytes=drafts.expert_gib * BYTES_PER_GIB if drafts else 0.0,
    )


def _expert_parameters(model: CatalogueModel) -> float:
    """Return the parameters of the experts that a token is routed to. All parameters are dense ones and those of
    experts, of which a token passes through `active` of `count`.
    """
    experts, parameters = model.architecture.experts, model.parameters
    if experts is None or experts.active == experts.count:
        return 0.0
    share = experts.active / experts.count
    return (parameters.total_billions - parameters.active_billions) * 1e9 * share / (1 - share)


def _hardware(model: CatalogueModel, node: NodeHardware) -> GpuLimits:
    gpu = node.gpu
    return GpuLimits(
        memory_bytes_per_s=gpu.memory_bandwidth_gb_per_s * 1e9,
        flops=gpu.dense_tflops.of(model.weights.format) * 1e12,
        link_bytes_per_s=gpu.link.gb_per_s * 1e9,
        port_bytes_per_s=node.port_gbit_per_s * 1e9 / 8,
        switched=gpu.link.switched,
        host_bytes_per_s=gpu.host_link_gb_per_s * 1e9,
        disk_bytes_per_s=acceptance().least_disk_gb_per_s * 1e9,
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
        decode_fixed_s=tuple((kind_of(key), fixed_s) for key, fixed_s in figures.decode.fixed_s.items()),
        all_reduce_shares=all_reduce_shares(quick_reduce),
        expert_imbalance=figures.experts.imbalance,
    )


def kind_of(key: int | str) -> Parallelism:
    """Return the parallelism that a key of `fixed_s` in latency figures denotes: a tensor parallel size, or a kind of
    servers such as `tp1dp8ep`.
    """
    return Parallelism(key) if isinstance(key, int) else parse_server_kind(key)


def key_of(spread: Parallelism) -> int | str:
    """Return the key of `fixed_s` in latency figures for a parallelism: a tensor parallel size, or a kind of servers
    such as `tp1dp8ep`.
    """
    alone = spread == Parallelism(spread.tensor_parallel_size)
    return spread.tensor_parallel_size if alone else spread.kind


class Physical(Entry):
    """Content of `values/tuning/physical.yaml`: bounds beyond which a fitted factor is physically impossible."""

    least_bytes_factor: float


@dataclass(frozen=True)
class Unphysical:
    """Fitted factor that is physically impossible: from how much data it was fitted, what follows from it, and which
    measurement would determine it. `reach` is what the figures can't be extrapolated to (other sizes, batches or
    contexts); None where the consequence is small.
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
    """Return the physically impossible factors of the fitted roles. Figures that are not fitted are declared bounds or
    assumptions and not checked.
    """
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
    starts_s = {spread: figures.layer_s + figures.fixed_s.get(key_of(spread), 0.0) for spread in fit.parallelisms}
    if free := [spread.kind.upper() for spread, start_s in starts_s.items() if start_s < _NOTHING]:
        factor = f"layer_s and fixed_s of {', '.join(free)} 0"
        consequence = "a step takes nothing for its layers, so that small batches and other sizes come out too fast"
        remedy = "`llmd-oke tune run --grid full`: small batches of these sizes"
        yield Unphysical("decode", factor, data, consequence, remedy, "sizes")


def key_value_regions(model: CatalogueModel, release: str | None) -> int:
    """Return the number of memory regions that a block of a model's KV cache is spread over in a release's vLLM, or in
    the default release's if `release` is unknown. MLA has one cache for keys and values.
    """
    by_release = kv_path().regions_per_layer
    per_layer = by_release[release if release in by_release else default_release().name]
    return model.architecture.attention_layers * (1 if model.architecture.latent_attention else per_layer)
