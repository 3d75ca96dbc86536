import json

import pytest
import yaml
from llmd_base.errors import KitError
from llmd_bench.files import Hints
from llmd_bench.load.workload import ClosedLoop, ConstantRate, Fixed, LoadShape, Normal, PoissonRate
from llmd_bench.readers import read
from llmd_bench.readers.inference_perf import ToolLoad, config
from results_rows import NAMES

HINTS = Hints(gpu="MI300X", topology="8p-tp1-2d-tp4", names=NAMES)


def statistics(mean, **others):
    return {"mean": mean, "min": mean / 2, "median": mean * 0.9, "p95": mean * 2, "p99.9": None, **others}


def stage(**load):
    return {
        "load_summary": {"count": 100, "send_duration": 10.0, "schedule_delay": statistics(0.001), **load},
        "successes": {
            "count": 98,
            "latency": {
                "request_latency": statistics(3.5),
                "time_to_first_token": statistics(1.4),
                "time_per_output_token": statistics(0.008),
                "inter_token_latency": None,
            },
            "throughput": {
                "input_tokens_per_sec": 50000.0,
                "output_tokens_per_sec": 2500.0,
                "total_tokens_per_sec": 52500.0,
                "requests_per_sec": 10.0,
            },
            "prompt_len": statistics(5000.0),
            "output_len": statistics(250.0),
        },
        "failures": {"count": 2},
    }


CONFIG = {
    "server": {"type": "vllm", "model_name": "openai/gpt-oss-120b"},
    "load": {"type": "constant", "stages": [{"rate": 5.0, "duration": 10}, {"rate": 10.0, "duration": 10}]},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    for number in (0, 1):
        (tmp_path / f"stage_{number}_lifecycle_metrics.json").write_text(json.dumps(stage()))
    (tmp_path / "summary_lifecycle_metrics.json").write_text(json.dumps(stage()))
    return tmp_path


def test_each_stage_of_inference_perf_is_a_row_with_model_and_arrival_of_its_config(folder):
    result = read(folder, HINTS)
    assert not result.rejected
    assert [row.offered_requests_per_s for row in result.rows] == [5, 10]
    row = result.rows[0]
    assert (row.ttft_ms.mean, row.ttft_ms.p50, row.ttft_ms.p95) == pytest.approx((1400, 1260, 2800))
    assert (row.ttft_ms.p99p9, row.itl_ms.mean) == (None, None)
    assert (row.model, row.arrival, row.gpus_counted) == ("gpt-oss-120b", "constant", 16)
    assert (row.requests, row.failures, row.input_tokens, row.concurrency) == (100, 2, 5000, 35)


def test_newer_inference_perf_releases_count_tokens_under_another_name(folder):
    content = stage(requested_rate=7.0)
    content["successes"]["prompt_tokens"] = {"total": 1, "cached": 0, **statistics(4000.0)}
    (folder / "stage_0_lifecycle_metrics.json").write_text(json.dumps(content))
    row = read(folder, HINTS).rows[0]
    assert (row.input_tokens, row.offered_requests_per_s) == (4000, 7)


def test_a_concurrent_inference_perf_stage_is_read_as_a_closed_loop(folder):
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "load": {"type": "concurrent"}}))
    (folder / "stage_0_lifecycle_metrics.json").write_text(json.dumps(stage(concurrency=64)))
    row = read(folder / "stage_0_lifecycle_metrics.json", HINTS).rows[0]
    assert (row.arrival, row.concurrency, row.offered_requests_per_s) == ("closed", 64, None)


def test_inference_perf_results_without_configuration_require_the_model_as_a_hint(folder):
    (folder / "config.yaml").unlink()
    result = read(folder, HINTS)
    assert len(result.rejected) == 2
    assert "the model (model)" in result.rejected[0].why


def made(shape: LoadShape, **changes) -> dict:
    load = {"input_tokens": Fixed(5000), "output_tokens": Fixed(250), **changes}
    told = ToolLoad("http://gpt", "openai/gpt-oss-120b", shape, **load)
    return config(told, results="/results", tokenizer="openai/gpt-oss-120b", workers=45, worker_concurrency=100)


def test_a_load_is_written_as_the_inference_perf_profile_of_llm_ds_guide():
    """llm-d-benchmark, profile guide_pd-disaggregation_1."""
    told = made(ConstantRate(45), duration_s=120)
    load = {"type": "constant", "num_workers": 45, "worker_max_concurrency": 100}
    assert load.items() <= told["load"].items()
    assert told["load"]["stages"] == [{"rate": 45, "duration": 120}]
    assert told["api"] == {"type": "completion", "streaming": True}
    assert told["server"]["ignore_eos"] is True
    lengths = told["data"]["input_distribution"]  # for old and new releases
    assert lengths["type"] == "fixed"
    assert (lengths["min"], lengths["max"], lengths["mean"], lengths["std_dev"]) == (5000, 5000, 5000, 0)
    assert lengths["total_count"] > 45 * 120


def test_poisson_and_closed_loop_loads_have_own_load_types_in_inference_perf():
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
def test_loads_that_inference_perf_lacks_are_refused(shape, changes):
    with pytest.raises(KitError):
        made(shape, **changes)
