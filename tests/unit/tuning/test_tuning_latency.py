"""The latency model against the published tables that its factors were fitted to, and against plain sense."""

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue import model_names
from llmd_oke.catalogue.conditions import UNKNOWN_CONDITIONS, Conditions, all_reduce_shares, quick_reduce_times
from llmd_oke.catalogue.server_settings import QUANTIZATIONS
from llmd_tuner.latency import ideal
from llmd_tuner.latency_models import latency_model
from llmd_tuner.search_inputs import known_model
from tuning_for_tests import LATENCY, MODEL, SHAPE, bounds_of, unloaded_prefill_s

# j-pareto history de3e684, gpt-oss-120b on MI300X: ISL 2, OSL 256, output tokens/s by concurrency for each TP.
CONCURRENCY = (4, 16, 32, 64, 128, 256)
DECODE_TOKENS_PER_S = {
    1: (468, 1088, 1568, 2304, 3456, 4508),
    2: (772, 1860, 2752, 4288, 6528, 8400),
    4: (516, 1840, 3136, 5120, 8653, 11501),
    8: (936, 2800, 4287, 7104, 11392, 14800),
}
# The same source: prefill of 4096 tokens at concurrency 1, corrected for cached prompts, in milliseconds.
PREFILL_MS = {1: 242, 2: 190, 4: 122, 8: 107}
# ROCm/vllm docs/dev-docker: Llama-3.1-70B FP8-KV at TP8, seconds for 2048 output tokens by batch 1, 2, .. 128.
LLAMA_S = {
    128: (17.236, 18.057, 18.450, 19.677, 22.072, 24.932, 33.287, 46.484),
    2048: (17.500, 18.055, 18.858, 20.161, 22.347, 25.966, 35.324, 52.394),
}


def latency_of(name, key_value_bytes_per_token=None, conditions=UNKNOWN_CONDITIONS):
    result = latency_model(known_model(name), SHAPE, conditions, key_value_bytes_per_token)
    assert result is not None
    return result


LLAMA_NAME = "llama-3.3-70b-instruct-fp8-dynamic"
LLAMA = latency_of(LLAMA_NAME)
QUICK = latency_of(LLAMA_NAME, conditions=Conditions(quick_reduce="INT4"))


def test_gpt_oss_decode_latencies_are_within_5_percent_of_measured_on_average():
    """MAPE 4.4 % over 24 points; the largest error is the outlier at TP4, concurrency 4."""
    errors = [
        abs(LATENCY.decode_step_s(batch, 130, size) * rate / batch - 1)
        for size, rates in DECODE_TOKENS_PER_S.items()
        for batch, rate in zip(CONCURRENCY, rates, strict=True)
    ]
    assert sum(errors) / len(errors) < 0.045
    assert max(errors) == errors[12]
    assert max(errors) < 0.28


@pytest.mark.parametrize("size", PREFILL_MS)
def test_gpt_oss_prefill_latencies_are_within_12_percent_of_the_published_table(size):
    assert unloaded_prefill_s(LATENCY, 4096, size) * 1000 == pytest.approx(PREFILL_MS[size], rel=0.12)


def test_one_gpu_prefills_22_to_26_thousand_gpt_oss_tokens_a_second():
    assert 22_000 < 4096 / LATENCY.prefill_s(4096) < 26_000


def test_llama_70b_decode_at_tp8_is_within_3_percent_of_published_on_average():
    """MAPE 1.5 % over 16 points, with an FP8 KV cache as in the source."""
    latency = latency_of(LLAMA_NAME, 163_840)
    errors: list[float] = []
    for tokens, totals in LLAMA_S.items():
        for power, total_s in enumerate(totals):
            step_s = (total_s - 2**power * latency.prefill_s(tokens, 0, 8)) / 2048
            errors.append(abs(latency.decode_step_s(2**power, tokens + 1024, 8) / step_s - 1))
    assert sum(errors) / len(errors) < 0.03


def test_llama_70b_latencies_are_in_published_ranges_also_with_two_gpus():
    """Prefill of 4096 tokens takes 0.5 to 0.7 s at TP1; TP2 decodes in the published band of 23 to 50 tokens/s/user."""
    assert 0.5 < LLAMA.prefill_s(4096) < 0.7
    assert 1 / 50 < LLAMA.decode_step_s(24, 4224, 2) < 1 / 23
    assert 0.02 < LLAMA.decode_step_s(1, 128, 1) < 0.04
    # One link between two GPUs: TP2 gives far less than twice the rate of TP1.
    assert LLAMA.prefill_s(4096, 0, 2) > 0.8 * LLAMA.prefill_s(4096, 0, 1)


