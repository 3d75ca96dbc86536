"""The computed part of a model's catalogue entry, from its config.json and the index of its weights.

A pure function of these files. What an architecture leaves to its code is in `values/architectures`; of one without a
row there it is assumed, and `bounds` says so.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Annotated, Literal, TypeVar, cast

from llmd_base.errors import InvalidStack, Problem
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from llmd_oke.catalogue.models import (
    BYTES_PER_GIB,
    Architecture,
    ComputedModel,
    Experts,
    KeyValueCache,
    LatentAttention,
    LinearAttention,
    ModelWork,
    Parameters,
    SlidingWindow,
    Weights,
)
from llmd_oke.values import Entry, required_entry

_VERDICT = "the model's entry can't be computed"

_HALF = 2
"""Bytes of a number in BF16 or FP16."""


class ArchitectureFamily(Entry):
    """Facts of an architecture that its config.json leaves to the code of the model.

    `attention` is the kind of attention that its file must have the sizes of; of others the sizes tell the kind.
    `shared_experts` are those that each token passes through beside the ones that it is routed to, `plain_mlp` says
    that a dense layer has two matrices and not three, `tied_embeddings` that the head is the embeddings unless the file
    says otherwise, and `experts_beside_dense` that layers have a dense part beside experts.
    """

    source: str
    attention: Literal["latent", "gated-delta-net"] | None = None
    attention_sinks: bool = False
    expert_biases: bool = False
    query_gate: bool = False
    shared_experts: int = 0
    plain_mlp: bool = False
    tied_embeddings: bool = False
    experts_beside_dense: bool = False


_UNKNOWN_FAMILY = ArchitectureFamily(source="")


class _Families(Entry):
    families: dict[str, ArchitectureFamily]


@cache
def families() -> Mapping[str, ArchitectureFamily]:
    """The architectures whose code was looked at, by the `model_type` of their text model in config.json."""
    return required_entry("architectures", "families", _Families).families


# What is read of the files.

Size = Annotated[int, Field(strict=True, gt=0, le=10**9)]
Layers = Annotated[int, Field(strict=True, gt=0, le=4096)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**6)]


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _QuantizedWeights(_File):
    num_bits: Literal[4, 8]
    type: Literal["float", "int"]
    group_size: Annotated[int, Field(strict=True)] | None = None


class _QuantizedGroup(_File):
    weights: _QuantizedWeights


class Quantization(_File):
    """`quantization_config`: how weights are stored, and the modules that are not quantized."""

    quant_method: str
    weight_block_size: tuple[Size, Size] | None = None
    config_groups: dict[str, _QuantizedGroup] = Field(default_factory=dict[str, _QuantizedGroup])
    unquantized: tuple[str, ...] | None = Field(
        default=None, validation_alias=AliasChoices("modules_to_not_convert", "ignore", "ignored_layers")
    )


class StoredConfig(_File):
    """Form in which a model's weights are stored."""

    quantization_config: Quantization | None = None


