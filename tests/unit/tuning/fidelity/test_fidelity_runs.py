"""The published runs against the sources that tests hold."""

from pathlib import Path

import pytest
import yaml
from llmd_oke.tuning.fidelity.runs import published_runs

REPORT = Path(__file__).parents[2] / "bench" / "data" / "published-guide-report-v0.1.yaml"


@pytest.fixture(name="guide")
def guide_fixture():
    return next(run.row for run in published_runs("gpt-oss-120b", "H200") if run.row.topology == "8p-tp1-2d-tp4")


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("ttft_ms", "time_to_first_token"),
        ("tpot_ms", "time_per_output_token"),
        ("itl_ms", "inter_token_latency"),
        ("e2e_ms", "request_latency"),
    ],
)
def test_latencies_of_the_guide_are_those_of_its_report(guide, field, key):
    source = yaml.safe_load(REPORT.read_text())["metrics"]["latency"][key]
    told = getattr(guide, field).model_dump(exclude_none=True)
    assert told == pytest.approx({name: 1000 * source[name] for name in told}, rel=1e-3)


def test_throughput_of_the_guide_is_that_of_its_report(guide):
    source = yaml.safe_load(REPORT.read_text())["metrics"]["throughput"]
    assert guide.output_tokens_per_s == pytest.approx(source["output_tokens_per_sec"], rel=1e-3)
    assert guide.concurrency == pytest.approx(source["requests_per_sec"] * (guide.e2e_ms.mean or 0) / 1000, rel=2e-3)


def test_runs_of_a_model_are_its_own():
    runs = published_runs("gpt-oss-120b", "H200")
    assert {(run.row.model, run.row.gpu) for run in runs} == {("gpt-oss-120b", "H200")}
    assert len(published_runs("llama-3.3-70b-instruct-fp8-dynamic", "MI300X")) == 16
