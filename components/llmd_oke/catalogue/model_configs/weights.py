"""Parameters, weights and work of a model, layer by layer, by its files."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from llmd_oke.catalogue.model_configs.architectures import ArchitectureFamily
from llmd_oke.catalogue.model_configs.attention import (
    Attention,
    DeltaNetConfig,
    LatentConfig,
    Mamba2Config,
    MambaConfig,
    grouped_query_attention,
)
from llmd_oke.catalogue.model_configs.config_file import ExpertsConfig, TransformerConfig, WeightsIndex
from llmd_oke.catalogue.model_configs.quantization import HALF_BYTES, UNQUANTIZED, NumberFormat, is_unquantized
from llmd_oke.catalogue.models import BYTES_PER_GIB, ModelWork, Weights


@dataclass(frozen=True)
class Matrices:
    """Matrices of a layer, or vectors where `matrices` is false.

    `module` is their name in the weights, empty where they are never quantized; `used` are the parameters that one
    token passes through, `routed` says that it passes through those of some experts.
    """

    module: str
    parameters: int
    used: int
    routed: bool = False
    matrices: bool = True


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model that were read, each checked."""

    family: ArchitectureFamily
    config: TransformerConfig
    number_format: NumberFormat
    experts: ExpertsConfig | None
    latent: LatentConfig | None
    delta_net: DeltaNetConfig | None
    state_space: MambaConfig | Mamba2Config | None
    index: WeightsIndex | None

    @property
    def tied_embeddings(self) -> bool:
        """Tell whether the head is the embeddings."""
        said = self.config.tie_word_embeddings
        return self.family.tied_embeddings if said is None else said

    def attention(self, layer: int) -> tuple[Attention, ...]:
        """Return the attention of a layer and what it has in place of it or beside it; nothing of a layer that is a
        feed-forward part alone.
        """
        config, family = self.config, self.family
        if not config.has_attention(layer):
            return ()
        if self.delta_net is not None and layer in self.delta_net.layers(config):
            return (self.delta_net.attention(config.hidden_size),)
        states: tuple[Attention, ...] = ()
        if self.state_space is not None and layer in self.state_space_layers:
            states = (self.state_space.attention(config.hidden_size, float32_states=family.float32_states),)
        if states and not family.attention_beside_states:
            return states
        if self.latent is not None:
            return (self.latent.attention(config), *states)
        return (grouped_query_attention(config, layer, query_gate=family.query_gate), *states)

    @property
    def has_key_value_cache(self) -> bool:
        """Tell whether any layer has a KV cache."""
        layers = range(self.config.num_hidden_layers)
        return any(part.cached_numbers for layer in layers for part in self.attention(layer))

    @cached_property
    def state_space_layers(self) -> frozenset[int]:
        """The layers that have a state space."""
        space = self.state_space
        found = space.layers(self.config, in_all=self.family.attention_beside_states) if space else None
        return found or frozenset()

    def layer(self, layer: int) -> Iterator[Matrices]:
        """Yield the matrices of one layer."""
        name, hidden = f"model.layers.{layer}", self.config.hidden_size
        for attention in self.attention(layer):
            yield Matrices(f"{name}.{attention.module}.q_proj", attention.parameters, attention.parameters)
        yield Matrices("", (1 if self.config.has_single_parts else 2) * hidden, 0, matrices=False)  # norms
        is_dense, experts = self._feed_forward(layer)
        if is_dense:
            inner = self.config.dense_intermediate_size or self.config.intermediate_size
            dense = self._matrices_of_expert * hidden * inner
            yield Matrices(f"{name}.mlp.gate_proj", dense, dense)
        if experts is not None:
            yield from self._experts(f"{name}.mlp", experts)

    def _feed_forward(self, layer: int) -> tuple[bool, ExpertsConfig | None]:
        """Return whether a layer has a dense feed-forward part, and its experts."""
        experts, kind = self.experts, self.config.feed_forward_kind(layer)
        if self.config.has_single_parts:
            return kind == "mlp", experts if kind == "moe" else None
        if experts is None or not experts.in_layer(layer):
            return True, None
        return self.family.experts_beside_dense, experts

    @property
    def _matrices_of_expert(self) -> int:
        """Matrices of a feed-forward part: up and down, and a gate where it has one."""
        return 2 if self.family.plain_mlp else 3

    def _experts(self, name: str, experts: ExpertsConfig) -> Iterator[Matrices]:
        hidden, matrices = self.config.hidden_size, self._matrices_of_expert
        one = matrices * (experts.latent_size or hidden) * experts.intermediate_size
        shared = matrices * hidden * experts.shared_size(self.family)
        if experts.latent_size is not None:  # to the smaller size that experts work in, and back
            latent = 2 * hidden * experts.latent_size
            yield Matrices(f"{name}.fc1_latent_proj", latent, latent)
        yield Matrices(f"{name}.experts.0.gate_proj", experts.count * one, experts.active * one, routed=True)
        yield Matrices(f"{name}.shared_experts.gate_proj", shared, shared)
        yield Matrices("", experts.count * hidden, experts.count * hidden)  # the router
        if self.family.expert_biases:
            biases = 2 * experts.intermediate_size + hidden
            yield Matrices("", experts.count * biases, 0, routed=True, matrices=False)

    def stored_bytes(self, part: Matrices) -> float:
        """Return the bytes that matrices take in memory and files."""
        plain = not part.module or is_unquantized(part.module, self.config.quantization_config)
        return part.parameters * (UNQUANTIZED if plain else self.number_format).bits / 8

    @property
    def head_parameters(self) -> int:
        """Parameters of the head, or of the embeddings."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embeddings and head, which may be the same."""
        return self.head_parameters if self.tied_embeddings else 2 * self.head_parameters


def total_parameters(files: ModelFiles, parts: list[Matrices]) -> int:
    """Count all parameters of a model without further towers, the last norm among them."""
    return sum(part.parameters for part in parts) + files.config.hidden_size + files.embedding_parameters


def work_of_a_token(files: ModelFiles, parts: list[Matrices]) -> ModelWork:
    """Return the work of a token by matrices alone: norms and biases are less than a thousandth. The head is stored in
    BF16.
    """
    matrices, head = [part for part in parts if part.matrices], files.head_parameters
    prefill = sum(part.used for part in matrices)
    dense = sum(files.stored_bytes(part) for part in matrices if not part.routed)
    routed = sum(files.stored_bytes(part) for part in matrices if part.routed)
    return ModelWork(
        prefill_parameters_billions=_three_digits(prefill / 1e9),
        decode_parameters_billions=_three_digits((prefill + head) / 1e9),
        dense_weight_gb=_three_digits((dense + HALF_BYTES * head) / 1e9),
        expert_weight_gb=_three_digits(routed / 1e9),
    )


def weights_in_memory(files: ModelFiles, parts: list[Matrices]) -> Weights:
    """Return the weights in a server's memory; layers that predict further tokens (`num_nextn_predict_layers`) are in
    the files alone.
    """
    config = files.config
    loaded = sum(files.stored_bytes(part) for part in parts)
    loaded += HALF_BYTES * (files.embedding_parameters + config.hidden_size)
    last = sum(files.stored_bytes(part) for part in files.layer(config.num_hidden_layers - 1))
    # A layer like the last one, the matrix that joins two tokens, and embeddings and a head of its own.
    further = last + HALF_BYTES * 2 * config.hidden_size * (config.hidden_size + config.vocab_size)
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
