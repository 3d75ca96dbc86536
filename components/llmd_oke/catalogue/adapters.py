"""LoRA adapters: the models for which vLLM supports them, and the memory that slots for adapters take."""

from collections.abc import Iterator

from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue.models import BYTES_PER_GIB, CatalogueModel
from llmd_oke.config.base import HttpsUrl
from llmd_oke.config.engine import AdapterSlots
from llmd_oke.values import Entry, entry_reader


class AdaptedFamily(Entry):
    """Model architecture (`model_type`) for whose layers vLLM supports LoRA adapters, with the source."""

    source: HttpsUrl


class AdapterFacts(Entry):
    """Facts about LoRA adapters (`values/vllm/adapters.yaml`): supported architectures by `model_type`, and the bytes
    of one number in a slot.
    """

    name: str
    families: dict[str, AdaptedFamily]
    bytes_per_number: int

    def takes(self, model: CatalogueModel) -> bool:
        """Tell whether vLLM is known to support adapters for a model."""
        return model.architecture.family in self.families and model.architecture.experts is None


adapter_facts = entry_reader("vllm", "adapters", AdapterFacts)
"""Return the catalogue's facts about LoRA adapters (`values/vllm/adapters.yaml`)."""


def slots_gib(model: CatalogueModel, room: AdapterSlots | None, parallelism: Parallelism) -> float:
    """Return the memory of adapter slots in GiB, over all GPUs of a server; 0 if `room` is None. vLLM allocates it at
    startup: for each slot and linear layer two matrices of the maximum rank. For a layer whose outputs are split over
    GPUs each GPU has the whole inner matrix, for one whose inputs are split the whole outer matrix
    (vllm/lora/layers/base_linear.py).
    """
    if room is None:
        return 0.0
    size = parallelism.tensor_parallel_size
    widths = sum(_widths(model, size))
    numbers = widths * room.max_rank * room.slots * parallelism.data_parallel_size
    return numbers * adapter_facts().bytes_per_number / BYTES_PER_GIB


def _widths(model: CatalogueModel, size: int) -> Iterator[int]:
    """Yield, for each linear layer of the model, the sum of input and output widths over the GPUs of a rank, times the
    number of such layers.
    """
    sizes = model.architecture
    queries, keys = sizes.attention_heads * sizes.head_dim, sizes.key_value_heads * sizes.head_dim
    copies = max(1, size // sizes.key_value_heads)
    for output in (queries, keys * copies, keys * copies, sizes.intermediate_size, sizes.intermediate_size):
        yield sizes.layers * (sizes.hidden_size * size + output)
    for inner in (queries, sizes.intermediate_size):
        yield sizes.layers * (inner + sizes.hidden_size * size)
    for _ in ("embedding", "head"):
        yield sizes.vocabulary_size * size + sizes.hidden_size * size
