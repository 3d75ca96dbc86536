"""Models of the catalogue: architecture, memory of weights and KV cache, and vLLM's arguments."""

from collections.abc import Collection
from typing import Annotated

from llmd_bench.deployment import Parallelism
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.endpoint_pickers import Api
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.catalogue.speculation import Draft, ServerDraft
from llmd_oke.config.base import Commit, EnvironmentName, HttpsUrl, Repository, matching
from llmd_oke.config.engine import FeatureName, Speculation
from llmd_oke.config.stack import QuantizedReduce
from llmd_oke.values import Entry, follows_project


class SlidingWindow(Entry):
    """Sliding-window attention: `layers` layers attend only to the last `tokens` tokens."""

    tokens: PositiveInt
    layers: PositiveInt


class Experts(Entry):
    """Mixture of experts: experts per layer, experts that a token uses, and inner size of one expert."""

    count: PositiveInt
    active: PositiveInt
    intermediate_size: PositiveInt | None = None


class LatentAttention(Entry):
    """Multi-head latent attention (MLA): one compressed cache instead of key and value heads, with `key_value_rank`
    compressed and `rope_dim` position-dependent numbers per token and layer.
    """

    key_value_rank: PositiveInt
    rope_dim: PositiveInt


class LinearAttention(Entry):
    """Layers with linear attention or a state space, which keep a state per sequence instead of a KV cache.

    Attributes:
        layers: number of such layers.
        state_bytes_per_sequence: bytes of one sequence's state over all these layers.
        attention_layers: number of layers with a KV cache; None if these are all other layers. A layer may have both,
            or neither.
        groups: number of groups of a state space's heads; a rank with more GPUs has copies of the part that a group
            shares.
    """

    layers: PositiveInt
    state_bytes_per_sequence: PositiveInt
    attention_layers: NonNegativeInt | None = None
    groups: PositiveInt | None = None


class Architecture(Entry):
    """Sizes in the model's config.json, and whether attention has sinks (a learned weight per head).

    `family` is the `model_type`; `head_dim` is the mean of key and value sizes if they differ.
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
        """Number of layers that have a KV cache, or read that of another layer."""
        linear = self.linear_attention
        if linear is None:
            return self.layers
        return self.layers - linear.layers if linear.attention_layers is None else linear.attention_layers


class Parameters(Entry):
    """Numbers of parameters in billions; `active_billions` are those that one token passes through."""

    total_billions: PositiveFloat
    active_billions: PositiveFloat


class Weights(Entry):
    """Size and number format of a model's published weights.

    Attributes:
        format: number format.
        gib: size in the memory of servers in GiB.
        stored_gib: size of the files in GiB; None if servers load all of them.
        block_size: number of consecutive weights that share a scale, of which each GPU must have whole blocks; None if
            matrices aren't scaled by blocks.
    """

    format: str
    gib: PositiveFloat
    stored_gib: PositiveFloat | None = None
    block_size: PositiveInt | None = None

    @property
    def files_gib(self) -> float:
        """Size of the model's files on disk in GiB."""
        return self.stored_gib or self.gib


class ModelWork(Entry):
    """Work per token: the parameters that it passes through, in billions, and the weights that a decode step reads, in
    GB (10^9 bytes).

    A prompt token passes through all parameters but the head, which runs only for the last token. A step reads all
    dense weights, and the experts that its tokens are routed to.
    """

    prefill_parameters_billions: PositiveFloat
    decode_parameters_billions: PositiveFloat
    dense_weight_gb: PositiveFloat
    expert_weight_gb: NonNegativeFloat


class KeyValueCache(Entry):
    """Size of one token's KV cache over all layers, in bytes."""

    bytes_per_token: PositiveInt


