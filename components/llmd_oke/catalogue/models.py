"""Models that the kit knows: what planning needs of their architecture, and how vLLM is started for them."""

from functools import cache
from typing import Annotated

from pydantic import StringConstraints

from llmd_oke.catalogue.endpoint_pickers import Api
from llmd_oke.catalogue.files import Entry, entry, names
from llmd_oke.config.stack import QuantizedReduce
from llmd_oke.config.storage import COMMIT


class SlidingWindow(Entry):
    """Layers that attend to the last tokens only."""

    tokens: int
    layers: int


class Experts(Entry):
    """A mixture of experts: how many there are in a layer and how many a token uses."""

    count: int
    active: int


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed cache instead of key and value heads."""

    key_value_rank: int
    rope_dim: int


class Architecture(Entry):
    """Sizes from the model's config.json, and whether its attention has sinks, a learned weight for each head."""

    layers: int
    hidden_size: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary_size: int
    sliding_window: SlidingWindow | None = None
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    attention_sinks: bool = False


class Parameters(Entry):
    """Parameters in billions; `active_billions` are those that one token passes through."""

    total_billions: float
    active_billions: float


class Weights(Entry):
    """The published weights: their number format and their size in GiB."""

    format: str
    gib: float


class Work(Entry):
    """What a token passes through and a decode step reads: parameters in billions, weights in GB (10^9 bytes).

    A prompt token passes through all but the head, which runs for the last one only. Of the experts a step reads those
    that its tokens are routed to, of the dense weights all.
    """

    prefill_parameters_billions: float
    decode_parameters_billions: float
    dense_weight_gb: float
    expert_weight_gb: float


class KeyValueCache(Entry):
    """The KV cache of one token, over all layers, in bytes."""

    bytes_per_token: int


class Vocabulary(Entry):
    """A file beside the weights that a model's API needs to start, and the variable that names its folder."""

    variable: str
    file: str
    url: str
    sha256: str
    bytes: int


class PassedEvaluation(Entry):
    """An evaluation of `values/evals` that a model passed, with which release, and its score as a share of 1."""

    name: str
    release: str
    score: float


class QuickReduce(Entry):
    """Quantized all-reduce between a server's GPUs (vLLM's `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`): it changes answers,
    so that no model has it without the evaluation that it passed.
    """

    quantization: QuantizedReduce
    evaluation: PassedEvaluation


class Model(Entry):
    """A model of the catalogue.

    `revision` is the commit of the repository that servers and pre-warming read, the head of `main` if left out; `apis`
    are those that it is used by, the main one first; `max_model_len` in tokens; `startup_budget_s` in seconds, from the
    start of the container to readiness.
    """

    name: str
    repository: str
    architecture: Architecture
    parameters: Parameters
    weights: Weights
    work: Work
    kv_cache: KeyValueCache
    apis: tuple[Api, ...]
    max_model_len: int
    activation_gib_per_gpu: float
    startup_budget_s: int
    arguments: tuple[str, ...]
    environment: dict[str, str]
    vocabulary: Vocabulary | None = None
    quick_reduce: QuickReduce | None = None
    revision: Annotated[str, StringConstraints(pattern=COMMIT)] | None = None


@cache
def model(name: str) -> Model | None:
    """The model of that name, or None."""
    return entry("models", name, Model)


def model_names() -> list[str]:
    """All models of the catalogue."""
    return names("models")


def model_of_repository(repository: str) -> Model | None:
    """The model with that Hugging Face repository, or None."""
    return next((found for name in model_names() if (found := model(name)) and found.repository == repository), None)
