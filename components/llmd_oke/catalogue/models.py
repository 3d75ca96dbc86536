"""Models that the kit knows: their architecture, the memory that they take, and how vLLM is started for them."""

from collections.abc import Collection
from typing import Annotated

from llmd_bench.deployment import Parallelism
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.endpoint_pickers import Api
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.config.base import Commit, EnvironmentName, HttpsUrl, Repository, matching
from llmd_oke.config.engine import FeatureName
from llmd_oke.config.stack import QuantizedReduce
from llmd_oke.values import Entry, follows_project


class SlidingWindow(Entry):
    """Layers that attend to the last tokens only."""

    tokens: PositiveInt
    layers: PositiveInt


class Experts(Entry):
    """A mixture of experts: how many there are in a layer, how many a token uses, and the inner size of one."""

    count: PositiveInt
    active: PositiveInt
    intermediate_size: PositiveInt | None = None


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed cache instead of key and value heads."""

    key_value_rank: PositiveInt
    rope_dim: PositiveInt


class LinearAttention(Entry):
    """Layers that keep a state for each sequence instead of a KV cache, by linear attention or a state space, and its
    bytes over all of them.

    `attention_layers` are those that have a KV cache, where they aren't all the others: a layer may have both, or
    neither. `groups` are those of a state space's heads: a rank with more GPUs has copies of what a group shares.
    """

    layers: PositiveInt
    state_bytes_per_sequence: PositiveInt
    attention_layers: NonNegativeInt | None = None
    groups: PositiveInt | None = None


class Architecture(Entry):
    """Sizes from the model's config.json, and whether its attention has sinks, a learned weight for each head.

    `family` is its `model_type`; `head_dim` is the mean of keys and values where they differ.
    """

    family: str | None = None
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
    linear_attention: LinearAttention | None = None
    attention_sinks: bool = False

    @property
    def attention_layers(self) -> int:
        """Layers that have a KV cache, or read that of another."""
        linear = self.linear_attention
        if linear is None:
            return self.layers
        return self.layers - linear.layers if linear.attention_layers is None else linear.attention_layers


class Parameters(Entry):
    """Parameters in billions; `active_billions` are those that one token passes through."""

    total_billions: PositiveFloat
    active_billions: PositiveFloat


class Weights(Entry):
    """The published weights: their number format, and their size in GiB in the memory of servers.

    `stored_gib` is that of the files where servers don't load all of them. `block_size` are the weights of a row that
    share a scale, where a matrix is scaled by blocks: what a GPU has of it are whole blocks.
    """

    format: str
    gib: PositiveFloat
    stored_gib: PositiveFloat | None = None
    block_size: PositiveInt | None = None

    @property
    def files_gib(self) -> float:
        """Size of the files on a disk, in GiB."""
        return self.stored_gib or self.gib


class ModelWork(Entry):
    """Work of a token: the parameters that it passes through, in billions, and the weights that a decode step reads, in
    GB (10^9 bytes).

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


class Feature(Entry):
    """Arguments of vLLM for a feature of a model's servers, and the page that has them."""

    arguments: tuple[str, ...]
    source: HttpsUrl


class PublishedRecipe(Entry):
    """The vLLM project's own recipe of a model: its page, and the GPUs that it says the recipe was verified on."""

    source: HttpsUrl
    verified_on: tuple[str, ...] = ()


class ComputedModel(Entry):
    """Computed part of an entry, from a model's files (`llmd_oke.catalogue.model_configs`); `max_model_len` in
    tokens.
    """

    architecture: Architecture
    parameters: Parameters
    weights: Weights
    work: ModelWork
    kv_cache: KeyValueCache
    max_model_len: PositiveInt


class CatalogueModel(ComputedModel):
    """A model of the catalogue: beside what is computed, what only sources and measurements can tell.

    `revision` is the commit of the repository that servers and pre-warming read, the head of `main` if left out; `apis`
    are those that it is used by, the main one first; `startup_budget_s` in seconds, from the start of the container to
    readiness. `expert_parallel` says that GPUs of a server have whole experts, unless a stack file says otherwise.
    `quantized_from` is the name of the model whose weights those of this repository were quantized from.
    """

    name: str
    repository: Repository
    apis: Annotated[tuple[Api, ...], Field(min_length=1)]
    activation_gib_per_gpu: NonNegativeFloat
    startup_budget_s: PositiveInt
    expert_parallel: bool = False
    arguments: tuple[str, ...]
    environment: dict[EnvironmentName, str]
    recipe: PublishedRecipe | None = None
    features: dict[FeatureName, Feature] = Field(default_factory=dict[FeatureName, Feature])
    quantized_from: str | None = None
    vocabulary: Vocabulary | None = None
    quick_reduce: QuickReduce | None = None
    revision: Commit | None = None

    @property
    def argument_lists(self) -> dict[str, tuple[str, ...]]:
        """All arguments of vLLM that the entry has, by their path in its file."""
        features = {f"features.{name}.arguments": feature.arguments for name, feature in self.features.items()}
        return {"arguments": self.arguments, **features}

    def chosen_features(self, names: Collection[FeatureName] | None) -> dict[FeatureName, Feature]:
        """Return the features of those names that the model has; all of them where no names are given."""
        return {name: feature for name, feature in self.features.items() if names is None or name in names}

    def feature_arguments(self, names: Collection[FeatureName] | None) -> tuple[str, ...]:
        """Return vLLM's arguments for the features of those names; for all of the model's where no names are given."""
        return tuple(word for feature in self.chosen_features(names).values() for word in feature.arguments)


