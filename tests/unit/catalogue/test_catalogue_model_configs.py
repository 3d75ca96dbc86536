from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import catalogue
from llmd_oke.catalogue.model_configs import bounds, compute_model
from llmd_oke.catalogue.models import ComputedModel, LinearAttention, SlidingWindow
from model_configs import FOLDER, config_of
from stack_files import known_model

SHORTER = {"llama-4-scout-17b-16e-instruct": 2**20}
"""Models whose entries have fewer tokens for a sequence than their files, as no node has room for so many."""

FLOAT4 = {"num_bits": 4, "type": "float"}
FP8 = {"quant_method": "fp8"}
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
KINDS = ("bfloat16", "float32")
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def refused(config: dict, index: dict | None = None) -> tuple[Problem, ...]:
    with pytest.raises(InvalidStack) as caught:
        compute_model(config, index)
    return caught.value.problems


def test_computed_figures_of_each_model_entry_equal_those_of_its_stored_config():
    for name in catalogue.model_names():
        entry, computed = known_model(name), compute_model(config_of(name))
        kept = {field: getattr(entry, field) for field in ComputedModel.model_fields}
        assert kept["max_model_len"] == SHORTER.get(name, computed.max_model_len), name
        assert computed == ComputedModel(**{**kept, "max_model_len": computed.max_model_len}), name


def test_every_stored_model_config_has_its_provenance():
    listed = (FOLDER / "PROVENANCE.md").read_text()
    assert [name for name in NAMES if f"| {name}.json |" not in listed] == []


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("gpt-oss-120b", 116.83, 5.13),  # model card
        ("gpt-oss-20b", 20.91, 3.61),  # model card
        ("deepseek-v3", 671.0, 36.6),  # README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 671B, 36.6B with the head
        ("qwen3-32b", 32.8, 32.8),  # model card
        ("mixtral-8x22b", 141, 39),  # mistral.ai, Cheaper, Better, Faster, Stronger
        ("kimi-k2-instruct", 1000, 32),  # model card: 1T, 32B
        ("glm-4.7", 358, 32),  # vLLM recipes: 358B with the layer that predicts a further token, 32B
        ("qwen3-next-80b-a3b-thinking", 80, 3.5),  # model card: 3B, without the head of 0.3
        ("llama-3.1-405b-instruct-fp8-dynamic", 405.85, 405.85),  # model card
        ("nemotron-3-nano-30b-a3b", 31.6, 3.2),  # model card, without embeddings
        ("nemotron-3-super-120b-a12b", 120.6, 12.1),  # model card, without embeddings
        ("nemotron-h-56b-base-8k", 56, 56),  # model card
        ("jamba-1.5-mini", 52, 12),  # model card
    ],
)
def test_parameter_counts_equal_those_that_publishers_state(name: str, total: float, active: float):
    computed = compute_model(config_of(name)).parameters
    assert computed.total_billions == pytest.approx(total, rel=0.03)
    assert computed.active_billions == pytest.approx(active, rel=0.07)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("deepseek-v3", 61 * (512 + 64) * 2),  # one latent and one rotary vector
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),  # layers with a window too
        ("gemma-4-26b-a4b-it", 2 * (25 * 8 * 256 + 5 * 2 * 512) * 2),  # heads of another size with full attention
    ],
)
def test_a_tokens_kv_cache_follows_from_the_kinds_of_attention(name: str, kv_bytes: int):
    assert compute_model(config_of(name)).kv_cache.bytes_per_token == kv_bytes


def test_layers_of_linear_attention_have_a_state_and_no_kv_cache():
    computed = compute_model(config_of("qwen3-next-80b-a3b-thinking"))
    state = 3 * (2 * 2048 + 4096) * 2 + 32 * 128 * 128 * 2
    assert computed.architecture.linear_attention == LinearAttention(layers=36, state_bytes_per_sequence=36 * state)
    assert computed.kv_cache.bytes_per_token == 2 * 12 * 2 * 256 * 2


