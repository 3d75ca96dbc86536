"""The tuner's measurements as a recipe."""

import pytest
import yaml
from llmd_oke import catalogue, config
from llmd_oke.errors import KitError
from llmd_oke.experiments.recipes import files
from llmd_oke.experiments.recipes.recipe import DECODE_BENCH
from llmd_oke.experiments.recipes.rules import recipe_problems
from llmd_oke.experiments.tuner.recipe import Servers, handing_over, recipe_text, tuning_recipe
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.servers.workload import parse

SHAPE = asking.known_shape("BM.GPU.MI300X.8")


def servers(model="gpt-oss-120b", workload="4096/256", rehearsed=False, **engine):
    return Servers(asking.known_model(model), SHAPE, parse(workload), config.Engine(**engine), rehearsed)


def recipe(grid="adaptive", sizes=(), gpus=8, **asked):
    return tuning_recipe(servers(**asked), grid, sizes, gpus)


def levels(found, name):
    (load,) = found.loads_of(found.named(name))
    return load.concurrencies


def test_ten_points_are_enough_where_the_full_grid_has_over_seventy():
    counts = [
        sum(len(load.levels) for each in found.deployments for load in found.loads_of(each))
        for found in (recipe(), recipe("full"))
    ]
    assert counts[0] == 10
    assert counts[1] > 70


def test_servers_that_prefill_answer_with_one_token_and_others_fill_their_prompts_in():
    found = recipe()
    prefill, decode = found.named("agg-tp8-1r-prefill"), found.named("agg-tp8-1r-decode")
    assert {load.output_tokens for load in found.loads_of(prefill)} == {1}
    assert DECODE_BENCH in found.model_of(decode).engine.extra_args
    assert DECODE_BENCH not in found.model_of(prefill).engine.extra_args


def test_servers_are_measured_with_the_settings_of_those_that_hand_kv_cache_over():
    release = catalogue.release("llm-d-0.9.0")
    engine = handing_over(config.Engine(), release)
    assert engine.block_size == 128
    assert engine.argument("--attention-backend") == (0, "TRITON_ATTN")
    own = config.Engine(block_size=64, extra_args=("--attention-backend=ROCM_ATTN",))
    assert handing_over(own, release) == own


def test_the_largest_batch_is_the_servers_own_limit():
    found = recipe(max_num_seqs=64)
    assert levels(found, "agg-tp1-1r-decode") == (4, 16, 64)
    assert {each.engine.max_num_seqs for each in found.deployments} == {64}


def test_no_more_is_in_flight_than_the_kv_cache_holds():
    found = recipe(model="llama-3.3-70b-instruct-fp8-dynamic")
    assert max(levels(found, "agg-tp1-1r-decode")) == 81
    assert max(levels(found, "agg-tp8-1r-decode")) == 256


def test_decode_servers_have_the_mean_context_of_several_classes():
    asked = servers(workload="0.5:4096/256,0.5:512/128")
    (decode,) = (load for load in tuning_recipe(asked, "adaptive", (), 8).loads if load.output_tokens > 1)
    assert decode.input_tokens + decode.output_tokens / 2 == pytest.approx(asked.workload.context_tokens, abs=1)


def test_a_rehearsal_sends_three_requests_for_each_one_in_flight():
    (decode,) = (load for load in recipe(rehearsed=True).loads if load.output_tokens > 1)
    assert [decode.requests_at(level) for level in decode.levels] == [12, 96, 768]


def test_the_text_of_a_recipe_is_read_back_equal():
    found = recipe("full", gpus=4)
    assert files.validate(yaml.safe_load(recipe_text(found))) == found
    assert recipe_problems(found) == []


def test_sizes_that_can_not_be_measured_are_refused_with_those_that_can():
    with pytest.raises(KitError, match=r"size 3, 8 can't be measured.*\n.*Possible: 1, 2, 4"):
        recipe(sizes=(1, 3, 8), gpus=4)


def test_lengths_that_no_server_holds_are_refused():
    with pytest.raises(KitError, match="No server"):
        recipe(workload="90000000/10")
