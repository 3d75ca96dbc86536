"""The tuner ranks every model of the catalogue: by bounds where nothing was measured, and said to be."""

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue
from llmd_oke.catalogue.latency_figures import bound_figures, latency_figures
from llmd_oke.catalogue.models import LinearAttention
from llmd_oke.planning.server_choices import divided_spreads
from llmd_tuner.latency import LatencyModel
from llmd_tuner.search import Targets
from llmd_tuner.search_inputs import known_model, question_of
from llmd_tuner.workload import of_lengths
from tuning_for_tests import SHAPE, answer_of, bounds_of

UNMEASURED = [name for name in catalogue.model_names() if latency_figures(name, "MI300X") is None]


DENSE = known_model("qwen3-32b")


def with_states(state_bytes: int) -> catalogue.CatalogueModel:
    """The dense model with linear attention in 48 of its layers."""
    linear = LinearAttention(layers=48, state_bytes_per_sequence=state_bytes)
    architecture = DENSE.architecture.model_copy(update={"linear_attention": linear})
    return DENSE.model_copy(update={"architecture": architecture})


@pytest.mark.usefixtures("_without_sensitivity")
@pytest.mark.parametrize("name", UNMEASURED)
def test_tune_rank_ranks_an_unmeasured_model_by_hardware_bounds_if_allowed(name: str):
    result = answer_of("rank", "--model", name, "--workload", "4096/256", "--gpus", "8", "--allow-extrapolation")
    assert result["confidence"]["basis"] == "bound"
    assert result["best"]["gpus"] <= 8


def test_tensor_parallel_sizes_that_would_split_quantized_blocks_are_not_ranked():
    def sizes(name: str) -> set[int]:
        return {each.gpus for each in divided_spreads(known_model(name), 8, 8) if not each.expert_parallel}

    assert sizes("qwen3-235b-a22b-fp8") == {1, 2, 4}
    assert sizes("deepseek-r1") == {1}  # its experts stay whole


def test_with_latent_attention_each_gpu_reads_and_receives_the_whole_kv_cache():
    def context_s(latency: LatencyModel, size: int) -> float:
        return latency.decode_step_s(1, 8192, size) - latency.decode_step_s(1, 0, size)

    latent, heads = (bounds_of(known_model(name)) for name in ("deepseek-r1", "qwen3-32b"))
    assert context_s(latent, 8) == pytest.approx(context_s(latent, 1))
    assert context_s(heads, 8) == pytest.approx(context_s(heads, 1) / 8)
    assert latent.key_value_transfer_s(4096, 8, 128) == pytest.approx(latent.key_value_transfer_s(4096, 1, 128))
    assert heads.key_value_transfer_s(4096, 8, 128) < heads.key_value_transfer_s(4096, 1, 128)


def test_more_gpus_than_kv_heads_hold_copies_of_the_kv_cache():
    latency = bounds_of(known_model("qwen3-235b-a22b-fp8"))
    assert [latency.sizes.key_value_copies(size) for size in (1, 2, 4, 8)] == [1, 1, 1, 2]


def test_linear_attention_layers_read_a_state_instead_of_the_kv_cache():
    cache = DENSE.kv_cache.model_copy(update={"bytes_per_token": DENSE.kv_cache.bytes_per_token // 4})
    hybrid, whole = bounds_of(with_states(10**8).model_copy(update={"kv_cache": cache})), bounds_of(DENSE)
    by_token = [latency.decode_step_s(1, 8192) - latency.decode_step_s(1, 0) for latency in (hybrid, whole)]
    assert by_token[0] == pytest.approx(by_token[1] / 4)
    assert hybrid.decode_step_s(1, 0) - whole.decode_step_s(1, 0) == pytest.approx(2e8 / 5.3e12)
    assert hybrid.descriptors(4096, 128) == whole.descriptors(4096, 128) // 4


def test_linear_attention_states_leave_memory_for_fewer_sequences():
    hybrid = with_states(4352 * DENSE.kv_cache.bytes_per_token)
    load, targets = of_lengths(4096, 256), Targets()
    asked = [question_of(model, SHAPE, bound_figures(model, SHAPE.gpu), load, targets, 8) for model in (DENSE, hybrid)]
    fitting = [
        each.room.sequences(each.choices.memory["aggregated"][Parallelism(1)], load, aggregated=True) for each in asked
    ]
    assert fitting[1] == pytest.approx(fitting[0] / 2, abs=1)
