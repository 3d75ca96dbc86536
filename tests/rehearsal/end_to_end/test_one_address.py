"""Three models, one of them the project's own, on one set of nodes, with servers of different sizes and kinds, behind
one front door with a certificate and keys: each benchmarked, loaded by `bench`, one copy drained meanwhile.
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llmd_bench.load.records import RequestRecord, read_lines
from user_project import ROOT, TIME_SCALE, Ended, Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal]

STACK = "door"
ADDRESS = "https://front-door.llm-d.svc.cluster.local"
GPT, LLAMA, OWN = "openai/gpt-oss-120b", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "acme/support-8b"
COPIES, AGGREGATED, LARGE = "2 x 1p-tp1-1d-tp1", "agg-tp1-1r", "1p-tp2-1d-tp4"
MODELS = [
    model(topology="1p-tp1-1d-tp1", copies=2),
    model(topology=AGGREGATED, model="support-8b", name="support"),
    model(topology=LARGE, model="llama-3.3-70b-instruct-fp8-dynamic", name="llama"),
]
POOLS = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
AFTER, RELOADED_S = 20, 120
"""Requests after weights were changed, and how long Envoys on a busy machine may take to read them."""

REHEARSE = ("rehearse", "--time-scale", TIME_SCALE, "--json", "--stack", STACK)


def write(project: Project, first: int, second: int) -> None:
    """The stack with weights of the two copies."""
    door = {
        "host": "llm.example.com",
        "tls": {"kind": "issuer", "name": "internal"},
        "authentication": {"kind": "api-keys"},
        "uncheckedPods": "accepted",
        "weights": {"gpt-oss-120b-0": first, "gpt-oss-120b-1": second},
    }
    project.write(STACK, models=MODELS, gpuPools=POOLS, frontDoor=door)


@dataclass(frozen=True)
class Door:
    """A client's knowledge of the front door: the certificate to trust, and its key."""

    project: Project
    folder: Path

    @property
    def key(self) -> str:
        return json.loads((self.folder / "secrets.json").read_text())["frontDoorKeys"]["rehearsal"]

    def run(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "llmd_oke", "rehearse", "run", "--stack", STACK, "--", *command]

    def bench(self, *options: str) -> list[str]:
        trust = ("--certificates", str(self.folder / "chain.pem"))
        own = (sys.executable, "-m", "llmd_oke", "bench", "--url", ADDRESS, *trust, *options)
        return self.run("env", f"LLMD_OKE_BENCH_TOKEN={self.key}", *own)

    def ask(self, served_name: str, key: str, *options: str) -> tuple[int, dict[str, Any]]:
        """Status and document of an answer to one completion."""
        text, _, status = self.complete(served_name, key, f"{ADDRESS}/v1/completions", *options).rpartition("\n")
        return int(status), json.loads(text)

    def complete(self, served_name: str, key: str, url: str, *options: str) -> str:
        """Return curl's output of completions at a URL, which may stand for several: each document and its status."""
        body = json.dumps({"model": served_name, "prompt": "hello", "max_tokens": 4})
        headers = ("-H", "content-type: application/json", "-H", f"authorization: Bearer {key}")
        trust = ("--cacert", str(self.folder / "chain.pem"), "-w", "\n%{http_code}")
        done = self.project.command(*self.run("curl", "-sS", *options, *trust, *headers, "-d", body, url)[3:])
        assert done.status == 0, done.errors
        return done.output


@pytest.fixture(scope="module")
def created(project: Project) -> Ended:
    shutil.copytree(ROOT / "examples" / "own-model" / "values", project.folder / "values", dirs_exist_ok=True)
    write(project, 50, 50)
    return project.command(*REHEARSE)


@pytest.fixture(scope="module")
def door(project: Project, created: Ended) -> Door:
    assert created.status == 0, created.errors
    return Door(project, project.folder / ".rehearsal" / STACK / "front-door")


@dataclass(frozen=True)
class Drain:
    """Requests during an update that takes the first copy's weight away, and what the update changed."""

    project: Project
    requests: list[RequestRecord]
    changed: Ended


