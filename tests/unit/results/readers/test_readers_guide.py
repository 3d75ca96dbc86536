"""The guide's published report, read into a row that says what its table prints: to the last printed digit."""

from pathlib import Path

import pytest
from llmd_bench.files import Hints
from llmd_bench.readers import read
from results_rows import NAMES

PUBLISHED = Path(__file__).resolve().parents[2] / "bench/data/published-guide-report-v0.1.yaml"

CELLS = {
    "itl_ms": {"mean": "8.325", "p50": "0.0063", "p90": "35.924", "p95": "67.474", "p99": "121.141"},
    "tpot_ms": {"mean": "8.3253", "min": "4.8866", "p50": "8.3311", "p90": "8.9027", "p95": "9.1008", "p99": "9.6301"},
    "ttft_ms": {"mean": "1443.921", "min": "212.616", "p25": "837.210", "p50": "1264.040", "p75": "1824.831"},
    "e2e_ms": {"mean": "3538.495", "min": "1506.207", "p50": "3356.982", "p90": "4574.966", "p99": "6531.728"},
}
TAILS = {
    "itl_ms": {"p99p9": "187.052", "max": "364.390"},
    "tpot_ms": {"max": "10.5712"},
    "ttft_ms": {"p90": "2477.697", "p95": "2981.614", "p99": "4425.801", "max": "9166.204"},
    "e2e_ms": {"p95": "5085.290", "max": "11119.199"},
}


@pytest.fixture(scope="module")
def guide():
    result = read(PUBLISHED, Hints(gpu="H200", topology="8p-tp1-2d-tp4", names=NAMES))
    assert not result.rejected
    return result.rows[0]


@pytest.mark.parametrize("name", CELLS)
def test_latencies_of_the_llm_d_guides_report_are_read_as_published(guide, name):
    printed = CELLS[name] | TAILS[name]
    read_values = {quantile: getattr(getattr(guide, name), quantile) for quantile in printed}
    assert printed == {
        quantile: f"{value:.{len(printed[quantile].split('.')[1])}f}" for quantile, value in read_values.items()
    }


def test_rates_counts_and_model_of_the_llm_d_guides_report_are_read_as_published(guide):
    assert (guide.requests, guide.failures, guide.offered_requests_per_s) == (5400, 0, 45)
    assert f"{guide.output_tokens_per_s:.1f}" == "12236.6"
    assert f"{guide.input_tokens_per_s + guide.output_tokens_per_s:.1f}" == "236554.8"
    assert f"{guide.achieved_requests_per_s:.3f}" == "43.545"
    assert f"{guide.duration_s:.3f}" == "119.977"
    assert (f"{guide.input_tokens:.1f}", f"{guide.output_tokens:.1f}") == ("5151.4", "281.0")
    assert guide.gpus_counted == 16
    assert (f"{guide.tpsg:.1f}", f"{guide.tpsu:.0f}", f"{guide.tpsu_decode:.0f}") == ("764.8", "79", "120")
    assert f"{guide.concurrency:.0f}" == "154"
    assert (guide.model, guide.arrival, guide.origin.tool) == ("gpt-oss-120b", "constant", "inference-perf")


def test_a_benchmark_report_without_gpu_facts_is_rejected_and_hints_are_requested():
    result = read(PUBLISHED, Hints(names=NAMES))
    assert not result.rows
    assert "which GPU" in result.rejected[0].why
    assert "how many GPUs" in result.rejected[0].why
