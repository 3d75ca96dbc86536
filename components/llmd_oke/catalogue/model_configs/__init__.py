"""Computation of a model's catalogue entry from its config.json and the index of its weights.

Facts that a config.json leaves to the model's code are in `values/architectures`; for an architecture without a row
there they are assumed, and `bounds` lists the assumptions.
"""

from collections.abc import Mapping

from llmd_oke.catalogue.model_configs.architectures import families
from llmd_oke.catalogue.model_configs.attention import Mamba2Config
from llmd_oke.catalogue.model_configs.quantization import HALF_BYTES
from llmd_oke.catalogue.model_configs.reading import bounds, read_model_files
from llmd_oke.catalogue.model_configs.weights import ModelFiles, rounded, weights_in_memory, work_of_a_token
from llmd_oke.catalogue.models import (
    Architecture,
    ComputedModel,
    Experts,
    KeyValueCache,
    LatentAttention,
    LinearAttention,
    Parameters,
    SlidingWindow,
)

__all__ = ["bounds", "compute_model", "families"]


def compute_model(config: Mapping[str, object], index: Mapping[str, object] | None = None) -> ComputedModel:
    """Return the part of a model's entry that follows from its config.json, and from `model.safetensors.index.json` if
    given.

    Raises:
        InvalidStack: the architecture or number format is unknown, or a key is missing or has a wrong type. Each
            problem has its path in the file.
    """
    files = read_model_files(config, index)
    parts = [part for layer in range(files.config.num_hidden_layers) for part in files.layer(layer)]
    work = work_of_a_token(files, parts)
    total = sum(part.parameters for part in parts) + files.config.hidden_size + files.embedding_parameters
    # the last layers may read the KV cache of earlier ones
    caching = range(files.config.num_hidden_layers - files.config.num_kv_shared_layers)
    cached_numbers = sum(part.cached_numbers for layer in caching for part in files.attention(layer))
    active = work.decode_parameters_billions if files.experts else total / 1e9
    return ComputedModel(
        architecture=_architecture(files),
        parameters=Parameters(total_billions=rounded(total / 1e9, 2), active_billions=rounded(active, 2)),
        weights=weights_in_memory(files, parts),
        work=work,
        kv_cache=KeyValueCache(bytes_per_token=HALF_BYTES * cached_numbers),
        max_model_len=files.config.max_position_embeddings,
    )


def _architecture(files: ModelFiles) -> Architecture:
    config, experts, latent = files.config, files.experts, files.latent
    windowed = len(config.windowed_layers)
    mean_head = (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim) // 2 if latent else 0
    return Architecture(
        family=config.model_type,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        attention_heads=config.num_attention_heads,
        key_value_heads=config.key_value_head_count,
        head_dim=mean_head or config.query_head_size,
        intermediate_size=config.intermediate_size,
        vocabulary_size=config.vocab_size,
        sliding_window=SlidingWindow(tokens=config.sliding_window, layers=windowed)
        if config.sliding_window and windowed
        else None,
        experts=experts
        and Experts(count=experts.count, active=experts.active, intermediate_size=experts.intermediate_size),
        latent_attention=latent
        and LatentAttention(key_value_rank=latent.kv_lora_rank, rope_dim=latent.qk_rope_head_dim),
        linear_attention=_linear_attention(files),
        attention_sinks=files.family.attention_sinks,
    )


def _linear_attention(files: ModelFiles) -> LinearAttention | None:
    layers = range(files.config.num_hidden_layers)
    states = [part.state_bytes for i in layers for part in files.attention(i) if part.state_bytes]
    if not states:
        return None
    caching = sum(any(part.cached_numbers for part in files.attention(i)) for i in layers)
    return LinearAttention(
        layers=len(states),
        state_bytes_per_sequence=sum(states),
        attention_layers=None if caching == len(layers) - len(states) else caching,
        groups=files.state_space.groups if isinstance(files.state_space, Mamba2Config) else None,
    )
