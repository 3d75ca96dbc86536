"""Kinds of attention: a layer's parameters, KV cache per token and state per sequence."""

from dataclasses import dataclass
from typing import Literal

from pydantic import AliasChoices, Field

from llmd_oke.catalogue.model_configs.config_file import Count, ModelFileKeys, NumberType, Size, TransformerConfig
from llmd_oke.catalogue.model_configs.quantization import HALF_BYTES


@dataclass(frozen=True)
class Attention:
    """Sizes of one layer's attention, linear attention or state space.

    Attributes:
        module: name of the module in the weights.
        parameters: number of parameters of its matrices.
        cached_numbers: numbers per token in the KV cache.
        state_bytes: bytes per sequence, whatever the sequence's length.
    """

    module: str
    parameters: int
    cached_numbers: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class Heads:
    """Attention heads of a layer: numbers of query heads and of key-value heads, and the sizes of a key and a value."""

    queries: int
    key_values: int
    key_size: int
    value_size: int


def heads_of_layer(config: TransformerConfig, layer: int) -> Heads:
    """Return the attention heads of a layer, which may differ between layers with and without sliding window."""
    windowed = layer in config.windowed_layers
    if windowed and config.swa_head_dim is not None:
        return Heads(
            config.swa_num_attention_heads or config.num_attention_heads,
            config.swa_num_key_value_heads or config.key_value_head_count,
            config.swa_head_dim,
            config.swa_v_head_dim or config.swa_head_dim,
        )
    if not windowed and config.global_head_dim is not None:
        shared = config.num_global_key_value_heads or config.key_value_head_count
        return Heads(config.num_attention_heads, shared, config.global_head_dim, config.global_head_dim)
    value_size = config.v_head_dim or config.query_head_size
    return Heads(config.num_attention_heads, config.key_value_head_count, config.query_head_size, value_size)


def grouped_query_attention(config: TransformerConfig, layer: int, *, query_gate: bool) -> Attention:
    """Return a layer's grouped-query attention.

    The number of parameters is hidden (queries + keys + values) + heads value_size hidden, plus a gate of the queries'
    size if `query_gate`.
    """
    heads = heads_of_layer(config, layer)
    queries, keys = heads.queries * heads.key_size, heads.key_values * heads.key_size
    keys_are_values = config.attention_k_eq_v and layer not in config.windowed_layers
    values = 0 if keys_are_values else heads.key_values * heads.value_size
    gate = queries if query_gate else 0
    return Attention(
        module="self_attn",
        parameters=config.hidden_size * (queries + gate + keys + values + heads.queries * heads.value_size),
        cached_numbers=heads.key_values * (heads.key_size + heads.value_size),
    )


class LatentConfig(ModelFileKeys):
    """Sizes of multi-head latent attention (MLA), as config.json has them."""

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Size | None = None

    def attention(self, config: TransformerConfig) -> Attention:
        """Return the attention of each layer, whose KV cache has the latent vector and the rotated part of the keys
        once for all heads.

        The number of parameters is h q_rank + q_rank heads (nope + rope) + h (rank + rope) + rank heads (nope + v) +
        heads v h, where h is the hidden size.
        """
        hidden, heads = config.hidden_size, config.num_attention_heads
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        queries = self.q_lora_rank * (hidden + query) if self.q_lora_rank else hidden * query
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        expanded = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        parameters = queries + hidden * latent + expanded + heads * self.v_head_dim * hidden
        return Attention("self_attn", parameters, cached_numbers=latent)


class DeltaNetConfig(ModelFileKeys):
    """Sizes of linear attention by a gated delta rule, as config.json has them."""

    linear_num_key_heads: Size
    linear_key_head_dim: Size
    linear_num_value_heads: Size
    linear_value_head_dim: Size
    linear_conv_kernel_dim: Size
    full_attention_interval: Size | None = None
    mamba_ssm_dtype: NumberType | None = None

    def attention(self, hidden: int) -> Attention:
        """Return the linear attention of a layer.

        The number of parameters is hidden (2 key + 2 value + 2 value_heads) + kernel (2 key + value) + value hidden;
        the state has (kernel - 1) (2 key + value) numbers in BF16, and value_heads key_dim value_dim numbers in the
        state's number format, where key and value are sizes over all heads.
        """
        key = self.linear_num_key_heads * self.linear_key_head_dim
        value = self.linear_num_value_heads * self.linear_value_head_dim
        convolved = 2 * key + value
        projected = hidden * (convolved + value + 2 * self.linear_num_value_heads)
        return Attention(
            module="linear_attn",
            parameters=projected + self.linear_conv_kernel_dim * convolved + value * hidden,
            state_bytes=(self.linear_conv_kernel_dim - 1) * convolved * HALF_BYTES
            + value * self.linear_key_head_dim * _number_bytes(self.mamba_ssm_dtype),
        )

    def layers(self, config: TransformerConfig) -> frozenset[int]:
        """Return the indices of the layers with linear attention."""
        if config.layer_types is not None:
            return config.layers_with_state
        every = self.full_attention_interval or 1
        return frozenset(i for i in range(config.num_hidden_layers) if (i + 1) % every)


