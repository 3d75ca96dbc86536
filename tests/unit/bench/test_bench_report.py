import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_deployment import Answer, measured
from llmd_base.row import Basis
from llmd_bench.load.records import read_lines
from llmd_bench.readers import read
from llmd_bench.report import build_report, summarize_result, to_yaml
from llmd_bench.report_format import BenchmarkReport
from llmd_bench.reports import REPORT_FILE, REPORT_FILE_V01, BenchmarkReportV01, StoredReport, store, to_v01
from llmd_bench.rows import smoke_row, split_copies
from llmd_bench.smoke import SmokeResult, smoke
from llmd_bench.smoke_request import Check, SmokeLimits
from llmd_bench.tables import checks_table, render
from llmd_oke.values import read_yaml
from pydantic import ValidationError
from rich.console import Console, ConsoleRenderable

FACTS = {"config_hash": "3f9a01c2", "price_usd_per_hour": 24.0}
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
        facts=FACTS,
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
    assert facts["facts"] == FACTS


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


@pytest.fixture(scope="module")
def stored(result: SmokeResult, tmp_path_factory: pytest.TempPathFactory) -> StoredReport:
    """The second of two stored results of one stack."""
    folder = tmp_path_factory.mktemp("reports")
    early, late = (datetime(2026, 3, day, 12, tzinfo=UTC) for day in (1, 2))
    store(result, folder, "dev", model="gpt-oss-120b", started=early)
    return store(result, folder, "dev", model="gpt-oss-120b", started=late)


def test_the_link_latest_leads_to_the_newest_stored_benchmark(result, stored):
    dev = stored.folder.parent
    assert (dev.name, stored.folder.name) == ("dev", "20260302T120000Z")
    assert (dev / "latest").resolve() == stored.folder
    assert stored.report.name == "benchmark_report_v0.2,_smoke.yaml"
    assert read_yaml(stored.report)["run"]["uid"] == result.run
    assert {path.name for path in dev.iterdir()} == {"20260301T120000Z", "20260302T120000Z", "latest"}


def test_benchmarks_of_one_stacks_models_are_stored_in_one_folder(result, tmp_path):
    folders = [store(result, tmp_path, "dev", model="gpt-oss-120b", part=part).folder for part in ("a", "b")]
    assert folders[0].parent == folders[1].parent == (tmp_path / "dev/latest").resolve()


def test_no_file_of_a_stored_benchmark_contains_the_clients_credential(result, stored):
    assert not [path for path in stored.folder.iterdir() if "s3cret" in path.read_text()]
    assert "s3cret" not in repr(result)


def test_a_stored_benchmarks_summary_is_plain_json(result, stored):
    summary = summarize_result(result)
    assert json.loads(stored.summary.read_text()) == summary
    assert summary["passed"] is True
    assert set(summary["performance"]["ttft_ms"]) == {"mean", "p50", "p90", "p95", "p99", "max"}


def test_both_versions_of_a_stored_benchmark_report_are_read_as_the_same_row(stored):
    new, old = (read(stored.folder / name).rows[0] for name in (REPORT_FILE, REPORT_FILE_V01))
    own = {"origin", "image", "duration_s"}
    assert new.model_dump(exclude=own) == old.model_dump(exclude=own)
    assert new.duration_s == pytest.approx(old.duration_s)
    older = read_yaml(stored.folder / REPORT_FILE_V01)
    assert (older["version"], BenchmarkReportV01.model_validate(older).metrics.requests.total) == ("0.1", 8)


def test_the_stored_row_of_a_benchmark_has_the_figures_of_its_report(result, stored):
    (row,) = read(stored.folder).rows
    (reported,) = read(stored.folder / REPORT_FILE).rows
    assert row == smoke_row(result, model="gpt-oss-120b")
    assert (row.ttft_ms, row.topology, row.gpus_counted) == (reported.ttft_ms, "2p-tp1-1d-tp2", 4)
    assert (row.basis, row.origin.config_hash, row.price_usd_per_hour) == (Basis.CALIBRATED, "3f9a01c2", 24)
    assert reported.origin.config_hash == "3f9a01c2"


def test_a_report_of_version_0_1_lists_servers_one_by_one_and_a_known_load_generator(result):
    scenario = to_v01(build_report(result)).scenario
    assert scenario["host"]["type"] == ["prefill", "prefill", "decode"]
    assert [item["count"] for item in scenario["host"]["accelerator"]] == [1, 1, 2]
    assert len(scenario["platform"]["engine"]) == 3
    assert (scenario["load"]["name"], scenario["load"]["metadata"]["tool"]) == ("nop", "llmd-oke")


def test_requests_of_a_benchmark_are_stored_with_the_time_of_each_stream_event(result, stored):
    kept = read_lines(stored.requests.read_text().splitlines())
    assert [record.index for _, record in kept] == list(range(8))
    assert [len(record.event_times_s) for _, record in kept] == [len(item.event_times_s) for item in result.records]


def test_a_report_without_request_performance_cannot_be_converted_to_version_0_1(result):
    report = build_report(result)
    nothing = report.results.model_copy(update={"request_performance": None})
    assert to_v01(report.model_copy(update={"results": nothing})) is None


def test_the_number_of_copies_is_parsed_from_a_topologys_name():
    assert split_copies("agg-tp1-16r") == (1, "agg-tp1-16r")
    assert split_copies("4 x 8p-tp1-4d-tp2") == (4, "8p-tp1-4d-tp2")


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
