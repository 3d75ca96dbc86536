"""Parameters, weights and work per token of a model, computed layer by layer from its files."""

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
    """Weight matrices of one part of a layer, or vectors if `matrices` is false.

    Attributes:
        module: name of the module in the weights; empty for matrices that are never quantized.
        parameters: number of parameters.
        used: number of parameters that one token passes through.
        routed: whether a token passes only through the parameters of some experts.
        matrices: whether the parameters are matrices, which count as work.
    """

    module: str
    parameters: int
    used: int
    routed: bool = False
    matrices: bool = True


@dataclass(frozen=True)
class ModelFiles:
    """Validated contents of a model's files, from which sizes and work per token are computed."""

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
        """True if the output head shares the weights of the embeddings."""
        said = self.config.tie_word_embeddings
        return self.family.tied_embeddings if said is None else said

    def attention(self, layer: int) -> tuple[Attention, ...]:
        """Return the attention of a layer, and its linear attention or state space; empty for a layer that only has a
        feed-forward part.
        """
        config, family = self.config, self.family
        if config.feed_forward_kind(layer) is not None:
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

    @cached_property
    def state_space_layers(self) -> frozenset[int]:
        """Indices of the layers with a state space."""
        space = self.state_space
        found = space.layers(self.config, in_all=self.family.attention_beside_states) if space else None
        return found or frozenset()

    def layer(self, layer: int) -> Iterator[Matrices]:
        """Yield the weight matrices of one layer."""
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
        """Return whether a layer has a dense feed-forward part, and its experts (None if it has none)."""
        experts, kind = self.experts, self.config.feed_forward_kind(layer)
        if self.config.has_single_parts:
            return kind == "mlp", experts if kind == "moe" else None
        if experts is None or not experts.in_layer(layer):
            return True, None
        return self.family.experts_beside_dense, experts

    @property
    def _matrices_of_expert(self) -> int:
        """Number of matrices of a feed-forward part: up, down, and, if the architecture has one, a gate."""
        return 2 if self.family.plain_mlp else 3

    def _experts(self, name: str, experts: ExpertsConfig) -> Iterator[Matrices]:
        hidden, matrices = self.config.hidden_size, self._matrices_of_expert
        one = matrices * (experts.latent_size or hidden) * experts.intermediate_size
        shared = matrices * hidden * experts.shared_size(self.family)
        if experts.latent_size is not None:  # projections to the experts' smaller size and back
            latent = 2 * hidden * experts.latent_size
            yield Matrices(f"{name}.fc1_latent_proj", latent, latent)
        yield Matrices(f"{name}.experts.0.gate_proj", experts.count * one, experts.active * one, routed=True)
        yield Matrices(f"{name}.shared_experts.gate_proj", shared, shared)
        yield Matrices("", experts.count * hidden, experts.count * hidden)  # the router
        if self.family.expert_biases:
            biases = 2 * experts.intermediate_size + hidden
            yield Matrices("", experts.count * biases, 0, routed=True, matrices=False)

    def stored_bytes(self, part: Matrices) -> float:
        """Return the size in bytes of weight matrices, which is equal in memory and in files."""
        plain = not part.module or is_unquantized(part.module, self.config.quantization_config)
        return part.parameters * (UNQUANTIZED if plain else self.number_format).bits / 8

    @property
    def head_parameters(self) -> int:
        """Number of parameters of the output head, equal to that of the embeddings."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of embeddings and output head together, which may share their weights."""
        return self.head_parameters if self.tied_embeddings else 2 * self.head_parameters


def work_of_a_token(files: ModelFiles, parts: list[Matrices]) -> ModelWork:
    """Return the work per token by the weight matrices in `parts` and the output head, which is stored in BF16. Norms
    and biases are left out: they are less than a thousandth.
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
    """Return the size of the weights in a server's memory. Layers that predict further tokens
    (`num_nextn_predict_layers`) count only in the size of the files.
    """
    config = files.config
    loaded = sum(files.stored_bytes(part) for part in parts)
    loaded += HALF_BYTES * (files.embedding_parameters + config.hidden_size)
    last = sum(files.stored_bytes(part) for part in files.layer(config.num_hidden_layers - 1))
    # Each such layer has the parts of the last layer, a matrix that joins two tokens, embeddings and a head.
    further = last + HALF_BYTES * 2 * config.hidden_size * (config.hidden_size + config.vocab_size)
    predicting = config.num_nextn_predict_layers or 0
    stored = files.index.metadata.total_size if files.index else loaded + predicting * further
    if not predicting:
        loaded = stored
    return Weights(
        format=files.number_format.name,
        gib=rounded(loaded / BYTES_PER_GIB, 1),
        stored_gib=rounded(stored / BYTES_PER_GIB, 1) if predicting else None,
        block_size=files.number_format.block,
    )


def rounded(value: float, digits: int) -> float:
    """Return a size rounded to `digits` decimals, or to three significant digits if that would make it 0."""
    return round(value, digits) or _three_digits(value)


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