MODELS = EntryKind("models", CatalogueModel, key="name")


@follows_project
def model(name: str) -> CatalogueModel | None:
    """The model of that name, or None."""
    return entries.entry(MODELS, name)


def model_names() -> list[str]:
    """All models of the catalogue."""
    return entries.names(MODELS.folder)


def model_of_repository(repository: str) -> CatalogueModel | None:
    """The model with that Hugging Face repository, or None."""
    return next((item for name in model_names() if (item := model(name)) and item.repository == repository), None)


BYTES_PER_GIB = 2**30


def weights_gib(model: CatalogueModel, parallelism: Parallelism) -> float:
    """Weights over all GPUs of a server, in GiB: each rank has its own of all that is no expert."""
    further_ranks = parallelism.data_parallel_size - 1
    return model.weights.gib + further_ranks * model.work.dense_weight_gb * 1e9 / BYTES_PER_GIB


def key_value_gib(
    model: CatalogueModel, node: NodeHardware, parallelism: Parallelism, utilization: float, further_gib: float = 0.0
) -> float:
    """Room for the KV cache over all GPUs of a server, in GiB; negative where not even the weights fit.

    KV cache = share of the GPUs' memory that vLLM may take, less weights, less activations, less `further_gib`, which
    drafts and room for adapters take; `utilization` is vLLM's `--gpu-memory-utilization`.
    """
    gpu_gib = node.gpu.memory_gib * parallelism.gpus
    activation_gib = model.activation_gib_per_gpu * parallelism.gpus
    return utilization * gpu_gib - weights_gib(model, parallelism) - activation_gib - further_gib


def key_value_tokens(
    model: CatalogueModel, node: NodeHardware, parallelism: Parallelism, utilization: float, further_gib: float = 0.0
) -> int:
    """Tokens whose KV cache fits one server beside weights and activations, over all of its ranks; a bound, as vLLM's
    profiling run decides.

    A KV head that is on several GPUs of a rank (more GPUs than KV heads, or latent attention) is stored on each of
    them.
    """
    bytes_per_token = model.kv_cache.bytes_per_token * key_value_copies(model, parallelism.tensor_parallel_size)
    rank_gib = key_value_gib(model, node, parallelism, utilization, further_gib) / parallelism.data_parallel_size
    return max(0, int(rank_gib * BYTES_PER_GIB / bytes_per_token)) * parallelism.data_parallel_size


def host_key_value_tokens(model: CatalogueModel, parallelism: Parallelism, host_gib: float) -> int:
    """Tokens whose KV cache one server keeps in so much of its node's memory, of all layers; a bound, as blocks are
    kept whole.
    """
    copies = host_key_value_copies(model, parallelism.tensor_parallel_size)
    return int(host_gib * BYTES_PER_GIB / (model.kv_cache.bytes_per_token * copies))


def host_key_value_copies(model: CatalogueModel, tensor_parallel_size: int) -> int:
    """Count the GPUs of a rank that keep the same part of its KV cache in their node's memory: each GPU keeps its own
    part; a latent cache, which all have alike, is kept once (vLLM 0.30, v1/kv_offload/cpu/spec.py: replicated_layout).
    """
    return 1 if model.architecture.latent_attention is not None else key_value_copies(model, tensor_parallel_size)


def key_value_copies(model: CatalogueModel, tensor_parallel_size: int) -> int:
    """Count the GPUs of a rank that hold the same part of its KV cache."""
    if model.architecture.latent_attention is not None:
        return tensor_parallel_size
    return max(1, tensor_parallel_size // model.architecture.key_value_heads)


def heads_allow(model: CatalogueModel, tensor_parallel_size: int) -> bool:
    """Tell whether so many GPUs share the attention heads evenly, and each has whole KV heads; a latent cache is
    copied.
    """
    sizes, gpus = model.architecture, tensor_parallel_size
    shared = sizes.key_value_heads % gpus == 0 or gpus % sizes.key_value_heads == 0
    return sizes.attention_heads % gpus == 0 and (shared or sizes.latent_attention is not None)


def shared_size(model: CatalogueModel, parallelism: Parallelism) -> int | None:
    """The inner size of what a server's GPUs share: an expert's, or a dense layer's. None where experts are whole."""
    experts = model.architecture.experts
    if experts is None:
        return model.architecture.intermediate_size
    return None if parallelism.expert_parallel else experts.intermediate_size


def blocks_allow(model: CatalogueModel, parallelism: Parallelism) -> bool:
    """Tell whether each GPU has whole blocks of weights that are scaled by blocks: vLLM starts with nothing else."""
    inner, block = shared_size(model, parallelism), model.weights.block_size
    return block is None or inner is None or inner % (parallelism.gpus * block) == 0


def state_tokens(model: CatalogueModel, tensor_parallel_size: int) -> int:
    """Tokens whose KV cache takes as much room as the state of a sequence in layers of linear attention, rounded up.

    The state is split over all GPUs of a rank, its KV cache as `key_value_copies` says.
    """
    linear = model.architecture.linear_attention
    if linear is None:
        return 0
    return -(
        -linear.state_bytes_per_sequence
        // (model.kv_cache.bytes_per_token * key_value_copies(model, tensor_parallel_size))
    )


def names_by_repository() -> dict[str, str]:
    """The names of all models by their Hugging Face repositories."""
    models = (known for name in reversed(model_names()) if (known := model(name)))
    return {known.repository: known.name for known in models}


def model_name(repository: str) -> str:
    """Return what rows of results call a model: its key in the catalogue, or the repository where it has none."""
    return names_by_repository().get(repository, repository)
