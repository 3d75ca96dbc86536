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
from user_project import ROOT, Ended, Project, model

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
END = "\nend of an answer\n"
AFTER, RELOADED_S = 20, 120
"""Requests after weights were changed, and how long Envoys on a busy machine may take to read them."""

REHEARSE = ("rehearse", "--time-scale", "4", "--json", "--stack", STACK)
"""Four endpoint pickers take half of what they take at the usual time scale."""


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

    def complete(self, *asked: tuple[str, ...], number: int = 1) -> list[tuple[int, dict[str, Any]]]:
        """Status and document of the answers to completions, each sent `number` times; of each the model's name, a key,
        and further options of curl.
        """
        words: list[str] = []
        for served_name, key, *options in asked:
            body = json.dumps({"model": served_name, "prompt": "hello", "max_tokens": 4})
            headers = ("-H", "content-type: application/json", "-H", f"authorization: Bearer {key}")
            trust = ("-sS", "--cacert", str(self.folder / "chain.pem"), "-w", f"\n%{{http_code}}{END}")
            url = f"{ADDRESS}/v1/completions?number=[1-{number}]"
            words += [*(["--next"] if words else []), *options, *trust, *headers, "-d", body, url]
        answers = [text.rpartition("\n") for text in self.project.inside(STACK, "curl", *words).output.split(END)[:-1]]
        return [(int(status), json.loads(document)) for document, _, status in answers]


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
    shape = ("--shape", "constant:4", "--duration", "28s", "--input-tokens", "256", "--output-tokens", "16")
    argv = door.bench("--model", GPT, *shape, "--output", str(requests))
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


@pytest.fixture(scope="module")
def answers(door: Door) -> dict[str, tuple[int, dict[str, Any]]]:
    """Status and document of an answer of each model, of a model that isn't there, and to a wrong key."""
    known = {name: (name, door.key) for name in (GPT, LLAMA, OWN, "gpt-5")}
    # A wrong key is refused before the body is read. Over HTTP/2, curl 7.88 drops such an answer.
    asked = {**known, "wrong key": (GPT, "sk-wrong-0123456789abcdef", "--http1.1")}
    return dict(zip(asked, door.complete(*asked.values()), strict=True))


def test_all_models_answer_at_the_address_of_the_front_door(answers: dict[str, tuple[int, dict[str, Any]]]):
    assert {name: (answers[name][0], answers[name][1]["model"]) for name in (GPT, LLAMA, OWN)} == {
        name: (200, name) for name in (GPT, LLAMA, OWN)
    }


def test_setting_a_routers_traffic_weight_to_zero_fails_no_request(drain: Drain):
    assert drain.changed.status == 0, drain.changed.errors
    assert len(drain.requests) > 100
    assert [request.error for request in drain.requests if not request.succeeded] == []


def test_all_requests_go_to_the_router_that_has_all_the_traffic_weight(drain: Drain, door: Door):
    assert set(units(drain.project)) == {"gpt-oss-120b-0-epp", "gpt-oss-120b-1-epp"}
    end_s = time.monotonic() + RELOADED_S
    while True:  # until both Envoys have read the file
        door.complete((GPT, door.key), number=AFTER)
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


def test_a_wrong_api_key_is_refused_with_an_explanation(answers: dict[str, tuple[int, dict[str, Any]]]):
    status, document = answers["wrong key"]
    assert (status, document["error"]["code"]) == (401, "invalid_api_key")


def test_a_request_for_an_unknown_model_is_refused_with_an_explanation(answers: dict[str, tuple[int, dict[str, Any]]]):
    status, document = answers["gpt-5"]
    assert (status, document["error"]["code"]) == (404, "model_not_found")
    assert GPT in document["error"]["message"]
