import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from llmd_oke.bench.generator import crews, workers
from llmd_oke.bench.records.lines import read_lines
from llmd_oke.cli.main import app
from llmd_oke.errors import KitError
from llmd_oke.results.files import read_rows
from llmd_oke.results.row import Basis
from typer.testing import CliRunner

SHORT = ["--input-tokens", "8", "--output-tokens", "50", "--rest", "0"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "llmd_oke.bench.proving.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_a_sweep_is_shown_and_written(url, tmp_path):
    files = ["--output", str(tmp_path / "requests.jsonl"), "--rows", str(tmp_path / "rows.jsonl")]
    known = ["--gpu", "MI300X", "--gpus", "8", "--simulated", "vLLM"]
    ran = bench("--url", url, "--shape", "closed:1,2", "--requests", "2", *SHORT, *files, *known)
    assert ran.exit_code == 0, ran.output
    assert "calibrated" in ran.stdout
    requests = read_lines((tmp_path / "requests.jsonl").read_text().splitlines())
    assert sorted((stage, record.index) for stage, record in requests) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [(row.concurrency, row.gpus_counted, row.basis) for row in rows] == [
        (1, 8, Basis.CALIBRATED),
        (2, 8, Basis.CALIBRATED),
    ]


def test_json_has_each_stage_with_the_generators_own_health(url):
    ran = bench("--url", url, "--shape", "constant:20", "--requests", "2", *SHORT, "--json")
    (stage,) = json.loads(ran.stdout)["stages"]
    assert (stage["load"], stage["requests"], stage["planned"], stage["failures"]) == ("constant:20", 2, 2, [])
    assert stage["ttft_ms"]["mean"] >= 100
    assert stage["generator"]["slip_ms"]["p99"] >= 0


def test_a_run_without_any_success_fails_and_says_why():
    ran = bench("--url", "http://127.0.0.1:9", "--model", "m", "--shape", "closed:1", "--requests", "1", *SHORT)
    assert ran.exit_code == 1
    assert "1 x connection" in ran.stderr


@pytest.mark.parametrize(
    ("choice", "said"),
    [([], "Give --stack or --url."), (["--url", "http://127.0.0.1:9", "--stack", "s"], "both say what to load")],
)
def test_one_thing_is_loaded(choice, said):
    ran = bench("--shape", "closed:1", "--requests", "1", *choice)
    assert said in str(ran.exception)


def test_a_stage_of_which_not_all_was_sent_has_no_row_and_fails(url, tmp_path):
    rows = tmp_path / "rows.jsonl"
    known = ["--gpu", "MI300X", "--gpus", "8", "--rows", str(rows)]
    stages = ["--shape", "constant:0.001", "--shape", "closed:2", "--requests", "3"]
    ran = bench("--url", url, *stages, *SHORT, *known, "--limit", "100s")
    assert ran.exit_code == 1
    said = " ".join(ran.stderr.split())
    assert "No measurement: constant:0.001: 2 of 3 requests were not sent within the time limit Requests" in said
    assert [row.concurrency for row in read_rows(rows)] == [2]


def test_a_stage_that_was_not_begun_in_time_is_told_and_fails(url):
    ran = bench("--url", url, "--shape", "closed:1,2", "--requests", "300", *SHORT, "--limit", "1s")
    assert ran.exit_code == 1
    assert "within the time limit; closed:2: not begun" in " ".join(ran.stderr.split())


def test_a_stage_that_is_measured_at_the_second_try_says_so_and_leaves_one_set_of_requests(url, tmp_path, monkeypatch):
    output, begun = tmp_path / "requests.jsonl", []
    monkeypatch.setattr(crews, "work", lambda *given: workers.work(*given) if len(begun) > 1 else os._exit(3))
    fork = crews.Crew._fork
    monkeypatch.setattr(crews.Crew, "_fork", lambda *given: begun.append(given) or fork(*given))
    ran = bench("--url", url, "--shape", "closed:1", "--requests", "2", *SHORT, "--output", str(output), "--json")
    assert ran.exit_code == 0, ran.output
    assert "measured at the second try; the first: process 1 ended with code 3" in " ".join(ran.stderr.split())
    assert [record.index for _, record in read_lines(output.read_text().splitlines())] == [0, 1]


def test_ctrl_c_keeps_the_requests_until_then_and_no_row(url, tmp_path):
    output, rows = tmp_path / "requests.jsonl", tmp_path / "rows.jsonl"
    arguments = ["--url", url, "--shape", "closed:1", "--duration", "60", *SHORT, "--output", str(output), "--json"]
    arguments += ["--gpu", "MI300X", "--gpus", "8", "--rows", str(rows)]
    command = ["env", "--default-signal=INT", sys.executable, "-m", "llmd_oke", "bench", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "requests 1" in line:
                break
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=30)
    (stage,) = json.loads(told)["stages"]
    assert process.returncode == 130, said
    assert stage["interrupted"]
    assert stage["requests"] == len(read_lines(output.read_text().splitlines())) > 0
    assert "No measurement: closed:1: interrupted" in " ".join(said.split())
    assert not rows.exists()


def test_rows_that_could_not_be_written_are_refused_before_anything_is_sent(url, tmp_path):
    (tmp_path / "file").write_text("")
    output = tmp_path / "requests.jsonl"
    files = ["--output", str(output), "--rows", str(tmp_path / "file" / "rows.jsonl")]
    ran = bench("--url", url, "--shape", "closed:1", "--requests", "1", *SHORT, *files)
    assert isinstance(ran.exception, KitError)
    assert not output.exists()


@pytest.mark.parametrize("wrong", [[], ["--requests", "1", "--trim", "some"]], ids=["without end", "trim"])
def test_a_refused_load_leaves_files_as_they_are(url, tmp_path, wrong):
    output = tmp_path / "requests.jsonl"
    output.write_text("an earlier run\n")
    ran = bench(
        "--url", url, "--shape", "closed:1", *SHORT, *wrong, "--output", str(output), "--rows", f"{tmp_path}/r/r"
    )
    assert isinstance(ran.exception, KitError)
    assert (output.read_text(), (tmp_path / "r").exists()) == ("an earlier run\n", False)


def test_a_dry_run_without_pods_is_refused():
    ran = bench("--shape", "closed:1", "--requests", "1", "--stack", "s", "--dry-run")
    assert "Give --in-cluster too" in str(ran.exception)
