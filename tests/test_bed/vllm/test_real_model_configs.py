"""Entries that are computed from config.json, held to transformers' own classes and vLLM's KV-cache specs."""

import json
from typing import Any

import pytest
from llmd_oke.catalogue.model_configs import compute_model, families
from model_configs import FOLDER
from real_vllm_for_tests import answered

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

VERSION = "0.30.0"
Config = dict[str, Any]

DEFAULTS = (
    "cohere",
    "gemma",
    "gemma2",
    "gemma3_text",
    "falcon_h1",
    "glm4",
    "granite",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3_5_text",
    "starcoder2",
)
"""Families of which no published file is here: the configuration that their class has by itself."""

CHANGED_DEFAULTS: dict[str, Config] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "granitemoehybrid": {"layer_types": [*["linear_attention"] * 5, "full_attention", *["linear_attention"] * 26]},
    "qwen2_moe": {"use_sliding_window": False},
}
"""Likewise, with what the class leaves out."""

OTHER_CLASSES = {
    "kimi_k2": {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]},
    "mimo": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
}
"""Families whose code lies in their repositories, and the one whose classes it has."""

STATE_SPACES = {"falcon_h1": "FalconH1ForCausalLM", "granitemoehybrid": "GraniteMoeHybridForCausalLM"}
"""Families with state spaces of which no published file is here, and the class of vLLM by which states are compared."""

HEADS_DIFFER = {"mimo-v2-flash"}
"""Models of whose layers vLLM's configuration tells the heads of one kind."""


def published() -> dict[str, Config]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def of_known_classes(configs: dict[str, Config]) -> dict[str, Config]:
    return {name: {**config, **OTHER_CLASSES.get(config["model_type"], {})} for name, config in configs.items()}


@pytest.fixture(scope="module")
def counted() -> Config:
    """The configuration and parameters of each model by transformers' own class."""
    given = {name: {"model_type": name, **changes} for name, changes in CHANGED_DEFAULTS.items()}
    asked = {**of_known_classes(published()), **dict.fromkeys(DEFAULTS), **given}
    return answered("count_parameters.py", asked, VERSION)


def test_the_computed_numbers_of_parameters_equal_those_of_vllms_model_classes(counted: Config):
    files = published()
    assert len(counted) >= 15
    for name, entry in counted.items():
        config = files.get(name) or {**entry["config"], **CHANGED_DEFAULTS.get(name, {})}
        computed = compute_model(config).parameters.total_billions
        assert computed == pytest.approx(entry["parameters"] / 1e9, rel=0.002, abs=0.006), name


def test_every_supported_model_family_is_compared_with_vllm():
    texts = [config.get("text_config", config) for config in published().values()]
    asked = {*DEFAULTS, *CHANGED_DEFAULTS, *(text["model_type"] for text in texts)}
    assert set(families()) <= asked


def test_the_computed_kv_cache_bytes_of_tokens_and_sequences_equal_vllms(counted: Config):
    files = {  # those with images are read with torchvision, which vLLM's environment here is without
        name: config for name, config in published().items() if name not in HEADS_DIFFER and "text_config" not in config
    }
    of_classes = {name: counted[name]["config"] | {"architectures": [kind]} for name, kind in STATE_SPACES.items()}
    found = answered("kv_cache_specs.py", {**of_known_classes(files), **of_classes}, VERSION)
    assert found == {name: computed_bytes(config) for name, config in {**files, **of_classes}.items()}


def computed_bytes(config: Config) -> dict[str, int]:
    computed = compute_model(config)
    linear = computed.architecture.linear_attention
    state = linear.state_bytes_per_sequence if linear else 0
    return {"token": computed.kv_cache.bytes_per_token, "sequence": state}
