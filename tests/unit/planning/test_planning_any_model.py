"""Models of every kind: what their servers may have, what a node too small is told, and whether P/D pays."""

from collections.abc import Callable
from typing import Any

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.models import LinearAttention, blocks_allow, heads_allow, state_tokens
from llmd_oke.planning.conditions import deployed_conditions
from llmd_oke.planning.planned_model import memory
from stack_files import known_model, known_release, known_shape, model, plan, problems

SHAPE = known_shape()
QWEN = "qwen3-235b-a22b-fp8"
FULL = {
    "deepseek-r1": "agg-tp8-1r",
    "deepseek-v3": "1p-tp8-1d-tp8",
    "gpt-oss-20b": "4p-tp1-2d-tp2",
    "llama-3.1-405b-instruct-fp8-dynamic": "1p-tp4-1d-tp8",
    "mixtral-8x22b": "1p-tp4-1d-tp4",
    QWEN: "2p-tp2-1d-tp4",
    "qwen3-32b": "2p-tp1-1d-tp2",
}
WORKLOAD = {"inputTokens": 4096, "outputTokens": 256}


@pytest.mark.parametrize("name", sorted(FULL))
def test_every_model_of_the_catalogue_can_be_deployed_on_one_or_two_nodes(name: str):
    assert problems(model(FULL[name], model=name, workload=WORKLOAD)) == []


def test_only_expert_parallelism_permits_sizes_that_would_split_weight_blocks():
    (problem,) = problems(model("agg-tp8-1r", model=QWEN, workload=WORKLOAD))
    assert (problem.path, problem.accepted) == ("models[0].topology", "for aggregated: one of 2, 4")
    assert problems(model("agg-tp8ep-1r", model=QWEN, workload=WORKLOAD)) == []


@pytest.mark.parametrize(("architecture", "allowed"), [({}, [1, 2, 4, 8]), ({"intermediate_size": 128 * 6}, [1, 2])])
def test_quantized_weight_blocks_of_dense_layers_limit_the_tensor_parallel_size_too(
    model_with: Callable[..., Any], architecture: dict[str, int], allowed: list[int]
):
    scaled = model_with("qwen3-32b", weights={"block_size": 128}, architecture=architecture)
    assert [size for size in (1, 2, 4, 8) if blocks_allow(scaled, Parallelism(size))] == allowed


def test_a_tensor_parallel_size_must_divide_or_be_a_multiple_of_the_kv_heads():
    assert heads_allow(known_model(QWEN), 8)
    assert not heads_allow(known_model("mixtral-8x22b"), 3)


def test_a_model_that_fits_no_node_is_refused_with_what_it_needs(model_with: Callable[..., Any]):
    model_with("deepseek-r1", weights={"gib": 2500.0})
    (problem,) = problems(model("agg-tp8-1r", model="deepseek-r1", workload=WORKLOAD))
    assert (problem.path, "2500 GiB of weights" in problem.why) == ("models[0].topology", True)
    assert "of MI300X it takes 16 GPUs on 2 nodes" in problem.accepted
    least = model("agg-tp8-1r", model="deepseek-r1", workload=WORKLOAD, engine={"gpuMemoryUtilization": 0.01})
    (problem,) = problems(least)
    assert problem.accepted.startswith("for aggregated: narrower weights, or a node with 8 GPUs of at least ")
    assert "MI300X" not in problem.accepted


def test_a_model_of_as_many_gpus_as_a_node_has_is_not_said_to_need_several_nodes(model_with: Callable[..., Any]):
    model_with(QWEN, weights={"gib": 1350.0})
    (problem,) = problems(model("agg-tp4-1r", model=QWEN, workload=WORKLOAD))
    assert "1350 GiB of weights" in problem.why
    assert problem.accepted.endswith(" GiB, or a shorter engine.maxModelLen")


