"""Conditions under which vLLM servers run, as far as times depend on them: of those that were measured, and of those
that are deployed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from llmd_base.row import Row

from llmd_oke.catalogue.server_settings import quantization
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.values import Entry, required_entry


class Conditions(Entry):
    """Conditions of servers of one kind; None where that is not told.

    `release` is of the catalogue: vLLM of later ones hands a KV cache over in fewer pieces.
    """

    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: QuickReduceFormat | None = None
    block_size: int | None = None

    @property
    def started_told(self) -> bool:
        """True if anything is told beside image and release."""
        return any((self.attention_backend, self.quick_reduce, self.block_size))


UNKNOWN_CONDITIONS = Conditions()
"""vLLM's own defaults, as far as they are known."""

DEFAULT_BLOCK_SIZE = 16
"""vLLM's own on AMD and NVIDIA GPUs, in tokens."""


def conditions_of(row: Row) -> Conditions:
    """Return the conditions of a row's servers, as far as it tells."""
    return Conditions(
        image=row.image,
        release=row.release,
        attention_backend=row.attention_backend,
        quick_reduce=quantization(row.quick_reduce or ""),
        block_size=row.block_size,
    )


def differences(measured: Conditions | None, deployed: Conditions) -> Iterator[str]:
    """Describe how servers that are deployed differ from those that were measured, with what is known of the effect."""
    if measured and measured.image and deployed.image and measured.image != deployed.image:
        yield f"image {deployed.image}, measured {measured.image}: effect unknown"
    if measured is None or not measured.started_told:
        beside = " beside their image" if measured and measured.image else ""
        yield f"conditions unknown: what the measured servers were started with{beside} is not told"
        return
    if deployed.image and not measured.image:
        yield f"image {deployed.image}, measured one that is not told: effect unknown"
    if deployed.attention_backend and measured.attention_backend != deployed.attention_backend:
        backend = measured.attention_backend or "one that is not told, its image's default"
        names = f"attention backend {deployed.attention_backend}, measured {backend}"
        yield f"{names}: effect unknown, no source compares them on this GPU"
    if deployed.quick_reduce and measured.quick_reduce != deployed.quick_reduce:
        yield _quick_reduce_difference(measured.quick_reduce, deployed.quick_reduce)
    if deployed.block_size and measured.block_size != deployed.block_size:
        yield (
            f"block size {deployed.block_size}, measured {measured.block_size or 'one that is not told'}: hand-over "
            "and part blocks are counted (bound), its effect on steps is unknown"
        )


def _quick_reduce_difference(measured: QuickReduceFormat | None, deployed: QuickReduceFormat) -> str:
    left = ", ".join(f"{share:g} (TP{size})" for size, share in all_reduce_shares(deployed)) or "the whole"
    known = f"all-reduces of prompts count {left} of their time in BF16, by measured kernels"
    if measured not in {None, "NONE"}:
        known = f"without what {measured} saves, prompts of several GPUs take longer than measured: not counted"
    return f"quick-reduce {deployed}, measured {measured or 'with one that is not told'}: {known}"


def common_first(texts_by_kind: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The texts of several kinds of servers: those of all first, the others with the name of their kind."""
    common = [
        text
        for text in next(iter(texts_by_kind.values()), ())
        if all(text in texts for texts in texts_by_kind.values())
    ]
    yield from common
    yield from (f"{name}: {text}" for name, texts in texts_by_kind.items() for text in texts if text not in common)


class QuickReduceTimes(Entry):
    """`values/tuning/quick-reduce.yaml`: shares of the time of an all-reduce in BF16, by tensor parallel size."""

    bytes_share: dict[QuickReduceFormat, float]
    time_share: dict[QuickReduceFormat, dict[int, float]]


@cache
def quick_reduce_times() -> QuickReduceTimes:
    """Read what is known of quantized all-reduce."""
    return required_entry("tuning", "quick-reduce", QuickReduceTimes)


def all_reduce_shares(quantization: QuickReduceFormat) -> tuple[tuple[int, float], ...]:
    """Return the share of an all-reduce's time that a quantization leaves, by tensor parallel size, ascending."""
    return tuple(sorted(quick_reduce_times().time_share.get(quantization, {}).items()))