class TransformerConfig(StoredConfig):
    """Fields of config.json that all architectures have."""

    model_type: str
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size = Field(validation_alias=AliasChoices("intermediate_size", "moe_intermediate_size"))
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: bool | None = None
    num_nextn_predict_layers: Count | None = Field(
        default=None, validation_alias=AliasChoices("num_nextn_predict_layers", "mtp_num_hidden_layers")
    )
    v_head_dim: Size | None = None
    sliding_window: Count | None = None
    use_sliding_window: bool = True
    max_window_layers: Count = 0
    sliding_window_pattern: Size | None = None
    hybrid_layer_pattern: tuple[Count, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    swa_num_attention_heads: Size | None = None
    swa_num_key_value_heads: Size | None = None
    swa_head_dim: Size | None = None
    swa_v_head_dim: Size | None = None
    num_global_key_value_heads: Size | None = None
    global_head_dim: Size | None = None
    attention_k_eq_v: bool = False
    num_kv_shared_layers: Count = 0
    intermediate_size_mlp: Size | None = None
    dtype: Literal["bfloat16", "float16"] = Field(
        default="bfloat16", validation_alias=AliasChoices("torch_dtype", "dtype")
    )

    @property
    def head_size(self) -> int:
        """`head_dim`, or what each head has of the hidden size."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """`num_key_value_heads`, or as many as there are of queries."""
        return self.num_key_value_heads or self.num_attention_heads

    @cached_property
    def windowed_layers(self) -> frozenset[int]:
        """The layers that see a window: as the file lists them, all but each nth, or those from `max_window_layers`."""
        layers = range(self.num_hidden_layers)
        if not self.sliding_window or not self.use_sliding_window:
            return frozenset()
        if self.layer_types is not None:
            return frozenset(i for i in layers if self.layer_types[i] == "sliding_attention")
        if self.hybrid_layer_pattern is not None:
            return frozenset(i for i in layers if self.hybrid_layer_pattern[i])
        if self.sliding_window_pattern is not None:
            return frozenset(i for i in layers if (i + 1) % self.sliding_window_pattern)
        return frozenset(i for i in layers if i >= self.max_window_layers)

    def heads(self, layer: int) -> "Heads":
        """Return the attention heads of a layer."""
        windowed = layer in self.windowed_layers
        if windowed and self.swa_head_dim is not None:
            return Heads(
                self.swa_num_attention_heads or self.num_attention_heads,
                self.swa_num_key_value_heads or self.key_value_heads,
                self.swa_head_dim,
                self.swa_v_head_dim or self.swa_head_dim,
            )
        if not windowed and self.global_head_dim is not None:
            shared = self.num_global_key_value_heads or self.key_value_heads
            return Heads(self.num_attention_heads, shared, self.global_head_dim, self.global_head_dim)
        value_size = self.v_head_dim or self.head_size
        return Heads(self.num_attention_heads, self.key_value_heads, self.head_size, value_size)


@dataclass(frozen=True)
class Heads:
    """Attention heads of a layer: of queries, of keys and values, and the sizes of one of each."""

    queries: int
    key_values: int
    key_size: int
    value_size: int


_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Names of the number of experts in a layer."""


class ExpertsConfig(_File):
    """A mixture of experts, by the names that architectures give its sizes."""

    count: Size = Field(validation_alias=AliasChoices(*_EXPERT_COUNTS))
    active: Size = Field(validation_alias=AliasChoices("num_experts_per_tok", "experts_per_token", "top_k_experts"))
    intermediate_size: Size = Field(validation_alias=AliasChoices("moe_intermediate_size", "intermediate_size"))
    shared_intermediate_size: Count = Field(default=0, validation_alias="shared_expert_intermediate_size")
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    decoder_sparse_step: Size = Field(
        default=1, validation_alias=AliasChoices("decoder_sparse_step", "interleave_moe_layer_step")
    )
    moe_layer_freq: Size | tuple[Count, ...] = 1
    mlp_only_layers: tuple[Count, ...] = ()

    def shared_size(self, family: ArchitectureFamily) -> int:
        """The inner size of all experts together that every token passes through."""
        shared = self.n_shared_experts or family.shared_experts
        return self.shared_intermediate_size or shared * self.intermediate_size

    def in_layer(self, layer: int) -> bool:
        """Tell whether a layer has experts, not one dense part."""
        if isinstance(self.moe_layer_freq, tuple):
            return bool(self.moe_layer_freq[layer])
        sparse = (layer + 1) % self.decoder_sparse_step == 0 and layer not in self.mlp_only_layers
        return sparse and layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


class LatentConfig(_File):
    """Multi-head latent attention."""

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Size | None = None

    def parameters(self, config: TransformerConfig) -> int:
        """h q_rank + q_rank heads (nope + rope) + h (rank + rope) + rank heads (nope + v) + heads v h."""
        hidden, heads = config.hidden_size, config.num_attention_heads
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        queries = self.q_lora_rank * (hidden + query) if self.q_lora_rank else hidden * query
        latent = hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        expanded = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return queries + latent + expanded + heads * self.v_head_dim * hidden


class DeltaNetConfig(_File):
    """Layers of linear attention by a gated delta rule, which keep a state for each sequence."""

    linear_num_key_heads: Size
    linear_key_head_dim: Size
    linear_num_value_heads: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size
    full_attention_interval: Size | None = None
    mamba_ssm_dtype: Literal["bfloat16", "float16", "float32"] | None = None

    @property
    def _sizes(self) -> tuple[int, int]:
        """Sizes of keys and values over all heads."""
        key = self.linear_num_key_heads * self.linear_key_head_dim
        return key, self.linear_num_value_heads * self.linear_value_head_dim

    def parameters(self, hidden: int) -> int:
        """hidden (2 key + 2 value + 2 value_heads) + kernel (2 key + value) + value hidden."""
        key, value = self._sizes
        projected = hidden * (2 * key + 2 * value + 2 * self.linear_num_value_heads)
        return projected + self.linear_conv_kernel_dim * (2 * key + value) + value * hidden

    def state_bytes(self) -> int:
        """(kernel - 1) (2 key + value) in BF16, and value_heads key_dim value_dim in the state's number format."""
        key, value = self._sizes
        convolution = (self.linear_conv_kernel_dim - 1) * (2 * key + value) * _HALF
        number_bytes = 4 if self.mamba_ssm_dtype == "float32" else _HALF
        return convolution + value * self.linear_key_head_dim * number_bytes

    def layers(self, config: TransformerConfig) -> frozenset[int]:
        """The layers of linear attention."""
        if config.layer_types is not None:
            return frozenset(i for i, kind in enumerate(config.layer_types) if kind == "linear_attention")
        every = self.full_attention_interval or 1
        return frozenset(i for i in range(config.num_hidden_layers) if (i + 1) % every)


class _IndexMetadata(_File):
    total_size: Annotated[int, Field(gt=0, le=2**50)]


class Index(_File):
    """`model.safetensors.index.json`, of which the size of all files is read."""

    metadata: _IndexMetadata


# How weights are stored.


@dataclass(frozen=True)
class NumberFormat:
    """Form of weights: the bits of one with its share of scales; `block` are the weights of a row with one."""

    name: str
    bits: float
    block: int | None = None


_UNQUANTIZED = NumberFormat("bf16", 16)


def _number_format(quantization: Quantization | None) -> NumberFormat | Problem:
    """Scales of a tensor or channel, less than a thousandth, are left out; those of blocks and groups are not."""
    if quantization is None:
        return _UNQUANTIZED
    match quantization.quant_method:
        case "fp8" | "fbgemm_fp8":
            block = quantization.weight_block_size
            return NumberFormat("fp8", 8 + 32 / (block[0] * block[1]), block[0]) if block else NumberFormat("fp8", 8)
        case "mxfp4":
            return NumberFormat("mxfp4", 4.25)
        case "compressed-tensors" if len(quantization.config_groups) == 1:
            (group,) = quantization.config_groups.values()
            return _group_format(group.weights)
        case method:
            path, known = "quantization_config", "fp8, fbgemm_fp8, mxfp4, or compressed-tensors with one group"
            return Problem(f"{path}.quant_method", method, known, "the bytes of its weights are not known")


def _group_format(weights: _QuantizedWeights) -> NumberFormat | Problem:
    if weights.num_bits == 8:
        return NumberFormat("fp8" if weights.type == "float" else "int8", 8)
    if weights.type == "int" and weights.group_size and weights.group_size > 0:
        return NumberFormat("int4", 4 + 16 / weights.group_size)
    path = "quantization_config.config_groups.*.weights"
    return Problem(path, "4 bits", "float or int of 8 bits, or int of 4 bits in groups", "their scales are not known")


_NESTED = re.compile(r"\)[*+?{]|[*+}][*+{]")
"""Repeated groups in a regular expression, which some names would take forever to be held against."""


def _pattern_problems(quantization: Quantization | None) -> Iterator[Problem]:
    patterns = (quantization and quantization.unquantized) or ()
    for i, pattern in enumerate(patterns):
        if pattern.startswith("re:"):
            try:
                fine = len(pattern) <= 200 and not _NESTED.search(pattern) and bool(re.compile(pattern[3:]))
            except re.error:
                fine = False
            if not fine:
                why = "it is not a pattern that names can be held against in a short time"
                yield Problem(f"quantization_config.ignore[{i}]", pattern, "a regular expression of one level", why)


def _matches(pattern: str, module: str) -> bool:
    """Tell whether a pattern of unquantized modules is meant for a module: by its name, its parents', a glob
    or `re:`.
    """
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "." not in pattern:
        return pattern in module.split(".")
    return module == pattern or module.startswith(f"{pattern}.") or fnmatchcase(module, f"{pattern}*")


# What is computed.


@dataclass(frozen=True)
class _Part:
    """Matrices of a layer: `module` is their name in the weights, empty where they are never quantized; `used` are the
    parameters that one token passes through.
    """

    module: str
    parameters: int
    used: int
    routed: bool = False
    matrices: bool = True


@dataclass(frozen=True)
class _ModelFiles:
    """Files of a model that were read, each checked."""

    family: ArchitectureFamily
    config: TransformerConfig
    number_format: NumberFormat
    experts: ExpertsConfig | None
    latent: LatentConfig | None
    delta_net: DeltaNetConfig | None
    index: Index | None

    @property
    def tied_embeddings(self) -> bool:
        """Tell whether the head is the embeddings."""
        said = self.config.tie_word_embeddings
        return self.family.tied_embeddings if said is None else said

    @property
    def linear_layers(self) -> frozenset[int]:
        """The layers without a KV cache."""
        return self.delta_net.layers(self.config) if self.delta_net else frozenset()

    def parts(self, layer: int) -> Iterator[_Part]:
        """Yield the parts of one layer."""
        name, hidden = f"model.layers.{layer}", self.config.hidden_size
        attention = self._attention(layer)
        yield _Part(
            f"{name}.{'linear_attn' if layer in self.linear_layers else 'self_attn'}.q_proj", attention, attention
        )
        yield _Part("", 2 * hidden, 0, matrices=False)  # norms
        experts, config = self.experts, self.config
        routed = experts is not None and experts.in_layer(layer)
        if experts is None or not routed or self.family.experts_beside_dense:
            inner = config.intermediate_size_mlp or config.intermediate_size
            dense = (2 if self.family.plain_mlp else 3) * hidden * inner
            yield _Part(f"{name}.mlp.gate_proj", dense, dense)
        if experts is None or not routed:
            return
        one, shared = 3 * hidden * experts.intermediate_size, 3 * hidden * experts.shared_size(self.family)
        yield _Part(f"{name}.mlp.experts.0.gate_proj", experts.count * one, experts.active * one, routed=True)
        yield _Part(f"{name}.mlp.shared_experts.gate_proj", shared, shared)
        yield _Part("", experts.count * hidden, experts.count * hidden)  # the router
        if self.family.expert_biases:
            biases = 2 * experts.intermediate_size + hidden
            yield _Part("", experts.count * biases, 0, routed=True, matrices=False)

    def _attention(self, layer: int) -> int:
        """hidden (queries + keys + values) + heads value_dim hidden; latent and linear attention by their own."""
        config = self.config
        if self.latent is not None:
            return self.latent.parameters(config)
        if self.delta_net is not None and layer in self.linear_layers:
            return self.delta_net.parameters(config.hidden_size)
        heads, windowed = config.heads(layer), layer in config.windowed_layers
        queries, keys = heads.queries * heads.key_size, heads.key_values * heads.key_size
        values = 0 if config.attention_k_eq_v and not windowed else heads.key_values * heads.value_size
        gate = queries if self.family.query_gate else 0
        return config.hidden_size * (queries + gate + keys + values + heads.queries * heads.value_size)

    def part_bytes(self, part: _Part) -> float:
        quantization = self.config.quantization_config
        patterns = (quantization and quantization.unquantized) or ()
        plain = not part.module or any(_matches(pattern, part.module) for pattern in patterns)
        return part.parameters * (_UNQUANTIZED if plain else self.number_format).bits / 8


def compute_model(config: Mapping[str, object], index: Mapping[str, object] | None = None) -> ComputedModel:
    """The part of a model's entry that follows from its config.json, and from `model.safetensors.index.json` if given.

    Raises:
        InvalidStack: the architecture or number format is unknown, or something is missing or of another form. Each
            problem has its path in the file.
    """
    files = _read(config, index)
    parts = [part for layer in range(files.config.num_hidden_layers) for part in files.parts(layer)]
    head = files.config.vocab_size * files.config.hidden_size
    work = _work(files, parts, head)
    embeddings = head if files.tied_embeddings else 2 * head
    total = sum(part.parameters for part in parts) + files.config.hidden_size + embeddings
    active = work.decode_parameters_billions if files.experts else total / 1e9
    return ComputedModel(
        architecture=_architecture(files),
        parameters=Parameters(total_billions=round(total / 1e9, 2), active_billions=round(active, 2)),
        weights=_weights(files, parts, embeddings),
        work=work,
        kv_cache=_key_value_cache(files),
        max_model_len=files.config.max_position_embeddings,
    )


def _architecture(files: _ModelFiles) -> Architecture:
    config, experts, latent, delta_net = files.config, files.experts, files.latent, files.delta_net
    mean_head = (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim) // 2 if latent else 0
    return Architecture(
        family=config.model_type,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        attention_heads=config.num_attention_heads,
        key_value_heads=config.key_value_heads,
        head_dim=mean_head or config.head_size,
        intermediate_size=config.intermediate_size,
        vocabulary_size=config.vocab_size,
        sliding_window=_sliding_window(config),
        experts=experts
        and Experts(count=experts.count, active=experts.active, intermediate_size=experts.intermediate_size),
        latent_attention=latent
        and LatentAttention(key_value_rank=latent.kv_lora_rank, rope_dim=latent.qk_rope_head_dim),
        linear_attention=LinearAttention(
            layers=len(files.linear_layers), state_bytes_per_sequence=len(files.linear_layers) * delta_net.state_bytes()
        )
        if delta_net and files.linear_layers
        else None,
        attention_sinks=files.family.attention_sinks,
    )


def _sliding_window(config: TransformerConfig) -> SlidingWindow | None:
    layers = len(config.windowed_layers)
    return SlidingWindow(tokens=config.sliding_window, layers=layers) if config.sliding_window and layers else None


def _key_value_cache(files: _ModelFiles) -> KeyValueCache:
    """Heads (key_dim + value_dim) of all layers in BF16, or rank + rope with latent attention; none of layers of linear
    attention, and of those that read an earlier layer's.
    """
    config, latent = files.config, files.latent
    layers = [i for i in range(config.num_hidden_layers - config.num_kv_shared_layers) if i not in files.linear_layers]
    if latent is not None:
        return KeyValueCache(bytes_per_token=len(layers) * (latent.kv_lora_rank + latent.qk_rope_head_dim) * _HALF)
    numbers = sum(heads.key_values * (heads.key_size + heads.value_size) for heads in map(config.heads, layers))
    return KeyValueCache(bytes_per_token=numbers * _HALF)


def _work(files: _ModelFiles, parts: list[_Part], head: int) -> ModelWork:
    """Matrices alone: norms and biases are less than a thousandth. The head is stored in BF16."""
    matrices = [part for part in parts if part.matrices]
    prefill = sum(part.used for part in matrices)
    dense = sum(files.part_bytes(part) for part in matrices if not part.routed)
    routed = sum(files.part_bytes(part) for part in matrices if part.routed)
    return ModelWork(
        prefill_parameters_billions=_three_digits(prefill / 1e9),
        decode_parameters_billions=_three_digits((prefill + head) / 1e9),
        dense_weight_gb=_three_digits((dense + _HALF * head) / 1e9),
        expert_weight_gb=_three_digits(routed / 1e9),
    )


def _weights(files: _ModelFiles, parts: list[_Part], embeddings: int) -> Weights:
    """Return the weights in a server's memory; layers that predict further tokens (`num_nextn_predict_layers`) are in
    the files alone.
    """
    config = files.config
    loaded = sum(files.part_bytes(part) for part in parts) + _HALF * (embeddings + config.hidden_size)
    last = sum(files.part_bytes(part) for part in files.parts(config.num_hidden_layers - 1))
    # A layer like the last one, the matrix that joins two tokens, and embeddings and a head of its own.
    further = last + _HALF * 2 * config.hidden_size * (config.hidden_size + config.vocab_size)
    predicting = config.num_nextn_predict_layers or 0
    stored = files.index.metadata.total_size if files.index else loaded + predicting * further
    if not predicting:
        loaded = stored
    return Weights(
        format=files.number_format.name,
        gib=round(loaded / BYTES_PER_GIB, 1),
        stored_gib=round(stored / BYTES_PER_GIB, 1) if predicting else None,
        block_size=files.number_format.block,
    )


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


# How the files are read, with all problems at once.

FileType = TypeVar("FileType", bound=_File)


def _read(config: Mapping[str, object], index: Mapping[str, object] | None) -> _ModelFiles:
    text, prefix = _text_model(config)
    family = families().get(str(text.get("model_type")), _UNKNOWN_FAMILY)
    problems = list(_unknown_layers(text, prefix))

    def read(type_: type[FileType], document: Mapping[str, object], prefix: str = prefix) -> FileType | None:
        try:
            return type_.model_validate(document)
        except ValidationError as error:
            problems.extend(_problems(error, prefix))
            return None

    general = read(TransformerConfig, text)
    experts = read(ExpertsConfig, text) if _has_experts(text) else None
    latent = read(LatentConfig, text) if family.attention == "latent" or text.get("kv_lora_rank") else None
    gated = family.attention == "gated-delta-net" or text.get("linear_num_key_heads")
    delta_net = read(DeltaNetConfig, text) if gated else None
    weights = read(Index, index, "model.safetensors.index.json: ") if index is not None else None
    quantized = read(StoredConfig, text)
    stored = _number_format(quantized and quantized.quantization_config)
    problems += _contradictions(general, experts) if general else []
    if general and isinstance(stored, NumberFormat) and not problems:
        return _ModelFiles(family, general, stored, experts, latent, delta_net, weights)
    problems += [stored] if isinstance(stored, Problem) else []
    raise InvalidStack(list({problem.path: problem for problem in problems}.values()), _VERDICT)


_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "attention")
_UNKNOWN_LAYERS = ("mamba_num_heads", "mamba_n_heads", "mamba_d_state", "ssm_state_size", "conv_L_cache", "lru_width")
_OUTER_KEYS = ("quantization_config", "tie_word_embeddings", "torch_dtype", "dtype")