@pytest.mark.parametrize(("left_gib", "counted"), [(0, False), (0.5, True)])
def test_a_model_whose_longest_sequence_fills_gpus_has_no_number_of_gpus(
    model_with: Callable[..., Any], left_gib: float, counted: bool
):
    sequence_gib = 10
    cache = {"bytes_per_token": sequence_gib * 2**30 // known_model("deepseek-r1").max_model_len}
    activation_gib = 0.95 * SHAPE.gpu.memory_gib - sequence_gib - left_gib
    model_with("deepseek-r1", kv_cache=cache, activation_gib_per_gpu=activation_gib)
    (problem,) = problems(model("agg-tp8-1r", model="deepseek-r1", workload=WORKLOAD))
    assert problem.accepted.startswith("for aggregated: narrower weights, or a node with 8 GPUs of at least ")
    assert ("of MI300X it takes" in problem.accepted) is counted


def test_models_with_latent_attention_get_the_mla_attention_backend():
    release, latent = known_release("llm-d-0.9.0"), known_model("deepseek-r1")
    backends = release.vllm.attention_backend
    assert {backends.chosen(latent, kv_connector=hands_over) for hands_over in (True, False)} == {"ROCM_AITER_MLA"}
    assert backends.chosen(known_model("qwen3-32b"), kv_connector=True) == "TRITON_ATTN"
    planned = plan(model("1p-tp8-1d-tp8", model="deepseek-r1", workload=WORKLOAD)).models[0]
    started = deployed_conditions(release, planned.model, planned.engine)
    assert started.handing_over.attention_backend == started.aggregated.attention_backend == "ROCM_AITER_MLA"


@pytest.mark.parametrize("topology", ["1p-tp8-1d-tp8", "agg-tp8-1r"])
def test_an_attention_backend_new_in_a_releases_vllm_requires_an_accuracy_evaluation(topology: str):
    servers = model(topology, model="deepseek-r1", workload=WORKLOAD)
    (change,) = plan(servers).models[0].answer_changes
    assert (change.path, change.what.split(",")[0]) == ("release", "attention backend ROCM_AITER_MLA")
    assert plan(servers).models[0].min_accuracy == 0.95
    assert [problem.path for problem in problems(servers, smoke={"where": "none"})] == ["smoke.where"]
    assert plan(servers, release="llm-d-0.7.0").models[0].answer_changes == ()


def test_a_number_of_heads_that_the_attention_backend_lacks_is_refused(model_with: Callable[..., Any]):
    model_with("deepseek-r1", architecture={"attention_heads": 40, "key_value_heads": 40})
    (problem,) = problems(model("agg-tp8-1r", model="deepseek-r1", workload=WORKLOAD))
    assert (problem.path, problem.accepted) == ("override.attentionBackend", "TRITON_MLA")


def test_linear_attention_states_of_sequences_take_memory_from_the_kv_cache(model_with: Callable[..., Any]):
    dense = known_model("qwen3-32b")
    linear = LinearAttention(layers=48, state_bytes_per_sequence=100 * dense.kv_cache.bytes_per_token)
    hybrid = model_with("qwen3-32b", architecture={"linear_attention": linear})
    assert (state_tokens(dense, 1), state_tokens(hybrid, 1), state_tokens(hybrid, 8)) == (0, 100, 100)
    of_hybrid, of_dense = (memory(each, SHAPE, Parallelism(1), 0.95) for each in (hybrid, dense))
    assert of_hybrid.sequences(900) == of_dense.sequences(1000)
    assert of_hybrid.sequences(of_hybrid.longest_sequence) == 1
    assert of_hybrid.longest_sequence == of_dense.longest_sequence - 100


def advice(topology: str, name: str, input_tokens: int) -> dict[str, str]:
    entry: dict[str, Any] = model(topology, model=name, workload={"inputTokens": input_tokens, "outputTokens": 256})
    return {item.path: item.text for item in plan(entry).advice}


@pytest.mark.parametrize(
    ("topology", "name", "tokens", "pays"),
    [
        ("agg-tp4-2r", QWEN, 8000, True),
        ("agg-tp4-1r", QWEN, 8000, False),  # one server can't be two
        ("agg-tp4-2r", QWEN, 500, False),
        ("agg-tp1-2r", "qwen3-32b", 8000, False),
        ("agg-tp8-2r", "llama-3.1-405b-instruct-fp8-dynamic", 8000, False),  # dense
    ],
)
def test_disaggregation_is_advised_for_large_expert_models_with_long_prompts(
    topology: str, name: str, tokens: int, pays: bool
):
    assert ("(P/D) were faster" in advice(topology, name, tokens).get("models[0].topology", "")) is pays
