"""Which points of single servers the tuner asks to have measured: tensor parallel sizes, and requests in flight."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from llmd_oke.catalogue.files import Entry, required_entry

GridName = Literal["adaptive", "full"]


class FullGrid(Entry):
    """The published method's levels."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]


class AdaptiveGrid(Entry):
    """As few levels as a fit needs. Errors are mean absolute errors as shares, on the published points."""

    prefill: tuple[int, ...]
    least_decode: int
    decode_error: float
    prefill_error: float
    full_decode_error: float
    full_prefill_error: float


class RehearsedGrid(Entry):
    """How a rehearsal of a grid is made small enough for one machine; `requests` of each level, at least."""

    time_scale: float
    requests: int


class Grids(Entry):
    """`values/tuning/grids.yaml`."""

    full: FullGrid
    adaptive: AdaptiveGrid
    requests: int
    requests_per_user: int
    rehearsal: RehearsedGrid


@cache
def grids() -> Grids:
    """The kit's own."""
    return required_entry("tuning", "grids", Grids)


def sizes_of_grid(name: GridName, sizes: Sequence[int]) -> tuple[int, ...]:
    """Which of the tensor parallel sizes are measured: all, or the smallest and the largest."""
    return tuple(sizes) if name == "full" else tuple(sorted({min(sizes), max(sizes)}))


def prefill_levels(name: GridName, most: int) -> tuple[int, ...]:
    """Prompts in flight at one server that prefills, of which `most` fit it."""
    levels = grids().full.prefill if name == "full" else grids().adaptive.prefill
    return _at_most(levels, most)


def decode_levels(name: GridName, tensor_parallel_size: int, most: int) -> tuple[int, ...]:
    """Sequences in flight at one server that decodes, of which `most` fit it.

    The largest batch is among them, because no forecast goes beyond what was measured.
    """
    if name == "full":
        return _at_most((*_full_decode(tensor_parallel_size), most), most)
    least = min(grids().adaptive.least_decode, most)
    return tuple(sorted({least, round((least * most) ** 0.5), most}))


def _full_decode(tensor_parallel_size: int) -> tuple[int, ...]:
    levels = list(grids().full.decode)
    last = levels[-1]
    while levels[-1] * 2 <= last * tensor_parallel_size:
        levels.append(levels[-1] * 2)
    return tuple(levels)


def _at_most(levels: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(sorted({min(level, most) for level in levels}))