def test_state_space_layers_have_a_state_and_expert_layers_no_kv_cache():
    computed = compute_model(config_of("nemotron-3-nano-30b-a3b"))
    convolution, state = 3 * (64 * 64 + 2 * 8 * 128) * 2, 64 * 64 * 128 * 4
    assert computed.architecture.linear_attention == LinearAttention(
        layers=23, state_bytes_per_sequence=23 * (convolution + state), attention_layers=6, groups=8
    )
    assert computed.architecture.attention_layers == 6
    assert computed.kv_cache.bytes_per_token == 2 * 6 * 2 * 128 * 2


def test_a_model_config_may_give_kinds_of_layers_as_letters_or_words():
    nano = config_of("nemotron-3-nano-30b-a3b")
    words = {"M": "mamba", "*": "attention", "E": "moe"}
    listed = [words[letter] for letter in nano["hybrid_override_pattern"]]
    changes = {"hybrid_override_pattern": None, "num_hidden_layers": None, "layers_block_type": listed}
    assert compute_model(config_of("nemotron-3-nano-30b-a3b", **changes)) == compute_model(nano)


def test_state_space_states_are_16_bit_unless_the_config_says_otherwise():
    named, wide = (compute_model(config_of("nemotron-3-nano-30b-a3b", mamba_ssm_cache_dtype=kind)) for kind in KINDS)
    saved = wide.architecture.linear_attention.state_bytes_per_sequence
    saved -= named.architecture.linear_attention.state_bytes_per_sequence
    assert saved == 23 * 64 * 64 * 128 * 2


def test_in_jamba_all_layers_but_each_eighth_have_a_state_space():
    computed = compute_model(config_of("jamba-1.5-mini"))
    state = 3 * 8192 * 2 + 8192 * 16 * 2
    assert computed.architecture.linear_attention == LinearAttention(layers=28, state_bytes_per_sequence=28 * state)
    assert computed.kv_cache.bytes_per_token == 4 * 2 * 8 * 128 * 2


def test_a_layer_may_have_both_attention_and_a_state_space():
    sizes = {"mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4}
    computed = compute_model(config_of("qwen3-8b", model_type="falcon_h1", **sizes))
    linear = computed.architecture.linear_attention
    assert (linear.layers, computed.architecture.attention_layers) == (36, 36)
    assert computed.kv_cache == compute_model(config_of("qwen3-8b")).kv_cache


def test_a_config_that_hides_its_state_space_layers_or_has_no_attention_is_refused():
    (problem,) = refused(config_of("qwen3-8b", model_type="new", mamba_n_heads=24, mamba_d_state=256))
    assert (problem.path, problem.why) == ("layer_types", "some layers have a state space, and nothing says which")
    (problem,) = refused(config_of("jamba-1.5-mini", attn_layer_period=64, attn_layer_offset=63))
    assert problem.why == "no layer has a KV cache, by which servers are planned"


def test_a_model_with_full_attention_in_all_layers_has_no_state():
    computed = compute_model(config_of("qwen3-next-80b-a3b-thinking", full_attention_interval=None))
    assert computed.architecture.linear_attention is None


def test_without_head_dim_the_hidden_size_is_divided_among_the_heads():
    assert compute_model(config_of("mixtral-8x22b")).architecture.head_dim == 6144 // 48


ALL_LAYERS = {"model_type": "mistral", "use_sliding_window": None, "max_window_layers": None}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 4096, **ALL_LAYERS}, SlidingWindow(tokens=4096, layers=64)),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        (
            {"sliding_window": 1024, "sliding_window_pattern": 6, "use_sliding_window": True},
            SlidingWindow(tokens=1024, layers=54),
        ),
    ],
    ids=["all layers without a list of their kinds", "disabled", "all but every sixth layer"],
)
def test_layers_have_a_sliding_window_if_the_config_gives_them_one(changes: dict, windows: SlidingWindow | None):
    assert compute_model(config_of("qwen3-32b", **changes)).architecture.sliding_window == windows


def test_the_layers_of_gpt_oss_20b_and_deepseek_v3_have_their_kinds_of_attention():
    windowed, latent = (compute_model(config_of(name)).architecture for name in ("gpt-oss-20b", "deepseek-v3"))
    assert windowed.sliding_window == SlidingWindow(tokens=128, layers=12)
    assert latent.latent_attention is not None


