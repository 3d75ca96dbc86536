import pytest
import yaml
from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue, config
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_tuner import search_inputs
from llmd_tuner.calibration import DECODE, PREFILL, predict
from llmd_tuner.experiments import recipes
from llmd_tuner.experiments.grid import (
    MeasuredServers,
    decode_levels,
    grids,
    handing_over,
    kinds_of_grid,
    prefill_levels,
    recipe_text,
    tuning_recipe,
)
from llmd_tuner.experiments.recipes import DECODE_BENCH, recipe_problems
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.measurements import decode_points, prefill_points, published_points
from llmd_tuner.row_filters import RowLimits, inspect
from llmd_tuner.workload import parse

MODEL, SHAPE = search_inputs.known_model("gpt-oss-120b"), search_inputs.known_shape("BM.GPU.MI300X.8")
LATENCY = latency_model_of(known_figures(MODEL, SHAPE.gpu), MODEL, SHAPE)


def test_the_adaptive_grid_measures_extremes_and_the_full_one_all_published_batches():
    kinds = [Parallelism(size) for size in (1, 2, 4, 8)]
    assert kinds_of_grid("adaptive", kinds) == (kinds[0], kinds[-1])
    assert decode_levels("adaptive", 8, 256) == (4, 32, 256)
    assert decode_levels("full", 2, 256)[-3:] == (64, 128, 256)
    assert decode_levels("full", 8, 512)[-3:] == (128, 256, 512)
    assert prefill_levels("full", 256) == (1, 4, 8, 16)


@pytest.mark.parametrize("grid", ["adaptive", "full"])
@pytest.mark.parametrize("most", [2, 3, 81, 256])
def test_no_measured_batch_exceeds_the_servers_limit_and_decode_batches_reach_it(grid, most):
    assert max(decode_levels(grid, 4, most)) == most
    assert max(prefill_levels(grid, most)) <= most


@pytest.mark.parametrize(
    ("role", "points_of", "levels", "error", "full_error"),
    [
        (DECODE, decode_points, {4, 32, 256}, grids().adaptive.decode_error, grids().adaptive.full_decode_error),
        (PREFILL, prefill_points, {1}, grids().adaptive.prefill_error, grids().adaptive.full_prefill_error),
    ],
    ids=["decode", "prefill"],
)
def test_latency_fits_of_the_adaptive_grid_and_of_all_points_have_known_errors(
    role, points_of, levels, error, full_error
):
    published = published_points("gpt-oss-120b", "MI300X")
    points = points_of(inspect(published.kept_rows(), RowLimits(LATENCY)).accepted)
    known = [item for item in points if item.parallelism.tensor_parallel_size in {1, 8} and item.sequences in levels]
    unseen = [item for item in points if item not in known]
    assert predict(role, known, unseen, LATENCY).mean == pytest.approx(error, abs=0.001)
    assert predict(role, points, points, LATENCY).mean == pytest.approx(full_error, abs=0.001)


def servers(model="gpt-oss-120b", workload="4096/256", rehearsed=False, **engine):
    return MeasuredServers(search_inputs.known_model(model), SHAPE, parse(workload), config.Engine(**engine), rehearsed)


def recipe(grid="adaptive", sizes=(), gpus=8, **asked):
    measured = servers(**asked)
    return tuning_recipe(measured, grid, [measured.kind(str(size)) for size in sizes], gpus)


def levels(result, name):
    (load,) = result.loads_of(result.named(name))
    return load.concurrencies


def test_the_adaptive_grid_has_ten_measurements_and_the_full_grid_over_seventy():
    counts = [
        sum(len(load.levels) for item in result.deployments for load in result.loads_of(item))
        for result in (recipe(), recipe("full"))
    ]
    assert counts[0] == 10
    assert counts[1] > 70


def test_prefill_is_measured_with_one_output_token_and_decode_without_prefills():
    result = recipe()
    prefill, decode = result.named("agg-tp8-1r-prefill"), result.named("agg-tp8-1r-decode")
    assert {load.output_tokens for load in result.loads_of(prefill)} == {1}
    assert DECODE_BENCH in result.model_of(decode).engine.extra_args
    assert DECODE_BENCH not in result.model_of(prefill).engine.extra_args


def test_servers_are_measured_with_block_size_and_attention_backend_of_kv_transfers():
    release = catalogue.release("llm-d-0.9.0")
    model, latent = catalogue.model("gpt-oss-120b"), catalogue.model("deepseek-r1")
    engine = handing_over(config.Engine(), release, model)
    assert engine.block_size == 128
    assert engine.argument("--attention-backend") == (0, "TRITON_ATTN")
    own = config.Engine(block_size=64, extra_args=("--attention-backend=ROCM_ATTN",))
    assert handing_over(own, release, model) == own
    assert handing_over(config.Engine(), release, latent).argument("--attention-backend") == (0, "ROCM_AITER_MLA")


def test_decode_is_measured_up_to_the_servers_max_num_seqs_or_kv_cache():
    result = recipe(max_num_seqs=64)
    assert levels(result, "agg-tp1-1r-decode") == (4, 16, 64)
    assert {item.engine.max_num_seqs for item in result.deployments} == {64}
    result = recipe(model="llama-3.3-70b-instruct-fp8-dynamic")
    assert max(levels(result, "agg-tp1-1r-decode")) == 81
    assert max(levels(result, "agg-tp8-1r-decode")) == 256


def test_decode_is_measured_at_the_mean_context_and_rehearsed_with_few_requests():
    asked = servers(workload="0.5:4096/256,0.5:512/128")
    (decode,) = (load for load in tuning_recipe(asked, "adaptive", (), 8).loads if load.output_tokens > 1)
    assert decode.input_tokens + decode.output_tokens / 2 == pytest.approx(asked.workload.context_tokens, abs=1)
    (decode,) = (load for load in recipe(rehearsed=True).loads if load.output_tokens > 1)
    assert [decode.requests_at(level) for level in decode.levels] == [12, 96, 768]


def test_a_measurement_recipe_is_read_back_equal_from_its_yaml_text():
    result = recipe("full", gpus=4)
    assert recipes.validate(yaml.safe_load(recipe_text(result))) == result
    assert recipe_problems(result) == []


def test_server_sizes_and_prompt_lengths_that_cannot_be_measured_are_refused():
    with pytest.raises(KitError, match=r"tp3, tp8 can't be measured.*\n.*Possible: tp1, tp1dp2, tp1dp2ep, tp2"):
        recipe(sizes=(1, 3, 8), gpus=4)
    with pytest.raises(KitError, match="No server"):
        recipe(workload="90000000/10")
