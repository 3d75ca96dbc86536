import pytest
from llmd_oke.bench.in_cluster.inference_perf import ToolLoad, config
from llmd_oke.bench.workload.lengths import Fixed, Normal
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke.errors import KitError


def made(shape: LoadShape, **changes) -> dict:
    load = {"input_tokens": Fixed(5000), "output_tokens": Fixed(250), **changes}
    told = ToolLoad("http://gpt", "openai/gpt-oss-120b", shape, **load)
    return config(told, results="/results", tokenizer="openai/gpt-oss-120b", workers=45, worker_concurrency=100)


def test_the_guides_profile():
    """llm-d-benchmark, profile guide_pd-disaggregation_1."""
    told = made(ConstantRate(45), duration_s=120)
    assert told["load"]["type"] == "constant"
    assert told["load"]["stages"] == [{"rate": 45, "duration": 120}]
    assert (told["load"]["num_workers"], told["load"]["worker_max_concurrency"]) == (45, 100)
    assert told["api"] == {"type": "completion", "streaming": True}
    assert told["server"]["ignore_eos"] is True


def test_a_fixed_length_reads_the_same_in_old_and_new_releases():
    told = made(ConstantRate(45), duration_s=120)["data"]["input_distribution"]
    assert told["type"] == "fixed"
    assert (told["min"], told["max"], told["mean"], told["std_dev"]) == (5000, 5000, 5000, 0)
    assert told["total_count"] > 45 * 120


def test_poisson_and_closed_loops_have_their_own_types():
    assert made(PoissonRate(4), duration_s=10)["load"]["type"] == "poisson"
    assert made(ClosedLoop(8), requests=64)["load"]["stages"] == [{"concurrency_level": 8, "num_requests": 64}]


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (ConstantRate(4), {}),
        (ClosedLoop(4), {}),
        (ConstantRate(4), {"duration_s": 10, "input_tokens": Normal(100, 10)}),
    ],
)
def test_what_it_can_not_do_is_refused(shape, changes):
    with pytest.raises(KitError):
        made(shape, **changes)
