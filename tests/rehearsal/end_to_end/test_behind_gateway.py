"""Two models behind a Gateway: Envoy Gateway, the real Envoys that it configures, and the real endpoint pickers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal.inventory import BEHIND_GATEWAY
from llmd_rehearsal.programs import locate
from user_project import Ended, Project, model

sys.path.insert(0, str(Path(__file__).parents[1] / "front_door"))
from request_attacks import Attack, attacks

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "gateway"
GPT, LLAMA = "openai/gpt-oss-120b", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
SMALL = "1p-tp1-1d-tp1"
MODELS = [
    model(topology=SMALL, copies=2, router={"mode": "gateway"}),
    model(
        topology="agg-tp1-1r",
        model="llama-3.3-70b-instruct-fp8-dynamic",
        name="llama",
        router={"mode": "gateway", "route": {"hosts": ["llama.example.com"]}},
    ),
]
ADDRESS = "http://inference-gateway.envoy-gateway-system.svc.cluster.local"


@pytest.fixture(scope="module")
def created(project: Project) -> Ended:
    if missing := [name for name in BEHIND_GATEWAY if locate(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: scripts/test builds them")
    project.write(STACK, models=MODELS, gateway={"mode": "create", "provider": "istio"})
    return project.rehearse(STACK)


def ask(project: Project, url: str, body: dict[str, Any], *headers: str) -> tuple[int, str]:
    """Status and text of an answer, from inside the cluster."""
    given = [word for header in ("content-type: application/json", *headers) for word in ("-H", header)]
    command = ("curl", "-sS", "-m", "60", "-w", "\n%{http_code}", *given, "-d", json.dumps(body), url)
    done = project.inside(STACK, *command)
    text, _, status = done.output.rpartition("\n")
    return int(status), text


def completion(served_name: str) -> dict[str, Any]:
    return {"model": served_name, "prompt": "hello", "max_tokens": 4}


def test_the_smoke_benchmark_of_an_update_passes_through_the_gateway(created: Ended):
    assert created.status == 0, created.errors
    assert [smoke["passed"] for smoke in created.document["smoke"]] == [True, True]


def test_a_rehearsal_reports_which_program_plays_the_gateways_provider(created: Ended):
    simulated = " ".join(created.document["simulated"])
    assert "gateway provider istio (Envoy Gateway v1.6.0 runs in its place)" in simulated
    assert "InferencePools of Envoy Gateway" in simulated


@pytest.fixture(scope="module")
def attacked(project: Project, created: Ended, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Any]]:
    """Status of each attack, and the field that is named."""
    assert created.status == 0, created.errors
    file = tmp_path_factory.mktemp("attacks") / "requests.json"
    file.write_text(json.dumps({attack.name: attack.request.hex() for attack in refused_attacks()}))
    script = str(Path(__file__).with_name("gateway_attacks.py"))
    host = ADDRESS.removeprefix("http://")
    return project.inside(STACK, sys.executable, script, str(file), host).document


def refused_attacks() -> list[Attack]:
    return [attack for attack in attacks() if 200 not in attack.statuses]


def test_the_gateway_refuses_every_request_field_that_clients_may_not_send(attacked: dict[str, tuple[int, Any]]):
    expected = {attack.name: attack.statuses for attack in refused_attacks()}
    assert {name: answer for name, answer in attacked.items() if answer[0] not in expected[name]} == {}


def test_the_gateways_error_names_the_request_field_that_it_refuses(attacked: dict[str, tuple[int, Any]]):
    named = {attack.name: attack.param for attack in refused_attacks() if attack.param}
    assert {name: attacked[name][1] for name in named} == named


@pytest.mark.parametrize(("host", "served_name"), [("llama.example.com", LLAMA), ("other.example.com", GPT)])
def test_a_host_routes_to_its_model_and_other_hosts_to_the_model_without_a_host(
    project: Project, created: Ended, host: str, served_name: str
):
    assert created.status == 0
    status, text = ask(project, f"{ADDRESS}/v1/completions", completion(served_name), f"host: {host}")
    assert (status, json.loads(text)["model"]) == (200, served_name)


def test_each_model_has_its_own_service_address_inside_the_cluster(project: Project, created: Ended):
    assert created.status == 0
    for name, served_name in (("gpt-oss-120b", GPT), ("llama", LLAMA)):
        status, text = ask(project, f"http://{name}.llm-d.svc.cluster.local/v1/completions", completion(served_name))
        assert (status, json.loads(text)["model"]) == (200, served_name)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "llama"])
def test_the_load_generator_sends_its_requests_to_the_gateways_address(project: Project, created: Ended, name: str):
    assert created.status == 0
    bench = (sys.executable, "-m", "llmd_oke", "bench", "--stack", STACK, "--model", name, "--through-gateway")
    load = ("--shape", "closed:1", "--requests", "2", "--input-tokens", "64", "--output-tokens", "4", "--json")
    done = project.inside(STACK, *bench, *load)
    (stage,) = done.document["stages"]
    assert (stage["requests"], stage["failures"]) == (2, [])


def test_the_gateway_routes_only_paths_of_the_serving_api(project: Project, created: Ended):
    assert created.status == 0
    status, _ = ask(project, "http://llama.llm-d.svc.cluster.local/metrics", {})
    assert status == 404


def test_an_update_moves_the_models_to_a_gateway_that_exists_already(project: Project, created: Ended):
    assert created.status == 0
    gateway = {
        "mode": "existing",
        "provider": "istio",
        "name": "shared",
        "namespace": "gateways",
        "uncheckedRequests": "accepted",
    }
    name = "X-Gateway-Base-Model-Name"  # one that is dropped, but for the value that leads to a model
    gpt, llama = MODELS
    route = {"mode": "gateway", "route": {"headers": {name: LLAMA}}}
    project.write(STACK, models=[gpt, {**llama, "router": route}], gateway=gateway)
    moved = project.rehearse(STACK)
    assert moved.status == 0, moved.errors
    shared = "http://shared.envoy-gateway-system.svc.cluster.local/v1/completions"
    for value, served_name in ((LLAMA, LLAMA), ("another", GPT)):
        headers = (f"{name}: {value}", "x-gateway-destination-endpoint: 10.0.0.66:8000")
        status, text = ask(project, shared, completion(served_name), *headers)
        assert (status, json.loads(text)["model"]) == (200, served_name)
        status, text = ask(project, shared, {**completion(served_name), "kv_transfer_params": {}}, *headers)
        assert (status, json.loads(text)["error"]["param"]) == (400, "kv_transfer_params")
