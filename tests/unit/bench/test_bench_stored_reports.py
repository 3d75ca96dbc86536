import pytest
from fake_deployment import measured
from llmd_base.row import Basis
from llmd_bench.load.records import read_lines
from llmd_bench.readers import read
from llmd_bench.report import build_report
from llmd_bench.reports import REPORT_FILE, REPORT_FILE_V01, BenchmarkReportV01, StoredReport, store, to_v01
from llmd_bench.rows import smoke_row, split_copies
from llmd_bench.smoke import SmokeResult
from llmd_oke.values import read_yaml

FACTS = {"config_hash": "3f9a01c2", "price_usd_per_hour": 24.0}


@pytest.fixture(scope="module")
def result() -> SmokeResult:
    return measured(basis=Basis.CALIBRATED, facts=FACTS)


@pytest.fixture(scope="module")
def stored(result: SmokeResult, tmp_path_factory: pytest.TempPathFactory) -> StoredReport:
    return store(result, tmp_path_factory.mktemp("reports"), "dev", model="gpt-oss-120b")


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
    assert [len(record.event_times_s) for _, record in kept] == [len(item.event_times_s) for item in result.records]


def test_a_report_without_request_performance_cannot_be_converted_to_version_0_1(result):
    report = build_report(result)
    nothing = report.results.model_copy(update={"request_performance": None})
    assert to_v01(report.model_copy(update={"results": nothing})) is None


def test_the_number_of_copies_is_parsed_from_a_topologys_name():
    assert split_copies("agg-tp1-16r") == (1, "agg-tp1-16r")
    assert split_copies("4 x 8p-tp1-4d-tp2") == (4, "8p-tp1-4d-tp2")
