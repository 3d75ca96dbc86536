"""`llmd-oke bench` against a server of its own: what it shows, writes, refuses and never tells."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server
from llmd_base.addresses import HttpEndpoint
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.files import ReadResults, Rejection, read_rows
from llmd_bench.load import processes
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.records import read_lines
from llmd_oke.cli.bench import TOKEN_VARIABLE, TargetOptions, as_yaml, target_of_stack, target_of_url
from llmd_oke.cli.main import app
from llmd_oke.operations import cluster_access, load
from llmd_oke.operations.load import StoredLoad
from typer.testing import CliRunner

PROJECT = Path(__file__).parents[4]
SHORT = ["--input-tokens", "8", "--output-tokens", "50", "--rest", "0"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, str(PROJECT / "dev" / "exact_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


def run_bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_bench_shows_a_sweep_of_loads_and_writes_its_rows(url, tmp_path):
    files = ["--output", str(tmp_path / "requests.jsonl"), "--rows", str(tmp_path / "rows.jsonl")]
    known = ["--gpu", "MI300X", "--gpus", "8", "--simulated", "vLLM"]
    ran = run_bench("--url", url, "--shape", "closed:1,2", "--requests", "2", *SHORT, *files, *known)
    assert ran.exit_code == 0, ran.output
    assert "calibrated" in ran.stdout
    requests = read_lines((tmp_path / "requests.jsonl").read_text().splitlines())
    assert sorted((stage, record.index) for stage, record in requests) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = read_rows(tmp_path / "rows.jsonl")
    told = [(row.concurrency, row.gpus_counted, row.basis) for row in rows]
    assert told == [(1, 8, Basis.CALIBRATED), (2, 8, Basis.CALIBRATED)]


def test_bench_json_has_each_load_stage_and_the_health_of_the_load_generator(url):
    ran = run_bench("--url", url, "--shape", "constant:20", "--requests", "2", *SHORT, "--json")
    (stage,) = json.loads(ran.stdout)["stages"]
    assert (stage["load"], stage["requests"], stage["planned"], stage["failures"]) == ("constant:20", 2, 2, [])
    assert stage["ttft_ms"]["mean"] >= 100
    assert stage["generator"]["slip_ms"]["p99"] >= 0


def test_bench_without_a_successful_request_exits_with_1_and_the_failures_kind():
    ran = run_bench("--url", "http://127.0.0.1:9", "--model", "m", "--shape", "closed:1", "--requests", "1", *SHORT)
    assert ran.exit_code == 1
    assert "1 x connection" in ran.stderr


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ([], "Give --stack or --url."),
        (["--url", "http://127.0.0.1:9", "--stack", "s"], "both say what to load"),
        (["--stack", "s", "--dry-run"], "Give --in-cluster too"),
    ],
)
def test_bench_refuses_missing_or_contradictory_options_for_what_to_load(choice, said):
    ran = run_bench("--shape", "closed:1", "--requests", "1", *choice)
    assert said in str(ran.exception)


def test_bench_writes_no_row_for_an_incompletely_sent_load_stage_and_exits_with_1(url, tmp_path):
    rows = tmp_path / "rows.jsonl"
    known = ["--gpu", "MI300X", "--gpus", "8", "--rows", str(rows)]
    stages = ["--shape", "constant:0.001", "--shape", "closed:2", "--requests", "3"]
    ran = run_bench("--url", url, *stages, *SHORT, *known, "--limit", "100s")
    assert ran.exit_code == 1
    said = " ".join(ran.stderr.split())
    assert "No measurement: constant:0.001: 2 of 3 requests were not sent within the time limit Requests" in said
    assert [row.concurrency for row in read_rows(rows)] == [2]


def test_bench_exits_with_1_if_a_load_stage_did_not_start_within_the_time_limit(url):
    ran = run_bench("--url", url, "--shape", "closed:1,2", "--requests", "300", *SHORT, "--limit", "1s")
    assert ran.exit_code == 1
    assert "within the time limit; closed:2: not begun" in " ".join(ran.stderr.split())


def test_bench_reports_a_repeated_load_stage_and_keeps_its_second_requests(url, tmp_path, monkeypatch):
    output, begun = tmp_path / "requests.jsonl", []
    work = processes.work
    monkeypatch.setattr(processes, "work", lambda *given: work(*given) if len(begun) > 1 else os._exit(3))
    fork = processes.WorkerGroup._fork
    monkeypatch.setattr(processes.WorkerGroup, "_fork", lambda *given: begun.append(given) or fork(*given))
    ran = run_bench("--url", url, "--shape", "closed:1", "--requests", "2", *SHORT, "--output", str(output), "--json")
    assert ran.exit_code == 0, ran.output
    assert "measured at the second try; the first: process 1 ended with code 3" in " ".join(ran.stderr.split())
    assert [record.index for _, record in read_lines(output.read_text().splitlines())] == [0, 1]


def test_ctrl_c_during_bench_stores_the_requests_so_far_and_no_row(url, tmp_path):
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


def test_bench_refuses_an_unwritable_output_file_before_it_sends_requests(url, tmp_path):
    (tmp_path / "file").write_text("")
    output = tmp_path / "requests.jsonl"
    files = ["--output", str(output), "--rows", str(tmp_path / "file" / "rows.jsonl")]
    ran = run_bench("--url", url, "--shape", "closed:1", "--requests", "1", *SHORT, *files)
    assert isinstance(ran.exception, KitError)
    assert not output.exists()


@pytest.mark.parametrize("wrong", [[], ["--requests", "1", "--trim", "some"]], ids=["without end", "trim"])
def test_bench_leaves_output_files_unchanged_if_its_options_are_refused(url, tmp_path, wrong):
    output = tmp_path / "requests.jsonl"
    output.write_text("an earlier run\n")
    ran = run_bench(
        "--url", url, "--shape", "closed:1", *SHORT, *wrong, "--output", str(output), "--rows", f"{tmp_path}/r/r"
    )
    assert isinstance(ran.exception, KitError)
    assert (output.read_text(), (tmp_path / "r").exists()) == ("an earlier run\n", False)


def test_bench_exits_with_1_and_names_unreadable_files_of_inference_perf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    unread = StoredLoad(ReadResults(rejected=(Rejection("stage_0.json", None, "has no figures"),)))
    monkeypatch.setattr(load, "with_tool", lambda *_: unread)
    asked = ["--stack", "guide", "--project", str(PROJECT), "--shape", "constant:4", "--duration", "5"]
    ran = run_bench(*asked, "--tool", "inference-perf", "--reports", str(tmp_path))
    assert ran.exit_code == 1
    assert "stage_0.json: has no figures" in ran.stderr


TOKEN = "planted-bench-token-0123456789"
PLANTED = {
    "LLMD_OKE_BENCH_TOKEN": TOKEN,
    "HF_TOKEN": "hf_planted_token_0123456789",
    "MODEL_SOURCE_URL": "https://o/p/planted-source-link/n/ns/b/models/o/",
    "VLLM_API_KEY": "planted-api-key-0123456789",
    "PULUMI_ACCESS_TOKEN": "pul-planted-0123456789",
    "PULUMI_CONFIG_PASSPHRASE": "planted-passphrase-0123456789",
}
EVENTS = (
    b'data: {"choices":[{"text":" tok"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


def arguments() -> str:
    """The arguments of all processes of this machine."""
    texts: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            texts.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(texts)


class Echoing:
    """Answers of which two in three are errors that repeat the request's headers, cut at any length, in a body or an
    event.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []

    def answer(self, request: HttpRequest) -> HttpAnswer:
        self.seen.append(arguments())
        number = len(self.seen)
        told = f"{'x' * (number * 37 % 400)} {dict(request.headers)}"
        if number % 3 == 0:
            return HttpAnswer(500, told.encode())
        error = b"data: " + json.dumps({"error": {"message": told}}).encode() + b"\n\n"
        return HttpAnswer(200, error if number % 3 == 1 else EVENTS)


