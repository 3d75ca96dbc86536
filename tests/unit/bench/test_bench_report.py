import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_deployment import Answer, measured
from llmd_base.row import Basis
from llmd_bench.report import build_report, summarize_result, to_yaml
from llmd_bench.report_format import BenchmarkReport
from llmd_bench.reports import BenchmarkReportV01, store
from llmd_bench.smoke import SmokeResult, smoke
from llmd_bench.smoke_request import Check, SmokeLimits
from llmd_bench.tables import checks_table, render
from llmd_oke.values import read_yaml
from pydantic import ValidationError
from rich.console import Console, ConsoleRenderable

GUIDE = Path(__file__).parent / "data/published-guide-report-v0.1.yaml"


def test_the_llm_d_guides_published_report_defines_tpot_without_the_first_token():
    metrics = BenchmarkReportV01.model_validate(read_yaml(GUIDE)).metrics
    latency = metrics.latency
    assert metrics.requests.total == 5400
    assert latency.time_per_output_token.mean == pytest.approx(0.00832535, rel=1e-6)
    assert latency.time_to_first_token.p95 == pytest.approx(2.9816138, rel=1e-6)
    assert metrics.throughput.output_tokens_per_sec / 16 == pytest.approx(764.8, abs=0.05)
    tokens_after_first = metrics.requests.output_length.p50 - 1
    typical_s = latency.time_to_first_token.p50 + latency.time_per_output_token.p50 * tokens_after_first
    assert typical_s == pytest.approx(latency.request_latency.p50, rel=0.02)


@pytest.fixture(scope="module")
def result() -> SmokeResult:
    return measured(
        thresholds=SmokeLimits(min_remote_prefill_share=0.95, max_ttft_p95_ms=1e9),
        basis=Basis.CALIBRATED,
        simulated=("vLLM",),
        time_scale=0.1,
        facts={"cost_usd_per_hour": 24.0},
        headers={"authorization": "Bearer s3cret"},
    )


def test_a_benchmark_report_is_read_back_as_written_even_with_infinite_concurrency(result):
    written = to_yaml(build_report(result, experiment="e", cluster="c"))
    content = yaml.safe_load(written)
    assert to_yaml(BenchmarkReport.model_validate(content)) == written
    content["scenario"]["load"]["standardized"]["concurrency"] = float("inf")
    assert BenchmarkReport.model_validate(content).scenario.load.standardized.concurrency == float("inf")


@pytest.fixture(scope="module")
def report(result: SmokeResult) -> Any:
    """The report of the result as a reader of its YAML sees it."""
    return yaml.safe_load(to_yaml(build_report(result)))


def test_a_benchmark_report_lists_the_servers_by_role_and_the_routers_versions(report):
    stack = report["scenario"]["stack"]
    parts = [part["standardized"] for part in stack]
    assert [part["kind"] for part in parts] == ["inference_engine", "inference_engine", "generic", "generic"]
    servers = [(part["role"], part["replicas"], part["accelerator"]) for part in parts[:2]]
    assert [(role, count, gpus["parallelism"]["tp"]) for role, count, gpus in servers] == [
        ("prefill", 2, 1),
        ("decode", 1, 2),
    ]
    assert [gpus["count"] for *_, gpus in servers] == [1, 2]
    assert (parts[2]["tool"], parts[2]["tool_version"]) == ("llm-d-inference-scheduler", "v0.7.1")
    assert stack[1]["native"]["args"] == {"--block-size": 16}


def test_a_benchmark_report_states_simulated_parts_basis_and_time_scale(report):
    provenance = {"numbers": "calibrated", "simulated": ["vLLM"], "time_scale": 0.1}
    assert report["results"]["observability"]["llmd_oke"]["provenance"] == provenance
    assert {"simulated", "provenance=calibrated", "time_scale=0.1"} <= set(report["run"]["keywords"])
    assert "wall time divided by it" in report["run"]["description"]


def test_a_benchmark_report_has_the_remote_prefill_share_and_its_counters(report):
    facts = report["results"]["observability"]["llmd_oke"]
    assert facts["remote_prefill"]["share"] == 1
    counter = facts["remote_prefill"]["counters"]["prefill prompt tokens"]
    assert counter["after"] - counter["before"] == counter["change"] == 8 * 64
    assert facts["facts"] == {"cost_usd_per_hour": 24.0}