def test_tied_embeddings_count_once_among_the_parameters():
    tied = compute_model(config_of("qwen3-32b", tie_word_embeddings=True))
    apart = compute_model(config_of("qwen3-32b"))
    saved = apart.parameters.total_billions - tied.parameters.total_billions
    assert saved == pytest.approx(151936 * 5120 / 1e9, abs=0.01)
    assert tied.work == apart.work


def test_entries_of_a_quantized_model_and_its_original_differ_only_in_weights():
    own = {"name", "repository", "revision", "quantized_from", "weights", "work", "recipe"}
    for known in map(known_model, catalogue.model_names()):
        if known.quantized_from:
            origin = known_model(known.quantized_from)
            assert known.model_dump(exclude=own) == origin.model_dump(exclude=own), known.name
            assert known.weights.gib < origin.weights.gib, known.name


@pytest.mark.parametrize(
    ("quantization", "name", "bits"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 8),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": FLOAT4 | {"group_size": 16}}}},
            "nvfp4",
            4.5,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": FLOAT4 | {"group_size": 32}}}},
            "mxfp4",
            4.25,
        ),
    ],
)
def test_the_weight_format_follows_from_quantization_method_and_its_groups(quantization: dict, name: str, bits: float):
    weights = compute_model(config_of("qwen3-32b", quantization_config=quantization)).weights
    matrices = compute_model(config_of("qwen3-32b")).work.prefill_parameters_billions * 1e9
    kept = 2 * (2 * 151936 * 5120) / 2**30
    assert weights.format == name
    assert weights.gib == pytest.approx(matrices * bits / 8 / 2**30 + kept, rel=0.01)


def test_unquantized_modules_of_a_nested_text_model_may_be_named_with_its_prefix():
    config = config_of("kimi-k2.5")
    patterns = config["text_config"]["quantization_config"]["ignore"]
    assert any("self_attn" in pattern for pattern in patterns)
    named = [*patterns, *(f"language_model.model.layers.{i}.mlp.experts*" for i in range(61))]
    text = config["text_config"]
    wider = text | {"quantization_config": text["quantization_config"] | {"ignore": named}}
    assert compute_model(config | {"text_config": wider}).weights.gib > 3 * compute_model(config).weights.gib


def test_unquantized_modules_take_two_bytes_for_each_parameter():
    config = config_of("qwen3-32b-fp8")
    attention = config["quantization_config"] | {"modules_to_not_convert": ["re:.*self_attn.*"]}
    layer = compute_model(config | {"quantization_config": attention}).weights.gib - compute_model(config).weights.gib
    assert layer == pytest.approx(64 * (2 * 5120 * 8192 + 2 * 5120 * 1024) / 2**30, rel=0.02)


@pytest.mark.parametrize(
    "pattern", ["model.layers.*.self_attn", "model.layers.0.self_attn", "self_attn", "model.layers.0"]
)
def test_unquantized_modules_may_be_named_by_glob_parent_or_part_of_a_name(pattern: str):
    config = config_of("qwen3-32b-fp8")
    quantization = config["quantization_config"] | {"modules_to_not_convert": [pattern]}
    assert compute_model(config | {"quantization_config": quantization}).weights.gib > compute_model(config).weights.gib


def test_the_size_of_weights_is_that_of_the_weights_index_which_must_be_sound():
    config = config_of("qwen3-32b")
    assert compute_model(config, {"metadata": {"total_size": 65_524_246_528}, "weight_map": {}}).weights.gib == 61.0
    (problem,) = refused(config, {"metadata": {"total_size": -1}})
    assert problem.path == "model.safetensors.index.json: metadata.total_size"


def test_multi_token_prediction_layers_do_not_count_among_loaded_weights():
    config = config_of("deepseek-v3")
    computed = compute_model(config, {"metadata": {"total_size": 688_586_727_753}})
    assert computed.weights.stored_gib == 641.3
    assert computed.weights.gib == compute_model(config).weights.gib == 626.9


@pytest.mark.parametrize("name", ["qwen3-32b", "deepseek-v3", "qwen3-next-80b-a3b-thinking", "qwen3-30b-a3b"])
def test_memory_figures_of_an_unknown_architecture_are_computed_and_marked(name: str):
    known, unknown = (compute_model(config_of(name, **changes)) for changes in ({}, {"model_type": "new"}))
    assert unknown.kv_cache == known.kv_cache
    assert unknown.parameters.total_billions == pytest.approx(known.parameters.total_billions, rel=0.02)
    assert bounds(config_of(name)) == []
    (told,) = bounds(config_of(name, model_type="new"))
    assert "no code of new was looked at" in told


