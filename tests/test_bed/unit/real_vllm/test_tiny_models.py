"""Tiny models in place of those of the catalogue: their families, windows and KV caches."""

import pytest
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.catalogue import CatalogueModel
from llmd_rehearsal.real_vllm.differences import real_vllm_data
from llmd_rehearsal.real_vllm.tiny_models import tiny_model

VERSION = "0.30.0"


def known(name: str) -> CatalogueModel:
    model = catalogue.model(name)
    assert model is not None
    return model


def test_every_model_of_the_kit_has_a_tiny_version_or_a_reason_why_not() -> None:
    data, families = real_vllm_data(), {known(name).architecture.family for name in catalogue.model_names()}
    for version in data.versions.values():
        assert families <= {*data.families, *version.refused}


def test_a_tiny_model_has_the_original_models_share_of_sliding_window_layers() -> None:
    tiny = tiny_model(known("gpt-oss-120b"), VERSION)
    assert tiny.layers_by_window == (1, 1)
    assert tiny.window_tokens == 128
    assert tiny.config()["sliding_window"] == 128


def test_a_tiny_models_kv_cache_has_room_for_a_sequence_of_full_length() -> None:
    tiny = tiny_model(known("qwen3-32b"), VERSION)
    assert tiny.layer_bytes_per_token == 2 * 8 * 32 * 4
    assert tiny.kv_cache_bytes >= 2 * tiny.layer_bytes_per_token * tiny.context_tokens


def test_a_model_of_a_family_without_a_tiny_version_is_refused() -> None:
    model = known("qwen3-32b")
    of_none = model.model_copy(update={"architecture": model.architecture.model_copy(update={"family": None})})
    with pytest.raises(KitError, match="no tiny model of the family"):
        tiny_model(of_none, VERSION)


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2-instruct"])
def test_models_with_latent_attention_are_refused_for_vllm_0_26_in_vllms_words(name: str) -> None:
    with pytest.raises(KitError, match="no multi-head latent attention on processors"):
        tiny_model(known(name), "0.26.0")


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2-instruct", "kimi-k2.5"])
def test_models_with_latent_attention_have_a_tiny_version_for_vllm_030(name: str) -> None:
    tiny = tiny_model(known(name), VERSION)
    assert tiny.latent
    assert tiny.layer_bytes_per_token == (512 + 64) * 4
    positions = tiny.config()["rope_parameters"]
    assert positions["factor"] * positions["original_max_position_embeddings"] >= tiny.context_tokens
    (blocks, backend) = real_vllm_data().families[tiny.family].differences
    assert (blocks.value, backend.value) == (f"--block-size={tiny.block_size}", "--attention-backend=CPU_MLA")