@pytest.mark.parametrize(("size", "left"), [(1, None), (2, 0.35), (4, 0.54), (8, 0.54)])
def test_quantized_all_reduce_takes_the_measured_share_of_the_unquantized_time(size, left):
    """Kernels at TP2 and TP4; TP8 is taken for TP4, and one GPU has nothing to reduce."""
    endless = replace(LLAMA, factors=replace(LLAMA.factors, all_reduce_efficiency=float("inf")))
    without_s = endless.prefill_s(4096, 0, size)
    all_reduce_s = LLAMA.prefill_s(4096, 0, size) - without_s
    assert QUICK.prefill_s(4096, 0, size) - without_s == pytest.approx(all_reduce_s * (left or 1.0))
    assert (all_reduce_s > 0) == (left is not None)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_no_quantized_all_reduce_takes_less_than_its_share_of_transferred_bytes(quantization):
    known = quick_reduce_times()
    assert all(share >= known.bytes_share[quantization] for _, share in all_reduce_shares(quantization))


def test_quantized_all_reduce_does_not_change_decode_steps():
    """Decode messages are below the least size of quantized all-reduce."""
    assert QUICK.decode_step_s(64, 4096, 8) == LLAMA.decode_step_s(64, 4096, 8)


def test_bytes_of_a_kv_transfer_are_spread_over_the_ports_of_a_server():
    """302 MB and 1342 MB for 4096 tokens at 40 GB/s."""
    bytes_only = [replace(item, factors=replace(item.factors, transfer_descriptor_s=0.0)) for item in (LATENCY, LLAMA)]
    assert bytes_only[0].key_value_transfer_s(4096, 1, 16) == pytest.approx(0.00755, rel=0.01)
    assert bytes_only[1].key_value_transfer_s(4096, 1, 16) == pytest.approx(0.0336, rel=0.01)
    assert bytes_only[1].key_value_transfer_s(4096, 2, 16) == pytest.approx(0.0168, rel=0.01)


@pytest.mark.parametrize(
    ("block_size", "release", "descriptors"),
    [(16, "llm-d-0.6.0", 18432), (16, "llm-d-0.9.0", 4752), (64, "llm-d-0.9.0", 1188), (128, "llm-d-0.9.0", 594)],
)
def test_a_kv_transfer_takes_time_for_descriptors_and_bytes(block_size, release, descriptors):
    """36 layers, keys and values apart before vLLM 0.26, which hands over the windows alone of half of them."""
    latency = latency_of("gpt-oss-120b", conditions=Conditions(release=release))
    assert latency.descriptors(4096, block_size) == descriptors
    bytes_s = latency.key_value_transfer_s(4096, 1, block_size) - descriptors * latency.factors.transfer_descriptor_s
    byte_count = latency.key_value_bytes(4096, block_size)
    assert bytes_s == pytest.approx(byte_count / (latency.hardware.port_bytes_per_s * 0.8), rel=0.01)


@given(st.sampled_from(model_names()), st.integers(1, 200_000), st.sampled_from([16, 64, 128]), st.booleans())
def test_bytes_of_a_kv_transfer_are_summed_over_layers_by_kind_of_attention(name, tokens, block_size, windows_alone):
    """Full: whole blocks. Windowed: those with a token that the next one sees, or all. Linear: none."""
    architecture, cached = known_model(name).architecture, known_model(name).kv_cache.bytes_per_token
    linear = architecture.linear_attention.layers if architecture.linear_attention else 0
    window = architecture.sliding_window
    windowed = window.layers if window else 0
    layer_bytes = cached / (architecture.layers - linear)
    whole = math.ceil(tokens / block_size) * block_size
    first_seen = max(0, tokens - window.tokens + 1) if window else 0
    seen = whole - first_seen // block_size * block_size
    handed = [whole] * (architecture.layers - linear - windowed)
    handed += [seen if windows_alone else whole] * windowed
    latency = bounds_of(known_model(name))
    latency = replace(latency, sizes=replace(latency.sizes, windows_alone=windows_alone))
    assert latency.key_value_bytes(tokens, block_size) == pytest.approx(layer_bytes * sum(handed))


def test_sliding_window_layers_transfer_little_of_a_long_prompt():
    """gpt-oss-120b by vLLM 0.26; before it, and of servers of which no release is told, every layer in full."""
    full, told = (latency_of("gpt-oss-120b", conditions=Conditions(release=name)) for name in (None, "llm-d-0.9.0"))
    assert told.key_value_bytes(5000, 128) / full.key_value_bytes(5000, 128) == pytest.approx(0.525, abs=0.001)
    assert latency_of("gpt-oss-120b", conditions=Conditions(release="llm-d-0.7.0")) != told


def test_larger_kv_blocks_save_as_much_transfer_time_as_published():
    """vLLM issue 50913, 5k tokens, blocks of 16 to 64: 58 ms, another model on other GPUs; within a factor of two."""
    saved_s = LATENCY.key_value_transfer_s(5000, 1, 16) - LATENCY.key_value_transfer_s(5000, 1, 64)
    assert 0.029 < saved_s < 0.116


