"""Keys of a model's config.json, and of the index of its weights, that the kit reads."""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from llmd_oke.catalogue.model_configs.architectures import ArchitectureFamily

NumberType = Literal["bfloat16", "float16", "float32"]
Size = Annotated[int, Field(strict=True, gt=0, le=10**9)]
Layers = Annotated[int, Field(strict=True, gt=0, le=4096)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**6)]

_STATE_KINDS = frozenset({"linear_attention", "mamba"})
_FEED_FORWARD_KINDS = frozenset({"mlp", "moe"})
_ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})

LAYER_KINDS = (*sorted(_ATTENTION_KINDS), *sorted(_STATE_KINDS), *sorted(_FEED_FORWARD_KINDS))
"""Kinds of layers whose parameters, KV caches and states can be computed."""

EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Keys of config.json that have the number of experts in a layer, which differ between architectures."""


class ModelFileKeys(BaseModel):
    """Base class of records of a model's JSON files; unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class QuantizedWeights(ModelFileKeys):
    """Number format of the weights of one group in `quantization_config` of compressed-tensors."""

    num_bits: Literal[4, 8]
    type: Literal["float", "int"]
    group_size: Annotated[int, Field(strict=True)] | None = None


class QuantizedGroup(ModelFileKeys):
    """One group of modules in `quantization_config` of compressed-tensors."""

    weights: QuantizedWeights


class QuantizationConfig(ModelFileKeys):
    """Quantization in config.json.

    Attributes:
        quant_method: method of quantization.
        quant_algo: ModelOpt's name of the number format.
        weight_block_size: sizes of the blocks that share a scale.
        config_groups: groups of modules by name, with the number format of each.
        unquantized: names or patterns of modules that keep two bytes per weight.
    """

    quant_method: str
    quant_algo: str | None = None
    weight_block_size: tuple[Size, Size] | None = None
    config_groups: dict[str, QuantizedGroup] = Field(default_factory=dict[str, QuantizedGroup])
    unquantized: tuple[str, ...] | None = Field(
        default=None, validation_alias=AliasChoices("modules_to_not_convert", "ignore", "ignored_layers")
    )


class StoredConfig(ModelFileKeys):
    """Keys of config.json that describe the format of the stored weights."""

    quantization_config: QuantizationConfig | None = None


class TransformerConfig(StoredConfig):
    """Keys of config.json that all architectures have, and those about sliding windows and different kinds of
    layers.
    """

    model_type: str
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    intermediate_size: Size = Field(validation_alias=AliasChoices("intermediate_size", "moe_intermediate_size"))
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = Field(default=None, validation_alias=AliasChoices("head_dim", "attention_head_dim"))
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
    dense_intermediate_size: Size | None = Field(
        default=None, validation_alias=AliasChoices("intermediate_size_mlp", "shared_intermediate_size")
    )
    dtype: Literal["bfloat16", "float16"] = Field(
        default="bfloat16", validation_alias=AliasChoices("torch_dtype", "dtype")
    )

    @property
    def query_head_size(self) -> int:
        """Size of a query head: `head_dim`, or the hidden size divided by the number of heads."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_head_count(self) -> int:
        """Number of key-value heads in a layer: `num_key_value_heads`, or the number of attention heads if the file
        lacks the key.
        """
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def has_single_parts(self) -> bool:
        """True if each layer is either attention (or a state space) or a feed-forward part, and not both."""
        return self.layer_types is not None and not _FEED_FORWARD_KINDS.isdisjoint(self.layer_types)

    def feed_forward_kind(self, layer: int) -> str | None:
        """Return `mlp` or `moe` for a layer that is a feed-forward part only; None for other layers."""
        kind = None if self.layer_types is None else self.layer_types[layer]
        return kind if kind in _FEED_FORWARD_KINDS else None

    @cached_property
    def layers_with_state(self) -> frozenset[int]:
        """Indices of the layers that, by `layer_types`, keep a state per sequence instead of a KV cache."""
        kinds = enumerate(self.layer_types or ())
        return frozenset(i for i, kind in kinds if kind in _STATE_KINDS)

    @cached_property
    def windowed_layers(self) -> frozenset[int]:
        """Indices of the layers with a sliding window. By the keys that config.json has, these are listed layers, all
        layers but every nth, or the layers from `max_window_layers` on.
        """
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


class ExpertsConfig(ModelFileKeys):
    """Sizes of a mixture of experts, whose keys in config.json differ between architectures."""

    count: Size = Field(validation_alias=AliasChoices(*EXPERT_COUNTS))
    active: Size = Field(validation_alias=AliasChoices("num_experts_per_tok", "experts_per_token", "top_k_experts"))
    intermediate_size: Size = Field(validation_alias=AliasChoices("moe_intermediate_size", "intermediate_size"))
    shared_intermediate_size: Count = Field(
        default=0,
        validation_alias=AliasChoices(
            "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"
        ),
    )
    latent_size: Size | None = Field(default=None, validation_alias="moe_latent_size")
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    decoder_sparse_step: Size = Field(
        default=1, validation_alias=AliasChoices("decoder_sparse_step", "interleave_moe_layer_step")
    )
    moe_layer_freq: Size | tuple[Count, ...] = 1
    mlp_only_layers: tuple[Count, ...] = ()
    expert_layer_period: Size | None = None
    expert_layer_offset: Count = 0

    def shared_size(self, family: ArchitectureFamily) -> int:
        """Return the inner size of all shared experts together, which every token passes through."""
        shared = self.n_shared_experts or family.shared_experts
        return self.shared_intermediate_size or shared * self.intermediate_size

    def in_layer(self, layer: int) -> bool:
        """Tell whether a layer has experts instead of one dense part."""
        if self.expert_layer_period is not None:
            return layer % self.expert_layer_period == self.expert_layer_offset
        if isinstance(self.moe_layer_freq, tuple):
            return bool(self.moe_layer_freq[layer])
        sparse = (layer + 1) % self.decoder_sparse_step == 0 and layer not in self.mlp_only_layers
        return sparse and layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0


class _IndexMetadata(ModelFileKeys):
    total_size: Annotated[int, Field(gt=0, le=2**50)]


class WeightsIndex(ModelFileKeys):
    """Index of the weights (`model.safetensors.index.json`), of which only the total size in bytes is read."""

    metadata: _IndexMetadata
