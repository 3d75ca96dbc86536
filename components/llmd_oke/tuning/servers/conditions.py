"""How vLLM servers are started, as far as times depend on it: those that were measured, and those that are deployed."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import get_args

from llmd_oke.catalogue.bench_jobs import kv_path
from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.releases import Release, release_names
from llmd_oke.config.model import Engine
from llmd_oke.config.stack import QuickReduceFormat
from llmd_oke.results.row import Row

QUANTIZATIONS: tuple[QuickReduceFormat, ...] = get_args(QuickReduceFormat)

_QUANTIZATIONS: dict[str, QuickReduceFormat] = {str(each): each for each in QUANTIZATIONS}

DEFAULT_BLOCK_SIZE = 16
"""vLLM's own on AMD and NVIDIA GPUs, in tokens."""


def quantization(text: str) -> QuickReduceFormat | None:
    """The quantization of that name, or None."""
    return _QUANTIZATIONS.get(text)


class Conditions(Entry):
    """What servers of one kind were started with; None where that is not told.

    `release` is of the catalogue: vLLM of later ones hands a KV cache over in fewer pieces.
    """

    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: QuickReduceFormat | None = None
    block_size: int | None = None

    @property
    def started_told(self) -> bool:
        """Whether anything is told beside image and release."""
        return any((self.attention_backend, self.quick_reduce, self.block_size))


UNTOLD = Conditions()
"""vLLM's own defaults, as far as they are known."""


class Started(Entry):
    """What the servers of a deployment are started with: those that hand KV caches over, and those that do both."""

    handing_over: Conditions = UNTOLD
    aggregated: Conditions = UNTOLD

    def of(self, topology: str | None) -> Conditions:
        """Those of a topology in short form; of servers that hand KV caches over where there is none."""
        return self.aggregated if topology is not None and topology.startswith("agg-") else self.handing_over


AS_VLLM = Started()
"""Nothing is set."""


def started_with(release: Release, model: Model, engine: Engine) -> Started:
    """What the servers of a stack are started with, as `llmd_oke.serving.vllm` writes it into their pods."""
    of_model = model.quick_reduce.quantization if model.quick_reduce else None
    asked = engine.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION") or release.vllm.quick_reduce or of_model
    _, named = engine.argument("--attention-backend") or (0, None)

    def conditions(backend: str, block_size: int) -> Conditions:
        return Conditions(
            image=release.vllm.image.reference,
            release=release.name,
            attention_backend=named or backend,
            quick_reduce=quantization(asked or "NONE"),
            block_size=engine.block_size or block_size,
        )

    backend, block_size = release.vllm.attention_backend, release.vllm.block_size
    return Started(
        handing_over=conditions(backend.kv_connector, block_size.kv_connector),
        aggregated=conditions(backend.default, block_size.default),
    )


def conditions_of(row: Row) -> Conditions:
    """What the servers of a row were started with, as far as it tells."""
    return Conditions(
        image=row.image,
        release=row.release,
        attention_backend=row.attention_backend,
        quick_reduce=quantization(row.quick_reduce or ""),
        block_size=row.block_size,
    )


def differences(measured: Conditions | None, deployed: Conditions) -> Iterator[str]:
    """How servers that are deployed differ from those that were measured, with what is known of the effect."""
    if measured and measured.image and deployed.image and measured.image != deployed.image:
        yield f"image {deployed.image}, measured {measured.image}: effect unknown"
    if measured is None or not measured.started_told:
        beside = " beside their image" if measured and measured.image else ""
        yield f"conditions unknown: what the measured servers were started with{beside} is not told"
        return
    if deployed.image and not measured.image:
        yield f"image {deployed.image}, measured one that is not told: effect unknown"
    if deployed.attention_backend and measured.attention_backend != deployed.attention_backend:
        told = measured.attention_backend or "one that is not told, its image's default"
        yield (
            f"attention backend {deployed.attention_backend}, measured {told}: effect unknown, no source compares them "
            "on this GPU"
        )
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


def told_apart(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The texts of several kinds of servers: those of all first, the others with the name of their kind."""
    common = [text for text in next(iter(found.values()), ()) if all(text in texts for texts in found.values())]
    yield from common
    yield from (f"{name}: {text}" for name, texts in found.items() for text in texts if text not in common)


class QuickReduceTimes(Entry):
    """`values/tuning/quick-reduce.yaml`: shares of the time of an all-reduce in BF16, by tensor parallel size."""

    bytes_share: dict[QuickReduceFormat, float]
    time_share: dict[QuickReduceFormat, dict[int, float]]


@cache
def quick_reduce_times() -> QuickReduceTimes:
    """What is known of quantized all-reduce."""
    return required_entry("tuning", "quick-reduce", QuickReduceTimes)


def all_reduce_shares(quantization: QuickReduceFormat) -> tuple[tuple[int, float], ...]:
    """What a quantization leaves of an all-reduce's time, by tensor parallel size, ascending."""
    return tuple(sorted(quick_reduce_times().time_share.get(quantization, {}).items()))


def key_value_regions(model: Model, release: str | None) -> int:
    """Pieces of memory that a block of a model's KV cache is spread over, in vLLM of a release; the newest one's where
    none is named. MLA has one cache for keys and values.
    """
    known = kv_path().regions_per_layer
    each = known[release if release in known else release_names()[-1]]
    return model.architecture.layers * (1 if model.architecture.latent_attention else each)