@pytest.mark.parametrize("tail", [(), ("--json",)])
def test_no_file_text_or_argument_of_a_benchmark_contains_a_credential(tmp_path: Path, tail: tuple[str, ...]):
    echoing = Echoing()
    files = ["--output", str(tmp_path / "requests.jsonl"), "--rows", str(tmp_path / "rows.jsonl")]
    words = ["--model", "m", "--shape", "closed:2", "--requests", "24", "--processes", "2", "--rest", "0"]
    sizes = ["--input-tokens", "8", "--output-tokens", "2", "--gpu", "MI300X", "--gpus", "8"]
    with http_server(echoing.answer) as server:
        command = [sys.executable, "-m", "llmd_oke", "bench", "--url", address_of(server)]
        ran = subprocess.run(
            [*command, *words, *sizes, *files, *tail],
            env={**os.environ, **PLANTED},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    errors = [record.error for _, record in read_lines((tmp_path / "requests.jsonl").read_text().splitlines())]
    assert sum("[credential]" in (error or "") for error in errors) > 4, ran.stderr
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    for place in (*written, ran.stdout, ran.stderr, *echoing.seen):
        for text in (*PLANTED.values(), TOKEN[:14]):
            assert text not in place


@pytest.mark.parametrize("cut", range(12, len(TOKEN) + 1, 6))
def test_a_truncated_credential_in_a_text_is_redacted(cut: int):
    target = CompletionsTarget("http://x", "m", {"Authorization": f"Bearer {TOKEN}"})
    assert target.without_credentials(f"{{'Authorization': 'Bearer {TOKEN[:cut]}'}}") == (
        "{'Authorization': 'Bearer [credential]'}"
    )
    assert target.without_credentials("nothing of it") == "nothing of it"


@pytest.mark.parametrize("value", ["planted x", "planted\nx", "planted\x01", "pläntedplanted"])
def test_bench_refuses_an_invalid_bearer_token_without_showing_it(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv(TOKEN_VARIABLE, value)
    with pytest.raises(KitError, match=TOKEN_VARIABLE) as caught:
        target_of_url(TargetOptions(url="http://127.0.0.1:1", model="m"))
    assert "planted" not in caught.value.message + str(caught.value.remedy)


def test_bench_refuses_a_url_with_a_password_without_showing_it():
    with pytest.raises(KitError, match="password") as caught:
        target_of_url(TargetOptions(url="http://user:planted@127.0.0.1:1"))
    assert "planted" not in str(caught.value)


def test_a_bearer_token_is_in_the_request_headers_and_in_no_text_of_the_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "planted\n")
    target = target_of_url(TargetOptions(url="http://127.0.0.1:1", model="m", gpu="MI300X", gpus=8))
    assert target.target.headers == {"authorization": "Bearer planted"}
    assert "planted" not in repr(target) + json.dumps(target.facts)


@pytest.mark.parametrize("expires", [True, False])
def test_bench_warns_of_a_bearer_token_that_will_expire_during_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], expires: bool
):
    class Access:
        def __init__(self, *_: object) -> None: ...

        def service(self, *_: object) -> HttpEndpoint:
            return HttpEndpoint("https://api/proxy", {"Authorization": "Bearer t"})

        def expires(self, _: HttpEndpoint) -> bool:
            return expires

    monkeypatch.setattr(cluster_access, "ClusterAccess", Access)
    target = target_of_stack(PROJECT, "guide", None, "completions", tmp_path)
    assert target.target.headers == {"Authorization": "Bearer t"}
    assert ("--in-cluster" in capsys.readouterr().err) == expires


def test_yaml_documents_of_a_dry_run_of_bench_have_no_anchors_and_aliases():
    labels = {"part-of": "llmd-oke"}
    text = as_yaml([{"kind": "Job", "labels": labels}, {"kind": "Role", "labels": labels}])
    assert "&" not in text
    assert [item["labels"] for item in yaml.safe_load_all(text)] == [labels, labels]