def _text_model(config: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return the part of config.json about the text model, and its path."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config, ""
    inner = cast("Mapping[str, object]", text)
    outer = {name: config[name] for name in _OUTER_KEYS if config.get(name) is not None and name not in inner}
    return {**inner, **outer}, "text_config."


def _has_experts(text: Mapping[str, object]) -> bool:
    counts = [value for name in _EXPERT_COUNTS if isinstance(value := text.get(name), int)]
    return any(count > 1 for count in counts)


def _unknown_layers(text: Mapping[str, object], prefix: str) -> Iterator[Problem]:
    """Find layers of kinds whose parameters and states aren't known, such as those of state space models."""
    why = "layers of a kind that is not known: neither their parameters nor their states can be computed"
    for name in _UNKNOWN_LAYERS:
        if text.get(name):
            yield Problem(f"{prefix}{name}", text[name], "a model of attention alone, or with gated delta rules", why)
            return
    kinds = text.get("layer_types")
    for kind in dict.fromkeys(map(str, cast("list[object]", kinds))) if isinstance(kinds, list) else ():
        if kind not in _LAYER_KINDS:
            yield Problem(f"{prefix}layer_types", kind, ", ".join(_LAYER_KINDS), why)


def bounds(config: Mapping[str, object], index: Mapping[str, object] | None = None) -> list[str]:
    """Return in words what of a model's computed entry is assumed, and not known by its files."""
    text, _ = _text_model(config)
    told: list[str] = []
    if str(text.get("model_type")) not in families():
        told.append(
            f"no code of {text.get('model_type')} was looked at: three matrices in each dense layer, no sinks, no gates"
            " and no experts beside those that config.json names are assumed"
        )
    towers = [name for name in ("vision_config", "audio_config") if config.get(name)]
    if towers and index is None:
        told.append(f"weights and parameters are without those of {' and '.join(towers)}")
    elif towers:
        told.append(f"parameters are without those of {' and '.join(towers)}")
    return told


def _problems(error: ValidationError, prefix: str) -> Iterator[Problem]:
    for detail in error.errors():
        path = prefix + ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "missing":
            yield Problem(path, None, "a value", "it is missing")
        else:
            accepted = detail["msg"].removeprefix("Input should be ")
            yield Problem(path, detail["input"], accepted, "it is of another form")


def _contradictions(config: TransformerConfig, experts: ExpertsConfig | None) -> Iterator[Problem]:
    """Sizes that don't go together."""
    heads, shared = config.num_attention_heads, config.key_value_heads
    if heads % shared:
        yield Problem("num_key_value_heads", shared, f"a divisor of {heads}", f"there are {heads} attention heads")
    if config.head_dim is None and config.hidden_size % heads:
        why = f"the hidden size of {config.hidden_size} can't be divided by {heads} attention heads"
        yield Problem("head_dim", None, "the size of a head", why)
    lists = {"layer_types": config.layer_types, "hybrid_layer_pattern": config.hybrid_layer_pattern}
    if experts is not None and isinstance(experts.moe_layer_freq, tuple):
        lists["moe_layer_freq"] = experts.moe_layer_freq
    for name, kinds in lists.items():
        if kinds is not None and len(kinds) != config.num_hidden_layers:
            why = f"there are {config.num_hidden_layers} layers (num_hidden_layers)"
            yield Problem(name, len(kinds), f"{config.num_hidden_layers} kinds", why)
    if experts is not None and experts.active > experts.count:
        yield Problem("num_experts_per_tok", experts.active, f"at most {experts.count}", "a layer has no more experts")
    yield from _pattern_problems(config.quantization_config)