def test_prefill_of_a_prompt_in_chunks_takes_as_long_as_of_the_whole_prompt():
    """Attention to the computed context is counted once for each chunk; windows differ by little."""
    whole = LATENCY.prefill_s(8192)
    chunks = LATENCY.prefill_s(2048) + LATENCY.prefill_s(2048, 2048) + LATENCY.prefill_s(4096, 4096)
    assert chunks == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("latency", [LATENCY, LLAMA], ids=["gpt-oss", "llama"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_larger_batches_longer_contexts_and_prompts_never_take_less_time(latency, size):
    batches = [latency.decode_step_s(batch, 4096, size) for batch in (1, 2, 8, 64, 256)]
    contexts = [latency.decode_step_s(32, context, size) for context in (1, 128, 4096, 100_000)]
    prompts = [latency.prefill_s(tokens, 0, size) for tokens in (1, 16, 4096, 8192)]
    assert batches == sorted(batches)
    assert contexts == sorted(contexts)
    assert prompts == sorted(prompts)


def test_the_duration_of_a_simulated_step_is_computed_within_50_microseconds():
    """The simulated vLLM asks at each step; the bound is loose for busy machines."""
    server = LATENCY.server(2)
    server.decode_step_s(64, 4096)
    start = time.process_time()
    for batch in range(1, 1001):
        server.decode_step_s(batch, 4096.0)
        server.prefill_s(4096)
    assert (time.process_time() - start) / 1000 < 50e-6


def test_a_gpu_without_latency_figures_of_its_own_has_no_latency_model():
    """Figures of MI300X say nothing about another product."""
    other = SHAPE.model_copy(update={"gpu": SHAPE.gpu.model_copy(update={"product": "MI355X"})})
    assert latency_model(MODEL, other) is None


DEEPSEEK = bounds_of(known_model("deepseek-v3"))


def test_data_parallel_ranks_that_share_experts_read_each_experts_weights_once():
    """DeepSeek-V3 on eight GPUs: each rank reads all of its attention weights."""
    sizes, rate = DEEPSEEK.sizes, DEEPSEEK.hardware.memory_bytes_per_s
    without = replace(DEEPSEEK, factors=ideal(DEEPSEEK).factors)
    one, ranks = without.decode_step_s(1, 0, 8), without.decode_step_s(1, 0, Parallelism(1, 8))
    missed = 1 - sizes.active_experts / sizes.experts
    expected_s = (sizes.dense_bytes + sizes.expert_bytes * (1 - missed**8) / 8) / rate
    assert ranks == pytest.approx(expected_s, rel=1e-6)
    assert one < ranks


def test_data_parallel_ranks_read_only_the_latent_kv_cache_of_their_own_sequences():
    split, ranks = (DEEPSEEK.server(spread) for spread in (8, Parallelism(1, 8)))
    of_split, of_ranks = (
        (server.decode_step_s(batch, 8192) - server.decode_step_s(batch, 0)) / batch
        for server, batch in ((split, 64), (ranks, 8))
    )
    assert of_split == pytest.approx(of_ranks)  # of as many sequences of a server, eight times the time


def test_expert_parallel_ranks_exchange_activations_in_all_layers():
    spread = Parallelism(1, 8)
    endless = replace(DEEPSEEK, factors=replace(DEEPSEEK.factors, all_reduce_efficiency=float("inf")))
    exchange_s = DEEPSEEK.prefill_s(1000, 0, spread) - endless.prefill_s(1000, 0, spread)
    sizes, links = DEEPSEEK.sizes, 1 if DEEPSEEK.hardware.switched else 7
    sent = 1000 * sizes.layers * 2 * 7 * sizes.hidden_size * 2
    rate = DEEPSEEK.hardware.link_bytes_per_s * links * DEEPSEEK.factors.all_reduce_efficiency
    assert exchange_s == pytest.approx(sent / rate)


def test_activations_from_ranks_of_other_nodes_pass_the_nodes_rdma_ports_once():
    spread = Parallelism(1, 16)
    sizes, hardware, efficiency = DEEPSEEK.sizes, DEEPSEEK.hardware, DEEPSEEK.factors.all_reduce_efficiency
    more_s = DEEPSEEK.prefill_s(1000, 0, replace(spread, nodes=2)) - DEEPSEEK.prefill_s(1000, 0, Parallelism(1, 8))
    sent = 1000 * sizes.layers * 2 * 8 * sizes.hidden_size * 2
    inside_s = sent / (hardware.link_bytes_per_s * (1 if hardware.switched else 7) * efficiency)
    assert more_s - inside_s == pytest.approx(sent / (hardware.port_bytes_per_s * 8 * efficiency))


def test_draft_tokens_lengthen_a_step_and_if_accepted_shorten_the_time_per_token():
    conditions = Conditions(draft_tokens=3, accepted_share=0.8)
    drafting = latency_of("gpt-oss-120b", conditions=conditions)
    checked = LATENCY.server(1).checked_step_s(8, 1000, 3)
    assert checked > LATENCY.decode_step_s(8, 1000)
    assert drafting.decode_step_s(8, 1000) == pytest.approx(checked / (1 + 3 * 0.8))
    assert drafting.decode_step_s(1, 1000) < LATENCY.decode_step_s(1, 1000)
    none = latency_of("gpt-oss-120b", conditions=Conditions(draft_tokens=1, accepted_share=0.0))
    assert none.decode_step_s(16, 1000) > LATENCY.decode_step_s(16, 1000)
    assert latency_of("gpt-oss-120b", conditions=Conditions(draft_tokens=3)).drafting is None
