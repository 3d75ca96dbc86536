"""Works out the KV cache and states of models by vLLM's own specs: `kv_cache_specs.py < configs.json`.

It runs in vLLM's environment. Each entry of input is a config.json by a name; the answer has for each name the bytes of
a token over all layers that have a KV cache, in BF16, and those of a sequence over all layers that keep a state. Of
layers that differ vLLM's configuration tells one kind.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.model_executor.models import ModelRegistry
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec

ATTENTION = ("attention", "full_attention", "hybrid")
STATE = ("mamba", "linear_attention", "hybrid")


def layers(model: ModelConfig, kinds: tuple[str, ...]) -> int:
    """Return how many layers of a hybrid model are of some kinds, by transformers' list of them."""
    config = model.hf_text_config
    listed = getattr(config, "layers_block_type", None) or config.layer_types
    return sum(kind in kinds for kind in listed)


def bytes_per_token(model: ModelConfig) -> int:
    """Return the bytes of a token's KV cache over all layers that have one."""
    spec = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    heads = 1 if model.use_mla else model.get_total_num_kv_heads()
    page = spec(block_size=1, num_kv_heads=heads, head_size=model.get_head_size(), dtype=torch.bfloat16)
    if model.is_hybrid:
        return page.page_size_bytes * layers(model, ATTENTION)
    return page.page_size_bytes * model.get_num_layers_by_block_type(ParallelConfig(), "attention")


def state_bytes(model: ModelConfig) -> int:
    """Return the bytes of a sequence's state over all layers that keep one."""
    if not model.is_hybrid:
        return 0
    # vLLM keeps states in 32 bits on processors with these instructions (vllm/platforms/cpu.py), not so on GPUs.
    torch.cpu._is_avx512_bf16_supported = lambda: False
    vllm_config = VllmConfig(model_config=model, cache_config=CacheConfig(enable_prefix_caching=False))
    of_model, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
    shapes = of_model.get_mamba_state_shape_from_config(vllm_config)
    types = of_model.get_mamba_state_dtype_from_config(vllm_config)
    return MambaSpec(block_size=1, shapes=shapes, dtypes=types).page_size_bytes * layers(model, STATE)


def specs(config: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of a token and of a sequence."""
    with tempfile.TemporaryDirectory() as folder:
        plain = {key: value for key, value in config.items() if key not in {"quantization_config", "auto_map"}}
        (Path(folder) / "config.json").write_text(json.dumps(plain))
        model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16")
        return {"token": bytes_per_token(model), "sequence": state_bytes(model)}


def main() -> None:
    """Answer with the bytes of each model."""
    print(json.dumps({name: specs(config) for name, config in json.load(sys.stdin).items()}))


if __name__ == "__main__":
    main()