class Vocabulary(Entry):
    """Vocabulary file that a model's API needs at startup, and the environment variable with its directory."""

    variable: EnvironmentName
    file: Annotated[str, matching(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of a file without folders")]
    url: HttpsUrl
    sha256: Annotated[str, matching(r"^[0-9a-f]{64}$", "64 hexadecimal digits")]
    bytes: PositiveInt


class PassedEvaluation(Entry):
    """Evaluation of `values/evals` that a model passed, the release it ran with, and the score as a share (0.9 is 90
    %).
    """

    name: str
    release: str
    score: float


class QuickReduce(Entry):
    """Quantized all-reduce between a server's GPUs (vLLM's `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`). As it changes
    answers, the entry names the evaluation that the model passed with it.
    """

    quantization: QuantizedReduce
    evaluation: PassedEvaluation


class Feature(Entry):
    """vLLM's arguments for a feature of a model's servers, and the page that documents them."""

    arguments: tuple[str, ...]
    source: HttpsUrl


class PublishedRecipe(Entry):
    """The vLLM project's own recipe of a model: its page, and the GPUs on which the recipe says it was verified."""

    source: HttpsUrl
    verified_on: tuple[str, ...] = ()


class ComputedModel(Entry):
    """Part of a catalogue entry that is computed from a model's files (`llmd_oke.catalogue.model_configs`);
    `max_model_len` is in tokens.
    """

    architecture: Architecture
    parameters: Parameters
    weights: Weights
    work: ModelWork
    kv_cache: KeyValueCache
    max_model_len: PositiveInt


class CatalogueModel(ComputedModel):
    """Model of the catalogue: the computed part, and facts that only sources and measurements have.

    Attributes:
        name: name in the catalogue.
        repository: repository on Hugging Face.
        apis: APIs that the model is used by, the main one first.
        activation_gib_per_gpu: memory of activations in GiB on each GPU.
        startup_budget_s: maximum time in seconds from the start of the container to readiness.
        expert_parallel: whether GPUs of a server have whole experts, unless a stack file says otherwise.
        arguments: arguments of vLLM.
        environment: environment variables of vLLM.
        recipe: the vLLM project's own recipe; None if there is none.
        features: features that vLLM needs arguments for.
        draft: module that drafts tokens for the model in speculative decoding; None if no public source names one.
        quantized_from: name of the model whose weights were quantized to make this model's; None if the model isn't
            derived so.
        vocabulary: vocabulary file that servers need at startup; None if they need none.
        quick_reduce: quantization of all-reduce that the model passed an evaluation with; None if none was.
        revision: commit of the repository that servers and pre-warming read; None for the head of `main`.
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
    draft: Draft | None = None
    quantized_from: str | None = None
    vocabulary: Vocabulary | None = None
    quick_reduce: QuickReduce | None = None
    revision: Commit | None = None

    @property
    def argument_lists(self) -> dict[str, tuple[str, ...]]:
        """All arguments of vLLM in the entry, by their path in the entry's file."""
        features = {f"features.{name}.arguments": feature.arguments for name, feature in self.features.items()}
        drafts = {"draft.arguments": self.draft.arguments} if self.draft else {}
        return {"arguments": self.arguments, **features, **drafts}

    def server_draft(self, asked: Speculation | None) -> ServerDraft | None:
        """Return the draft that servers use for speculative decoding as the stack file asks for it; None if it asks for
        none, or the model has none.
        """
        if asked is None or self.draft is None:
            return None
        return ServerDraft(self.draft, asked.tokens or self.draft.tokens, asked.revision)

    def files_gib(self, draft: ServerDraft | None) -> float:
        """Size in GiB on disk of the model's files, and of the files of a draft that has a repository of its own."""
        beside = draft.draft.weights.gib if draft is not None and draft.draft.repository else 0.0
        return self.weights.files_gib + beside

    def chosen_features(self, names: Collection[FeatureName] | None) -> dict[FeatureName, Feature]:
        """Return the model's features with these names; all of its features if `names` is None."""
        return {name: feature for name, feature in self.features.items() if names is None or name in names}

    def feature_arguments(self, names: Collection[FeatureName] | None) -> tuple[str, ...]:
        """Return vLLM's arguments for the features with these names; for all of the model's features if `names` is
        None.
        """
        return tuple(word for feature in self.chosen_features(names).values() for word in feature.arguments)


MODELS = EntryKind("models", CatalogueModel, key="name")


@follows_project
def model(name: str) -> CatalogueModel | None:
    """Return the model with this name; None if the catalogue has none."""
    return entries.entry(MODELS, name)


def model_names() -> list[str]:
    """Return the names of all models of the catalogue, sorted."""
    return entries.names(MODELS.folder)


def model_of_repository(repository: str) -> CatalogueModel | None:
    """Return the model with this Hugging Face repository; None if the catalogue has none."""
    return next((item for name in model_names() if (item := model(name)) and item.repository == repository), None)


BYTES_PER_GIB = 2**30


def weights_gib(model: CatalogueModel, parallelism: Parallelism) -> float:
    """Return the size of the weights over all GPUs of a server in GiB: each data-parallel rank has its own copy of
    everything but the experts.
    """
    further_ranks = parallelism.data_parallel_size - 1
    return model.weights.gib + further_ranks * model.work.dense_weight_gb * 1e9 / BYTES_PER_GIB


def key_value_gib(
    model: CatalogueModel, node: NodeHardware, parallelism: Parallelism, utilization: float, further_gib: float = 0.0
) -> float:
    """Return the memory for KV cache over all GPUs of a server in GiB; negative if not even the weights fit.

    It is the share of the GPUs' memory that vLLM may use (`utilization`, vLLM's `--gpu-memory-utilization`), less
    weights, activations and `further_gib`, which drafts and adapter slots take.
    """
    gpu_gib = node.gpu.memory_gib * parallelism.gpus
    activation_gib = model.activation_gib_per_gpu * parallelism.gpus
    return utilization * gpu_gib - weights_gib(model, parallelism) - activation_gib - further_gib


def key_value_tokens(
    model: CatalogueModel,
    node: NodeHardware,
    parallelism: Parallelism,
    utilization: float,
    further_gib: float = 0.0,
    draft: ServerDraft | None = None,
) -> int:
    """Return the number of tokens whose KV cache fits one server besides weights and activations, over all its ranks;
    an upper bound, as vLLM's profiling run decides. A KV head that is on several GPUs of a rank (more GPUs than KV
    heads, or latent attention) is stored on each of them. The layers of `draft` add KV cache of their own to each
    token's.
    """
    copies = key_value_copies(model, parallelism.tensor_parallel_size)
    bytes_per_token = key_value_bytes_per_token(model, draft) * copies
    rank_gib = key_value_gib(model, node, parallelism, utilization, further_gib) / parallelism.data_parallel_size
    return max(0, int(rank_gib * BYTES_PER_GIB / bytes_per_token)) * parallelism.data_parallel_size


def key_value_bytes_per_token(model: CatalogueModel, draft: ServerDraft | None) -> int:
    """Return the bytes of one token's KV cache in BF16, over all layers of a model and of its draft."""
    return model.kv_cache.bytes_per_token + (draft.draft.key_value_bytes_per_token if draft else 0)


def host_key_value_tokens(
    model: CatalogueModel, parallelism: Parallelism, host_gib: float, draft: ServerDraft | None = None
) -> int:
    """Return the number of tokens whose KV cache, of all layers, fits `host_gib` of a node's memory or disks; an upper
    bound, as blocks are kept whole.
    """
    copies = host_key_value_copies(model, parallelism.tensor_parallel_size)
    return int(host_gib * BYTES_PER_GIB / (key_value_bytes_per_token(model, draft) * copies))


def host_key_value_copies(model: CatalogueModel, tensor_parallel_size: int) -> int:
    """Return the number of copies of one part of a rank's KV cache in the node's memory: each GPU keeps its own part,
    but a latent cache, which is equal on all GPUs, is kept once (vLLM 0.30, v1/kv_offload/cpu/spec.py:
    replicated_layout).
    """
    return 1 if model.architecture.latent_attention is not None else key_value_copies(model, tensor_parallel_size)


def key_value_copies(model: CatalogueModel, tensor_parallel_size: int) -> int:
    """Return the number of GPUs of a rank that hold the same part of its KV cache."""
    if model.architecture.latent_attention is not None:
        return tensor_parallel_size
    return max(1, tensor_parallel_size // model.architecture.key_value_heads)


def heads_allow(model: CatalogueModel, tensor_parallel_size: int) -> bool:
    """Tell whether this many GPUs can split the attention heads evenly with whole KV heads on each GPU; a latent cache
    is copied to each.
    """
    sizes, gpus = model.architecture, tensor_parallel_size
    shared = sizes.key_value_heads % gpus == 0 or gpus % sizes.key_value_heads == 0
    return sizes.attention_heads % gpus == 0 and (shared or sizes.latent_attention is not None)


def shared_size(model: CatalogueModel, parallelism: Parallelism) -> int | None:
    """Return the inner size that a server's GPUs split: that of an expert, or of a dense layer. None if experts are
    kept whole, or their size is unknown.
    """
    experts = model.architecture.experts
    if experts is None:
        return model.architecture.intermediate_size
    return None if parallelism.expert_parallel else experts.intermediate_size


def blocks_allow(model: CatalogueModel, parallelism: Parallelism) -> bool:
    """Tell whether each GPU has whole blocks of block-scaled weights; otherwise vLLM doesn't start."""
    inner, block = shared_size(model, parallelism), model.weights.block_size
    return block is None or inner is None or inner % (parallelism.gpus * block) == 0


def state_tokens(model: CatalogueModel, tensor_parallel_size: int, draft: ServerDraft | None = None) -> int:
    """Return the number of tokens whose KV cache is as large as one sequence's state in layers with linear attention,
    rounded up; 0 for models without such layers.

    The state is split over all GPUs of a rank, the KV cache only over those without copies (`key_value_copies`). With a
    draft there is one state more for each drafted token (vLLM, v1/kv_cache_interface.py: num_speculative_blocks).
    """
    linear = model.architecture.linear_attention
    if linear is None:
        return 0
    states_bytes = linear.state_bytes_per_sequence * (1 + (draft.tokens if draft else 0))
    copies = key_value_copies(model, tensor_parallel_size)
    return -(-states_bytes // (key_value_bytes_per_token(model, draft) * copies))


def names_by_repository() -> dict[str, str]:
    """Return the names of all models by Hugging Face repository."""
    models = (known for name in reversed(model_names()) if (known := model(name)))
    return {known.repository: known.name for known in models}


def model_name(repository: str) -> str:
    """Return the name of a model in rows of results: its name in the catalogue, or its repository if the catalogue has
    none.
    """
    return names_by_repository().get(repository, repository)
