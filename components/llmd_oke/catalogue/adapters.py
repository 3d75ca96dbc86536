"""LoRA adapters: which models vLLM takes them for, and the memory that room for them takes."""

from collections.abc import Iterator
from functools import cache

from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.models import BYTES_PER_GIB, CatalogueModel
from llmd_oke.config.base import HttpsUrl
from llmd_oke.config.engine import AdapterSlots
from llmd_oke.values import Entry, required_entry


class AdaptedFamily(Entry):
    """An architecture whose layers may have adapters, and where that was read."""

    source: HttpsUrl


class AdapterFacts(Entry):
    """Facts of LoRA adapters (`values/vllm/adapters.yaml`): architectures that take them, by `model_type`, and the
    bytes of a number in the room that servers make for them.
    """

    name: str
    families: dict[str, AdaptedFamily]
    bytes_per_number: int

    def takes(self, model: CatalogueModel) -> bool:
        """Tell whether vLLM is known to put adapters on a model's layers."""
        return model.architecture.family in self.families and model.architecture.experts is None


@cache
def adapter_facts() -> AdapterFacts:
    """The facts of adapters."""
    return required_entry("vllm", "adapters", AdapterFacts)


def slots_gib(model: CatalogueModel, room: AdapterSlots | None, parallelism: Parallelism) -> float:
    """Memory of room for adapters over all GPUs of a server, in GiB, as vLLM makes it at its start: for each slot and
    linear layer a matrix of the largest rank on each side. Of layers whose outputs are shared by GPUs each GPU has the
    inner matrix whole, of those whose inputs are the outer one (vllm/lora/layers/base_linear.py).
    """
    if room is None:
        return 0.0
    size = parallelism.tensor_parallel_size
    widths = sum(_widths(model, size))
    numbers = widths * room.max_rank * room.slots * parallelism.data_parallel_size
    return numbers * adapter_facts().bytes_per_number / BYTES_PER_GIB


def _widths(model: CatalogueModel, size: int) -> Iterator[int]:
    """Sums of what goes into and comes out of the linear layers of a model, over the GPUs of a rank."""
    sizes = model.architecture
    queries, keys = sizes.attention_heads * sizes.head_dim, sizes.key_value_heads * sizes.head_dim
    copies = max(1, size // sizes.key_value_heads)
    for output in (queries, keys * copies, keys * copies, sizes.intermediate_size, sizes.intermediate_size):
        yield sizes.layers * (sizes.hidden_size * size + output)
    for inner in (queries, sizes.intermediate_size):
        yield sizes.layers * (inner + sizes.hidden_size * size)
    for _ in ("embedding", "head"):
        yield sizes.vocabulary_size * size + sizes.hidden_size * size
