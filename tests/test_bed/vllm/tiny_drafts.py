"""Drafts of tiny models with random weights: one with files of its own, and a layer of the model's own files."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from tiny_adapters import weights

WEIGHTS = "model.safetensors"
_SEED, _SCALE = 7, 0.1


def eagle3_draft(model: Path, folder: Path) -> Path:
    """Write a draft for a tiny llama, by EAGLE-3: one layer that reads the hidden states of three of the model's."""
    config = json.loads((model / "config.json").read_text())
    layers = [0, 1, 2]
    eagle = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers}
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "eagle_config": eagle}
    folder.mkdir(parents=True)
    draft = {**config, **own, "draft_vocab_size": config["vocab_size"]}
    (folder / "config.json").write_text(json.dumps(draft))
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(layers) * hidden),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    weights(folder / WEIGHTS, shapes, _SCALE, _SEED)
    return folder


def with_predicting_layer(model: Path, folder: Path) -> Path:
    """Copy a tiny GLM with one layer more behind its own, like the last of them, which predicts a further token."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    place, after = f"model.layers.{last}.", f"model.layers.{last + 1}."
    head, tensors = _tensors(folder / WEIGHTS)
    copies = {name.replace(place, after): facts for name, facts in head.items() if name.startswith(place)}
    shared = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
    copies |= {after + name: head[origin] for name, origin in shared.items()}
    further: dict[str, tuple[int, ...]] = {
        f"{after}eh_proj.weight": (hidden, 2 * hidden),
        f"{after}enorm.weight": (hidden,),
        f"{after}hnorm.weight": (hidden,),
        f"{after}shared_head.norm.weight": (hidden,),
    }
    path = folder / "predicting.safetensors"
    weights(path, further, _SCALE, _SEED)
    own, own_tensors = _tensors(path)
    path.unlink()
    _write(folder / WEIGHTS, [(head, tensors), (copies, tensors), (own, own_tensors)])
    return folder


def _tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read the header of a file in the format of safetensors, and the numbers behind it."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    return {name: facts for name, facts in header.items() if name != "__metadata__"}, content[8 + length :]


def _write(path: Path, parts: list[tuple[dict[str, Any], bytes]]) -> None:
    """Write tensors of several files as one."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for head, tensors in parts:
        for name, facts in head.items():
            begin, end = facts["data_offsets"]
            header[name] = {**facts, "data_offsets": [len(content), len(content) + end - begin]}
            content += tensors[begin:end]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