@pytest.mark.parametrize(
    ("changes", "path"),
    [({"ssm_state_size": 256}, "ssm_state_size"), ({"layer_types": ["recurrent"] * 64}, "layer_types")],
)
def test_an_unknown_kind_of_layer_is_refused(changes: dict, path: str):
    (problem,) = refused(config_of("qwen3-32b", model_type="new", **changes))
    assert problem.path == path
    assert "neither their parameters nor their states" in problem.why


def test_figures_of_a_multimodal_model_are_of_its_text_model_and_say_so():
    config = config_of("qwen3-vl-8b-instruct")
    assert compute_model(config).parameters.total_billions == 8.19  # as Qwen3-8B, which it has inside
    assert bounds(config) == ["weights and parameters are without those of vision_config"]
    whole = {"metadata": {"total_size": 17_534_247_392}}
    assert compute_model(config, whole).weights.gib == 16.3
    assert bounds(config, whole) == ["parameters are without those of vision_config"]
    wrong = config | {"text_config": config["text_config"] | {"hidden_size": "wide"}}
    assert [problem.path for problem in refused(wrong)] == ["text_config.hidden_size"]


def test_sliding_window_layers_may_have_another_number_of_heads():
    computed = compute_model(config_of("mimo-v2-flash"))
    full, windowed = 4 * (192 + 128) * 2, 8 * (192 + 128) * 2
    assert computed.architecture.sliding_window == SlidingWindow(tokens=128, layers=39)
    assert computed.kv_cache.bytes_per_token == 9 * full + 39 * windowed


def test_a_model_config_may_list_the_layers_that_have_experts():
    by_list = [0, *([1] * 47)]
    listed = compute_model(config_of("qwen3-30b-a3b", moe_layer_freq=by_list, decoder_sparse_step=None))
    assert listed.parameters.total_billions < compute_model(config_of("qwen3-30b-a3b")).parameters.total_billions
    (problem,) = refused(config_of("qwen3-30b-a3b", moe_layer_freq=[1]))
    assert (problem.path, problem.value) == ("moe_layer_freq", 1)


def test_all_problems_of_a_model_config_are_reported_at_once():
    config = config_of("deepseek-v3", hidden_size="7168", kv_lora_rank=None, num_experts_per_tok=0)
    config["quantization_config"] = {"quant_method": "awq"}
    paths = ["hidden_size", "num_experts_per_tok", "kv_lora_rank", "quantization_config.quant_method"]
    assert [problem.path for problem in refused(config)] == paths


@pytest.mark.parametrize(
    ("name", "changes", "path"),
    [
        ("qwen3-32b", {"num_key_value_heads": 7}, "num_key_value_heads"),
        ("qwen3-32b", {"head_dim": None, "num_attention_heads": 48, "num_key_value_heads": 8}, "head_dim"),
        ("qwen3-32b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3-32b", {"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method"),
        ("qwen3-32b", {"quantization_config": {}}, "quantization_config.quant_method"),
        ("qwen3-32b", {"quantization_config": MIXED}, "quantization_config.quant_method"),
        ("qwen3-32b", {"torch_dtype": "float32"}, "torch_dtype"),
        ("qwen3-32b", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("qwen3-32b", {"quantization_config": FP8 | {"ignore": ["re:(a+)+$"]}}, "quantization_config.ignore[0]"),
        ("qwen3-32b", {"quantization_config": FP8 | {"ignore": ["re:("]}}, "quantization_config.ignore[0]"),
        ("mixtral-8x22b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_contradictory_sizes_in_a_model_config_are_refused_with_the_key(name: str, changes: dict, path: str):
    assert path in {problem.path for problem in refused(config_of(name) | changes)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), data=st.data())
def test_a_model_config_with_any_value_at_a_key_is_computed_or_refused(name: str, data: st.DataObject):
    config = config_of(name)
    key = data.draw(st.sampled_from(sorted(config)))
    with suppress(InvalidStack):
        compute_model(config | {key: data.draw(JSON)})
