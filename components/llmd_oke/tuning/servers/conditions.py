"""How vLLM servers are started, as far as times depend on it: those that were measured, and those that are deployed."""

from functools import cache
from typing import Literal, get_args

from llmd_oke.catalogue.bench_jobs import kv_path
from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.catalogue.models import Model
from llmd_oke.catalogue.releases import release_names

Quantization = Literal["NONE", "FP", "INT8", "INT6", "INT4"]
"""Of all-reduce: values of vLLM's `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`."""

QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)

DEFAULT_BLOCK_SIZE = 16
"""vLLM's own on AMD and NVIDIA GPUs, in tokens."""


class Conditions(Entry):
    """What servers of one kind were started with; None where that is not told.

    `release` is of the catalogue: vLLM of later ones hands a KV cache over in fewer pieces.
    """

    image: str | None = None
    release: str | None = None
    attention_backend: str | None = None
    quick_reduce: Quantization | None = None
    block_size: int | None = None


UNTOLD = Conditions()
"""vLLM's own defaults, as far as they are known."""


class Started(Entry):
    """What the servers of a deployment are started with: those that hand KV caches over, and those that do both."""

    handing_over: Conditions = UNTOLD
    aggregated: Conditions = UNTOLD


AS_VLLM = Started()
"""Nothing is set."""


class QuickReduceTimes(Entry):
    """`values/tuning/quick-reduce.yaml`: shares of the time of an all-reduce in BF16, by tensor parallel size."""

    bytes_share: dict[Quantization, float]
    time_share: dict[Quantization, dict[int, float]]


@cache
def quick_reduce_times() -> QuickReduceTimes:
    """What is known of quantized all-reduce."""
    return required_entry("tuning", "quick-reduce", QuickReduceTimes)


def all_reduce_shares(quantization: Quantization) -> tuple[tuple[int, float], ...]:
    """What a quantization leaves of an all-reduce's time, by tensor parallel size, ascending."""
    return tuple(sorted(quick_reduce_times().time_share.get(quantization, {}).items()))


def key_value_regions(model: Model, release: str | None) -> int:
    """Pieces of memory that a block of a model's KV cache is spread over, in vLLM of a release; the newest one's where
    none is named. MLA has one cache for keys and values.
    """
    known = kv_path().regions_per_layer
    each = known[release if release in known else release_names()[-1]]
    return model.architecture.layers * (1 if model.architecture.latent_attention else each)
