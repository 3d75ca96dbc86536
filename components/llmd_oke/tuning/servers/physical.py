"""Factors of a fit that no hardware has, and how far figures with them can't be extrapolated.

A fit without enough different points puts 0 on a factor that it can't tell from the others: it then interpolates well,
but something costs nothing beyond the points. Factors beyond a limit of the hardware are told too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.tuning.servers.figures import DecodeFigures, Fit, LatencyFigures, PrefillFigures

Reach = Literal["contexts", "batches", "sizes", "prompts"]
"""What is not extrapolated: longer contexts, larger batches, other tensor parallel sizes, other lengths of prompts."""


_NOTHING = 1e-9
"""What rounding leaves of a factor, or of seconds, that a fit has put at 0."""


class Physical(Entry):
    """`values/tuning/physical.yaml`."""

    least_bytes_factor: float


@cache
def _physical() -> Physical:
    return required_entry("tuning", "physical", Physical)


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
        blind = figures.bytes_factor < _physical().least_bytes_factor
        much = "hardly anything, or nothing" if blind else "too little"
        consequence = f"memory is read faster than it can be, so that longer contexts cost {much}"
        factor = f"bytes_factor {round(figures.bytes_factor, 3):g}"
        yield Unphysical("decode", factor, data, consequence, longer, "contexts" if blind else None)
    if max(figures.flops_factor, figures.sequence_s) < _NOTHING:
        consequence = "another sequence costs nothing but its KV cache, so that large batches are free"
        remedy = "`llmd-oke tune run --grid full`: more batches of each size"
        yield Unphysical("decode", "flops_factor and sequence_s 0", data, consequence, remedy, "batches")
    if free := _sizes_without_start(figures, fit):
        factor = f"layer_s and fixed_s of TP{', TP'.join(map(str, free))} 0"
        consequence = "a step takes nothing for its layers, so that small batches and other sizes come out too fast"
        remedy = "`llmd-oke tune run --grid full`: small batches of these sizes"
        yield Unphysical("decode", factor, data, consequence, remedy, "sizes")


def _sizes_without_start(figures: DecodeFigures, fit: Fit) -> list[int]:
    """Tensor parallel sizes whose steps have no part that is there without any work."""
    if figures.layer_s > _NOTHING:
        return []
    return [size for size in fit.tensor_parallel_sizes if figures.fixed_s.get(size, 0.0) < _NOTHING]
