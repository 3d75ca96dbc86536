"""Models that the kit knows: their architecture, the memory that they take, and how vLLM is started for them."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.endpoint_pickers import Api
from llmd_oke.catalogue.entries import Kind
from llmd_oke.catalogue.shapes import Node
from llmd_oke.config.base import EnvironmentName, HttpsUrl, matching
from llmd_oke.config.stack import Commit, QuantizedReduce
from llmd_oke.values import Entry, follows_project

Repository = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$", "a repository of Hugging Face such as owner/model"
    ),
]
"""A repository of Hugging Face."""


class SlidingWindow(Entry):
    """Layers that attend to the last tokens only."""

    tokens: PositiveInt
    layers: PositiveInt


class Experts(Entry):
    """A mixture of experts: how many there are in a layer and how many a token uses."""

    count: PositiveInt
    active: PositiveInt


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed cache instead of key and value heads."""

    key_value_rank: PositiveInt
    rope_dim: PositiveInt


class Architecture(Entry):
    """Sizes from the model's config.json, and whether its attention has sinks, a learned weight for each head."""

    layers: PositiveInt
    hidden_size: PositiveInt
    attention_heads: PositiveInt
    key_value_heads: PositiveInt
    head_dim: PositiveInt
    intermediate_size: PositiveInt
    vocabulary_size: PositiveInt
    sliding_window: SlidingWindow | None = None
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    attention_sinks: bool = False


class Parameters(Entry):
    """Parameters in billions; `active_billions` are those that one token passes through."""

    total_billions: PositiveFloat
    active_billions: PositiveFloat


class Weights(Entry):
    """The published weights: their number format and their size in GiB."""

    format: str
    gib: PositiveFloat


class Work(Entry):
    """What a token passes through and a decode step reads: parameters in billions, weights in GB (10^9 bytes).

    A prompt token passes through all but the head, which runs for the last one only. Of the experts a step reads those
    that its tokens are routed to, of the dense weights all.
    """

    prefill_parameters_billions: PositiveFloat
    decode_parameters_billions: PositiveFloat
    dense_weight_gb: PositiveFloat
    expert_weight_gb: NonNegativeFloat


class KeyValueCache(Entry):
    """The KV cache of one token, over all layers, in bytes."""

    bytes_per_token: PositiveInt


class Vocabulary(Entry):
    """A file beside the weights that a model's API needs to start, and the variable that names its folder."""

    variable: EnvironmentName
    file: Annotated[str, matching(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of a file without folders")]
    url: HttpsUrl
    sha256: Annotated[str, matching(r"^[0-9a-f]{64}$", "64 hexadecimal digits")]
    bytes: PositiveInt


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
    repository: Repository
    architecture: Architecture
    parameters: Parameters
    weights: Weights
    work: Work
    kv_cache: KeyValueCache
    apis: Annotated[tuple[Api, ...], Field(min_length=1)]
    max_model_len: PositiveInt
    activation_gib_per_gpu: NonNegativeFloat
    startup_budget_s: PositiveInt
    arguments: tuple[str, ...]
    environment: dict[EnvironmentName, str]
    vocabulary: Vocabulary | None = None
    quick_reduce: QuickReduce | None = None
    revision: Commit | None = None


MODELS = Kind("models", Model, key="name")


@follows_project
def model(name: str) -> Model | None:
    """The model of that name, or None."""
    return entries.entry(MODELS, name)


def model_names() -> list[str]:
    """All models of the catalogue."""
    return entries.names(MODELS.folder)


def model_of_repository(repository: str) -> Model | None:
    """The model with that Hugging Face repository, or None."""
    return next((item for name in model_names() if (item := model(name)) and item.repository == repository), None)


BYTES_PER_GIB = 2**30


def key_value_gib(model: Model, node: Node, tensor_parallel_size: int, utilization: float) -> float:
    """Room for the KV cache over all GPUs of a server, in GiB; negative where not even the weights fit.

    KV cache = share of the GPUs' memory that vLLM may take, less weights, less activations; `utilization` is
    vLLM's `--gpu-memory-utilization`.
    """
    gpu_gib = node.gpu.memory_gib * tensor_parallel_size
    return utilization * gpu_gib - model.weights.gib - model.activation_gib_per_gpu * tensor_parallel_size


def key_value_tokens(model: Model, node: Node, tensor_parallel_size: int, utilization: float) -> int:
    """Tokens whose KV cache fits one server beside weights and activations; a bound, as vLLM's profiling run decides.

    A KV head that is on several GPUs (more GPUs than KV heads, or latent attention) is stored on each of them.
    """
    bytes_per_token = model.kv_cache.bytes_per_token * key_value_copies(model, tensor_parallel_size)
    room_gib = key_value_gib(model, node, tensor_parallel_size, utilization)
    return max(0, int(room_gib * BYTES_PER_GIB / bytes_per_token))


def key_value_copies(model: Model, tensor_parallel_size: int) -> int:
    """How many GPUs of a server hold the same part of the KV cache."""
    if model.architecture.latent_attention is not None:
        return tensor_parallel_size
    return max(1, tensor_parallel_size // model.architecture.key_value_heads)


def names_by_repository() -> dict[str, str]:
    """The names of all models by their Hugging Face repositories."""
    models = (known for name in reversed(model_names()) if (known := model(name)))
    return {known.repository: known.name for known in models}


def model_name(repository: str) -> str:
    """What rows of results call a model: its key in the catalogue, or the repository where it has none."""
    return names_by_repository().get(repository, repository)
