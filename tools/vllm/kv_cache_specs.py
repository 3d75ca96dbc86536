"""Works out the KV cache of models by vLLM's own configuration and specs: `kv_cache_specs.py < configs.json`.

It runs in vLLM's environment. Each entry of input is a config.json by a name; the answer has for each name the bytes of
a token over all layers that have a KV cache, in BF16. Of layers that differ vLLM's configuration tells one kind.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.config import ModelConfig, ParallelConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec


def bytes_per_token(config: dict[str, Any]) -> int:
    """Return the bytes of a token's KV cache over all layers that have one."""
    with tempfile.TemporaryDirectory() as folder:
        plain = {key: value for key, value in config.items() if key not in {"quantization_config", "auto_map"}}
        (Path(folder) / "config.json").write_text(json.dumps(plain))
        model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16")
    spec = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    heads = 1 if model.use_mla else model.get_total_num_kv_heads()
    page = spec(block_size=1, num_kv_heads=heads, head_size=model.get_head_size(), dtype=torch.bfloat16)
    return page.page_size_bytes * model.get_num_layers_by_block_type(ParallelConfig(), "attention")


def main() -> None:
    """Answer with the bytes of each model."""
    print(json.dumps({name: bytes_per_token(config) for name, config in json.load(sys.stdin).items()}))


if __name__ == "__main__":
    main()