def test_benchmark_reports_give_equal_loads_one_id_and_each_server_role_its_own(result):
    first, second = build_report(result), build_report(result)
    assert first.scenario.load.metadata.cfg_id == second.scenario.load.metadata.cfg_id
    prefill, decode, *_ = first.scenario.stack
    assert prefill.metadata.cfg_id != decode.metadata.cfg_id


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{version: '0.3', run: {uid: a}, results: {}}", "version"),
        ("{version: '0.2', run: {uid: a}, results: {}, extra: 1}", r"extra\n +Extra inputs"),
        ("{version: '0.2', run: {}, results: {}}", r"run\.uid\n +Field required"),
        (
            "{version: '0.2', run: {uid: a}, results: {request_performance: {aggregate: {latency: "
            "{time_to_first_token: {units: tokens/s, mean: 1}}}}}}",
            "must be one of s, ms",
        ),
    ],
)
def test_a_document_that_violates_the_format_of_benchmark_reports_is_refused(content, why):
    with pytest.raises(ValidationError, match=why):
        BenchmarkReport.model_validate(yaml.safe_load(content))


def test_the_link_latest_leads_to_the_newest_stored_benchmark(result, tmp_path):
    early, late = (datetime(2026, 3, day, 12, tzinfo=UTC) for day in (1, 2))
    store(result, tmp_path, "dev", model="gpt-oss-120b", started=early)
    stored = store(result, tmp_path, "dev", model="gpt-oss-120b", started=late)
    assert stored.folder == tmp_path / "dev" / "20260302T120000Z"
    assert (tmp_path / "dev/latest").resolve() == stored.folder
    assert stored.report.name == "benchmark_report_v0.2,_smoke.yaml"
    assert read_yaml(stored.report)["run"]["uid"] == result.run
    assert json.loads(stored.summary.read_text())["passed"] is True
    lines = [json.loads(line) for line in stored.requests.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(8))
    assert {path.name for path in (tmp_path / "dev").iterdir()} == {"20260301T120000Z", "20260302T120000Z", "latest"}


def test_benchmarks_of_one_stacks_models_are_stored_in_one_folder(result, tmp_path):
    folders = [store(result, tmp_path, "dev", model="gpt-oss-120b", part=part).folder for part in ("a", "b")]
    assert folders[0].parent == folders[1].parent == (tmp_path / "dev/latest").resolve()


def test_no_file_of_a_stored_benchmark_contains_the_clients_credential(result, tmp_path):
    stored = store(result, tmp_path, "dev", model="gpt-oss-120b")
    assert not [path for path in stored.folder.iterdir() if "s3cret" in path.read_text()]
    assert "s3cret" not in repr(result)


def test_a_benchmark_summary_is_plain_json(result):
    summary = summarize_result(result)
    assert json.loads(json.dumps(summary)) == summary
    assert set(summary["performance"]["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99", "max"}


def shown(content: ConsoleRenderable, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(content)
    return captured.get()


@pytest.mark.parametrize("width", [80, 100])
def test_tables_of_a_benchmark_result_fit_the_terminal_and_omit_no_result(result, width):
    text = shown(render(result), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("TTFT", "TPSG", "TPSU", "Remote prefill: 100.0% of 8 prompts", "pass", "calibrated", "p99"):
        assert word in text
    assert "…" not in text


def test_a_table_of_checks_with_a_long_limit_fits_80_columns_with_its_evidence():
    checks = (Check("output", "at least", 1_000_000.0, 1072.9, "tokens/s", "4096 tokens in 3.8 s"),)
    lines = shown(checks_table(checks), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.rstrip()[-1] in "│┓┩┘┃" for line in lines[1:])
    assert "4096 tokens in 3.8 s" in " ".join(line.split("│")[-2].strip() for line in lines if "│" in line)


async def test_a_failed_check_of_a_benchmark_is_shown_with_the_servers_error(deployment):
    deployment.script = lambda number: Answer(status=503) if number > 5 else Answer()
    text = shown(render(await smoke(deployment.plan())), 100)
    assert "FAIL" in text
    assert "no healthy upstream" in " ".join(text.split())
