"""Settings and versions of vLLM servers on which their latencies depend, and the differences between measured servers
and deployed ones.
"""

from collections.abc import Iterator, Mapping, Sequence

from llmd_base.row import Row

from llmd_oke.catalogue.server_settings import quantization
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.values import Entry, entry_reader


class Conditions(Entry):
    """Settings and versions on which the latencies of one role's servers depend; None where unknown. `release` is a
    release of the catalogue; it counts because the vLLM of later releases transfers a KV cache in fewer pieces.
    `draft_tokens` is the number of tokens drafted for each sequence in a step, `accepted_share` the share of them (0 to
    1) that is accepted; both are None without speculative decoding, `accepted_share` also if it is unknown.
    """

    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: QuickReduceFormat | None = None
    block_size: int | None = None
    draft_tokens: int | None = None
    accepted_share: float | None = None

    @property
    def started_told(self) -> bool:
        """True if the attention backend, the quick-reduce format or the block size of the servers is known."""
        return any((self.attention_backend, self.quick_reduce, self.block_size))


UNKNOWN_CONDITIONS = Conditions()
"""Conditions of servers whose image, release and settings are all unknown."""

DEFAULT_BLOCK_SIZE = 16
"""vLLM's default block size on AMD and NVIDIA GPUs, in tokens."""


def conditions_of(row: Row) -> Conditions:
    """Return the conditions of the servers that a row of the results table was measured on, as far as the row
    has them.
    """
    return Conditions(
        image=row.image,
        release=row.release,
        attention_backend=row.attention_backend,
        quick_reduce=quantization(row.quick_reduce or ""),
        block_size=row.block_size,
        draft_tokens=row.draft_tokens,
    )


def differences(measured: Conditions | None, deployed: Conditions) -> Iterator[str]:
    """Yield a description of each difference between deployed and measured servers, with its effect on latencies where
    known. `measured` is None if the conditions of the measured servers are unknown.
    """
    yield from draft_differences(deployed)
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
        shares = all_reduce_shares(deployed.quick_reduce)
        left = ", ".join(f"{share:g} (TP{size})" for size, share in shares) or "the whole"
        known = f"all-reduces of prompts count {left} of their time in BF16, by measured kernels"
        if measured.quick_reduce not in {None, "NONE"}:
            saving = f"without what {measured.quick_reduce} saves"
            known = f"{saving}, prompts of several GPUs take longer than measured: not counted"
        names = f"quick-reduce {deployed.quick_reduce}, measured {measured.quick_reduce or 'with one that is not told'}"
        yield f"{names}: {known}"
    if deployed.block_size and measured.block_size != deployed.block_size:
        yield (
            f"block size {deployed.block_size}, measured {measured.block_size or 'one that is not told'}: hand-over "
            "and part blocks are counted (bound), its effect on steps is unknown"
        )


def draft_differences(deployed: Conditions) -> Iterator[str]:
    """Yield a sentence on how forecasts count drafted tokens, if the deployed servers use speculative decoding; the
    catalogue's figures were all measured without it.
    """
    if deployed.draft_tokens is None:
        return
    share = deployed.accepted_share
    counted = (
        "neither what they save nor what they cost is counted, as nobody says how many are accepted (acceptedShare)"
        if share is None
        else f"{share:.0%} of them are counted as accepted, and what drafts and checks take by the GPU's limits (bound)"
    )
    yield f"drafted tokens of a step {deployed.draft_tokens}: {counted}"


def common_first(texts_by_kind: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the texts of several kinds of servers: those common to all kinds first, then the others prefixed with their
    kind.
    """
    common = [
        text
        for text in next(iter(texts_by_kind.values()), ())
        if all(text in texts for texts in texts_by_kind.values())
    ]
    yield from common
    yield from (f"{name}: {text}" for name, texts in texts_by_kind.items() for text in texts if text not in common)


class QuickReduceTimes(Entry):
    """Duration and bytes of quantized all-reduces (`values/tuning/quick-reduce.yaml`), as shares of those in BF16;
    durations by tensor parallel size.
    """

    bytes_share: dict[QuickReduceFormat, float]
    time_share: dict[QuickReduceFormat, dict[int, float]]


quick_reduce_times = entry_reader("tuning", "quick-reduce", QuickReduceTimes)
"""Return the durations and bytes of quantized all-reduces as shares of those in BF16."""


def all_reduce_shares(quantization: QuickReduceFormat) -> tuple[tuple[int, float], ...]:
    """Return the duration of an all-reduce with this quantization as a share of that in BF16, as pairs of tensor
    parallel size and share, by ascending size; empty if unknown.
    """
    return tuple(sorted(quick_reduce_times().time_share.get(quantization, {}).items()))