@pytest.fixture(scope="module")
def drain(project: Project, door: Door, tmp_path_factory: pytest.TempPathFactory) -> Drain:
    requests = tmp_path_factory.mktemp("bench") / "requests.jsonl"
    options = (
        "--model",
        GPT,
        "--shape",
        "constant:4",
        "--duration",
        "28s",
        "--input-tokens",
        "256",
        "--output-tokens",
        "16",
    )
    argv = door.bench(*options, "--output", str(requests))
    with subprocess.Popen(argv, env=project.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as load:
        write(project, 0, 100)
        changed = project.command(*REHEARSE, "--no-benchmark")
        output, _ = load.communicate(timeout=300)
    assert load.returncode == 0, output.decode()
    return Drain(project, [record for _, record in read_lines(requests.read_text().splitlines())], changed)


@pytest.fixture(scope="module")
def smoke(created: Ended) -> dict[str, dict[str, Any]]:
    """The summary of each model's benchmark, by its topology."""
    assert created.status == 0, created.errors
    return {summary["topology"]: summary for summary in created.document["smoke"]}


def test_every_model_of_a_stack_serves_and_passes_its_benchmark(smoke: dict[str, dict[str, Any]]):
    assert {name: summary["passed"] for name, summary in smoke.items()} == {COPIES: True, AGGREGATED: True, LARGE: True}


def test_a_models_prompts_are_all_prefilled_by_that_models_own_prefill_servers(smoke: dict[str, dict[str, Any]]):
    assert [smoke[name]["remote_prefill"]["share"] for name in (COPIES, LARGE)] == pytest.approx([1.0, 1.0])


def test_benchmark_reports_mark_simulated_latencies_as_calibrated_or_as_bounds(
    created: Ended, smoke: dict[str, dict[str, Any]]
):
    numbers = {name: summary["provenance"]["numbers"] for name, summary in smoke.items()}
    assert numbers == {COPIES: "calibrated", AGGREGATED: "bound", LARGE: "bound"}
    words = {text for text in created.document["simulated"] if "bounds" in text}
    assert words == {f"times of {name} (bounds: a role of it has no figures for this GPU)" for name in (LLAMA, OWN)}
    assert all(words <= set(summary["provenance"]["simulated"]) for summary in smoke.values())


def test_all_models_answer_at_the_address_of_the_front_door(door: Door):
    for name in (GPT, LLAMA, OWN):
        status, document = door.ask(name, door.key)
        assert (status, document["model"]) == (200, name)


def test_setting_a_routers_traffic_weight_to_zero_fails_no_request(drain: Drain):
    assert drain.changed.status == 0, drain.changed.errors
    assert len(drain.requests) > 100
    assert [request.error for request in drain.requests if not request.succeeded] == []


def test_all_requests_go_to_the_router_that_has_all_the_traffic_weight(drain: Drain, door: Door):
    assert set(units(drain.project)) == {"gpt-oss-120b-0-epp", "gpt-oss-120b-1-epp"}
    end_s = time.monotonic() + RELOADED_S
    while True:  # until both Envoys have read the file
        door.complete(GPT, door.key, f"{ADDRESS}/v1/completions?number=[1-{AFTER}]")
        last = set(units(drain.project)[-AFTER:])
        if last == {"gpt-oss-120b-1-epp"} or time.monotonic() > end_s:
            break
    assert last == {"gpt-oss-120b-1-epp"}


def units(project: Project) -> list[str]:
    """Return which units answered the model with two copies, in order."""
    logs = project.folder / ".rehearsal" / STACK / "logs" / "pods" / "llm-d"
    lines = [line for log in logs.glob("front-door-*/envoy.log") for line in log.read_text().splitlines()]
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        entry["unit"].partition(".")[0]
        for entry in sorted(entries, key=lambda entry: entry["start_time"])
        if entry["model"] == GPT and entry["status"] == 200
    ]


def test_changing_traffic_weights_updates_only_one_object_and_its_component(drain: Drain):
    changes = drain.changed.document["update"]["changes"]
    assert set(changes) <= {"same", "read", "update"}
    assert changes["update"] == 2  # the ConfigMap, and the component whose arguments these are


def test_a_wrong_api_key_is_refused_with_an_explanation(door: Door):
    # A wrong key is refused before the body is read. Over HTTP/2, curl 7.88 drops such an answer.
    status, document = door.ask(GPT, "sk-wrong-0123456789abcdef", "--http1.1")
    assert (status, document["error"]["code"]) == (401, "invalid_api_key")


def test_a_request_for_an_unknown_model_is_refused_with_an_explanation(door: Door):
    status, document = door.ask("gpt-5", door.key)
    assert (status, document["error"]["code"]) == (404, "model_not_found")
    assert GPT in document["error"]["message"]
