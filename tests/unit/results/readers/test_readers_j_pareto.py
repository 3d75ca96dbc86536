"""Logs and CSV files of the published tuning method, written here as its programs print them."""

import pytest
from llmd_bench.files import Hints
from llmd_bench.readers import read

MODEL = Hints(gpu="MI300X", model="gpt-oss-120b")


def bench(output, total, **extra):
    printed = {
        "Mean TTFT (ms)": 412.5,
        "Median TTFT (ms)": 400.1,
        "P99 TTFT (ms)": 990.0,
        "Mean TPOT (ms)": 9.5,
        **extra,
    }
    lines = "\n".join(f"{name + ':':<40} {value}" for name, value in printed.items())
    return f"""============ Serving Benchmark Result ============
Successful requests:                     200
Benchmark duration (s):                  64.00
Total input tokens:                      819200
Total generated tokens:                  51200
Request throughput (req/s):              3.12
Output token throughput (tok/s):         {output}
Peak output token throughput (tok/s):    99999.00
Total Token throughput (tok/s):          {total}
{lines}
==================================================
"""


def log(*runs, workload="decode"):
    load = f"workload={workload} isl=4096 osl=256"
    config = f"CONFIG: model=openai/gpt-oss-120b tp=2 dp=1 gpu_count=2 ep=false {load}"
    calibration = f"CALIBRATION: concurrency=4 num_prompts=20\n{bench(1.0, 17.0)}"
    return "\n".join(["PD_CONFIG_START", config, calibration, *runs, "PD_CONFIG_END"])


def run(concurrency, text, end=True):
    ended = f"BENCH_RUN_END: concurrency={concurrency}\n" if end else ""
    return f"BENCH_RUN: concurrency={concurrency} tp=2\n{text}{ended}"


def read_text(tmp_path, text, name="pd-config-decode-tp2.log", hints=MODEL):
    path = tmp_path / name
    path.write_text(text)
    return read(path, hints)


def test_each_run_of_a_j_pareto_log_is_a_row_except_calibration(tmp_path):
    result = read_text(tmp_path, log(run(4, bench(772.0, 13124.0)), run(16, bench(1860.0, 31620.0))))
    assert not result.rejected
    assert [(row.concurrency, row.output_tokens_per_s) for row in result.rows] == [(4, 772), (16, 1860)]


def test_a_j_pareto_run_has_role_size_lengths_and_latencies(tmp_path):
    (row,) = read_text(tmp_path, log(run(4, bench(772.0, 13124.0)))).rows
    assert (row.subject, row.tensor_parallel_size, row.gpus_counted, row.topology) == ("decode", 2, 2, None)
    assert (row.input_tokens, row.output_tokens, row.input_tokens_per_s) == (4096, 256, 12352)
    assert (row.ttft_ms.mean, row.ttft_ms.p50, row.ttft_ms.p99, row.tpot_ms.mean) == (412.5, 400.1, 990, 9.5)
    assert "DecodeBenchConnector" in row.notes[0]


def test_an_aggregated_j_pareto_run_is_read_with_its_topology(tmp_path):
    (row,) = read_text(tmp_path, log(run(4, bench(772.0, 13124.0)), workload="aggregated")).rows
    assert (row.subject, row.topology) == ("end-to-end", "agg-tp2-1r")


def test_broken_runs_in_a_j_pareto_log_are_named_by_line_and_others_are_read(tmp_path):
    text = log(
        run(4, bench(772.0, 13124.0), end=False),
        run(8, "Traceback\n"),
        run(12, bench("n/a", 13124.0)),
        run(16, bench(1860.0, 31620.0)),
    )
    result = read_text(tmp_path, text)
    assert [row.concurrency for row in result.rows] == [16]
    assert [item.why for item in result.rejected] == [
        "the run with concurrency 4 has no end",
        "the run with concurrency 8 has no token throughput",
        "output token throughput is 'n/a', no number",
    ]
    lines = text.splitlines()
    assert all(lines[item.line - 1].startswith("BENCH_RUN: ") for item in result.rejected)


def test_a_j_pareto_sweep_is_read_with_its_topology_and_refused_without_gpus(tmp_path):
    config = "CONFIG: target=disagg-2p-tp1-1d-tp2 model=openai/gpt-oss-120b isl=4096 osl=256 gpu_count=4"
    text = "\n".join(["SWEEP_START", config, run(32, bench(2752.0, 46784.0))])
    (row,) = read_text(tmp_path, text).rows
    assert (row.subject, row.topology, row.gpus_counted) == ("end-to-end", "2p-tp1-1d-tp2", 4)
    uncounted = read_text(tmp_path, text.replace("disagg-2p-tp1-1d-tp2", "agg-tp4").replace("count=4", "count=0"))
    assert "how many GPUs" in uncounted.rejected[0].why


SCALING = """,Decode,ISL: 4096,OSL: 256,,,
,,,,,,
,GPUs,Concurrency,4,16
,,TP=1,468,1088
,1,TPSG,468,1088
,,TPSU,117,68

,,TTFT mean (ms),101.5,
,,TPOT mean (ms),8.5,14.7

,GPUs,Concurrency,4,16
,,TP=2,772,lots
,2,TPSG,386,930
,,TPSU,193,116
"""


def test_each_column_of_a_j_pareto_csv_file_is_a_row_and_no_numbers_named_by_line(tmp_path):
    result = read_text(tmp_path, SCALING, "decode_scaling.csv")
    assert [(row.tensor_parallel_size, row.concurrency, row.output_tokens_per_s) for row in result.rows] == [
        (1, 4, 468),
        (1, 16, 1088),
        (2, 4, 772),
    ]
    first = result.rows[0]
    assert (first.subject, first.gpus_counted, first.input_tokens, first.output_tokens) == ("decode", 1, 4096, 256)
    assert (first.ttft_ms.mean, first.tpot_ms.mean, result.rows[1].ttft_ms.mean) == (101.5, 8.5, None)
    (rejected,) = result.rejected
    assert (rejected.line, rejected.why) == (12, "TP=2 at concurrency 16 is 'lots', no number")


def test_input_tokens_are_separated_from_j_paretos_total_prefill_throughput(tmp_path):
    text = SCALING.replace("Decode", "Prefill").replace("OSL: 256", "OSL: 1").replace("lots", "5")
    row = read_text(tmp_path, text, "prefill_scaling.csv").rows[0]
    assert row.subject == "prefill"
    assert row.input_tokens_per_s == pytest.approx(468 * 4096 / 4097)


def test_lengths_of_a_deployments_csv_file_must_be_given_as_hints(tmp_path):
    text = """,disagg-3p-tp1-1d-tp2,GPUs: 5
,Concurrency,4,16
,Output tok/s,700,1900
,TPSG,140,380
,TPSU,175,119
,TTFT mean (ms),200.5,310.0
"""
    assert len(read_text(tmp_path, text, "disagg-3p-tp1-1d-tp2.csv").rejected) == 2
    hints = Hints(gpu="MI300X", model="gpt-oss-120b", input_tokens=4096, output_tokens=256)
    rows = read_text(tmp_path, text, "disagg-3p-tp1-1d-tp2.csv", hints).rows
    assert [(row.topology, row.gpus_counted, row.tpsg, row.ttft_ms.mean) for row in rows] == [
        ("3p-tp1-1d-tp2", 5, 140, 200.5),
        ("3p-tp1-1d-tp2", 5, 380, 310.0),
    ]
