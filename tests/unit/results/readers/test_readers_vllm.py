import json

import pytest
from llmd_bench.files import Hints
from llmd_bench.readers import read
from results_rows import NAMES

HINTS = Hints(gpu="MI300X", topology="agg-tp2-1r", names=NAMES)

RESULT = {
    "date": "20260301-120000",
    "backend": "openai",
    "model_id": "openai/gpt-oss-120b",
    "num_prompts": 200,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 64.0,
    "completed": 200,
    "total_input_tokens": 819200,
    "total_output_tokens": 51200,
    "request_throughput": 3.125,
    "output_throughput": 800.0,
    "total_token_throughput": 13600.0,
    "mean_ttft_ms": 400.0,
    "median_ttft_ms": 380.0,
    "p99_ttft_ms": 900.0,
    "mean_tpot_ms": 16.0,
    "mean_itl_ms": 16.5,
    "p99_itl_ms": 80.0,
    "mean_e2el_ms": 4480.0,
}


def read_one(tmp_path, hints=HINTS, **changes):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    return read(path, hints)


def test_a_vllm_benchmark_result_is_read_as_one_row(tmp_path):
    (row,) = read_one(tmp_path).rows
    assert (row.model, row.topology, row.gpus_counted) == ("gpt-oss-120b", "agg-tp2-1r", 2)
    assert (row.input_tokens, row.output_tokens, row.output_tokens_per_s) == (4096, 256, 800)
    assert (row.ttft_ms.mean, row.ttft_ms.p50, row.ttft_ms.p95, row.itl_ms.p99) == (400, 380, None, 80)
    assert (row.e2e_ms.mean, row.duration_s, row.requests, row.failures) == (4480, 64, 200, 0)
    assert row.tpsg == 400


@pytest.mark.parametrize(
    ("changes", "arrival", "offered", "concurrency"),
    [
        ({}, "closed", None, 16),
        ({"request_rate": 4096.0}, "closed", None, 16),
        ({"request_rate": 3.2, "max_concurrency": None}, "poisson", 3.2, 14),
        ({"max_concurrency": None}, "closed", None, 200),
    ],
)
def test_a_vllm_results_load_level_is_its_request_rate_or_its_concurrency(
    tmp_path, changes, arrival, offered, concurrency
):
    (row,) = read_one(tmp_path, **changes).rows
    assert (row.arrival, row.offered_requests_per_s) == (arrival, offered)
    assert row.concurrency == pytest.approx(concurrency)


def test_bursty_arrivals_of_vllm_bench_do_not_count_as_poisson(tmp_path):
    result = read_one(tmp_path, request_rate=3.2, max_concurrency=None, burstiness=0.5)
    assert "how requests arrive" in result.rejected[0].why


def test_uncompleted_requests_in_a_vllm_result_count_as_failed_and_all_reject_it(tmp_path):
    (row,) = read_one(tmp_path, completed=190).rows
    assert (row.requests, row.failures) == (200, 10)
    assert read_one(tmp_path, completed=0).rejected[0].why == "no request was answered"


def test_hints_give_the_server_role_of_a_vllm_result_that_has_no_metadata_of_it(tmp_path):
    hints = Hints(gpu="H200", gpus=2, tensor_parallel_size=2, subject="decode")
    (row,) = read_one(tmp_path, hints).rows
    assert (row.subject, row.tensor_parallel_size) == ("decode", 2)
    (row,) = read_one(tmp_path, topology="agg-tp4-1r", gpus="4").rows
    assert (row.topology, row.gpus_counted) == ("agg-tp4-1r", 4)


def test_vllm_results_appended_to_one_file_are_read_by_line_and_bad_lines_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(f"{json.dumps(RESULT)}\n{{\n{json.dumps({**RESULT, 'duration': 'long'})}\n{json.dumps(RESULT)}\n")
    result = read(path, HINTS)
    assert [row.origin.line for row in result.rows] == [1, 4]
    assert [(item.line, item.why) for item in result.rejected] == [
        (2, "is no JSON object"),
        (3, "duration is 'long', no number"),
    ]