class StateSpaceConfig(ModelFileKeys):
    """Sizes of state space layers, as config.json has them, and the indices of these layers."""

    kernel: Size = Field(default=4, validation_alias=AliasChoices("conv_kernel", "mamba_d_conv"))
    expand: Size = Field(default=2, validation_alias=AliasChoices("expand", "mamba_expand"))
    state_size: Size = Field(validation_alias=AliasChoices("ssm_state_size", "mamba_d_state"))
    state_type: NumberType | None = Field(default=None, validation_alias="mamba_ssm_cache_dtype")
    attn_layer_indices: tuple[Count, ...] | None = None
    attn_layer_period: Size | None = None
    attn_layer_offset: Count = 0

    def layers(self, config: TransformerConfig, *, in_all: bool) -> frozenset[int] | None:
        """Return the indices of the layers with a state space; all layers if `in_all`, None if config.json doesn't list
        them.
        """
        layers = range(config.num_hidden_layers)
        if in_all:
            return frozenset(layers)
        if config.layer_types is not None:
            return config.layers_with_state
        if self.attn_layer_indices is not None:
            return frozenset(layers) - frozenset(self.attn_layer_indices)
        if self.attn_layer_period is not None:
            return frozenset(i for i in layers if i % self.attn_layer_period != self.attn_layer_offset)
        return None


class MambaConfig(StateSpaceConfig):
    """Sizes of state spaces without heads (Mamba), as config.json has them."""

    step_rank: Size | Literal["auto"] = Field(default="auto", validation_alias="mamba_dt_rank")

    def attention(self, hidden: int, *, float32_states: bool) -> Attention:
        """Return the state space of a layer.

        With inner = expand hidden, the number of parameters is 2 hidden inner + inner (kernel + step_rank + 2 state) +
        step_rank inner + inner state + inner hidden; the state has (kernel - 1) inner numbers in BF16, and inner state
        numbers in the state's number format.
        """
        inner = self.expand * hidden
        rank = -(-hidden // 16) if self.step_rank == "auto" else self.step_rank
        return Attention(
            module="mamba",
            parameters=inner * (3 * hidden + self.kernel + 2 * rank + 3 * self.state_size),
            state_bytes=(self.kernel - 1) * inner * HALF_BYTES
            + inner * self.state_size * _number_bytes(self.state_type, float32=float32_states),
        )


class Mamba2Config(StateSpaceConfig):
    """Sizes of state spaces with heads (Mamba 2), as config.json has them."""

    heads: Size = Field(validation_alias=AliasChoices("mamba_num_heads", "mamba_n_heads"))
    head_size: Size | Literal["auto"] = Field(
        default="auto", validation_alias=AliasChoices("mamba_head_dim", "mamba_d_head")
    )
    groups: Size = Field(default=1, validation_alias=AliasChoices("n_groups", "mamba_n_groups"))
    inner_size: Size | None = Field(default=None, validation_alias="mamba_d_ssm")

    def attention(self, hidden: int, *, float32_states: bool) -> Attention:
        """Return the state space of a layer.

        With inner = heads head_size and convolved = inner + 2 groups state, the number of parameters is hidden (inner +
        convolved + heads) + kernel convolved + inner hidden; the state has (kernel - 1) convolved numbers in BF16, and
        inner state numbers in the state's number format.
        """
        alike = self.inner_size or self.expand * hidden
        inner = alike if self.head_size == "auto" else self.heads * self.head_size
        convolved = inner + 2 * self.groups * self.state_size
        return Attention(
            module="mamba",
            parameters=hidden * (inner + convolved + self.heads) + self.kernel * convolved + inner * hidden,
            state_bytes=(self.kernel - 1) * convolved * HALF_BYTES
            + inner * self.state_size * _number_bytes(self.state_type, float32=float32_states),
        )


def _number_bytes(type_: NumberType | None, *, float32: bool = False) -> int:
    """Return the bytes of one number of a type; if the type is None, 4 if `float32`, else 2."""
    return 4 if type_ == "float32" or (type_ is None and float32) else HALF_BYTES
