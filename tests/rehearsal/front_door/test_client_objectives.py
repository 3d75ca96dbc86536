"""Headers of clients as the real Envoy leaves them to an endpoint picker: who asks, with which priority and session."""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from llmd_oke.serving import client_access, client_requests, envoy
from llmd_oke.serving.client_access import CLIENT_HEADER, PRIORITY_HEADER
from llmd_oke.serving.client_requests import ClientObjectives

pytestmark = pytest.mark.rehearsal

OBJECTIVE, FAIRNESS, SESSION = "x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-session-id"
OBJECTIVES = ClientObjectives(
    CLIENT_HEADER, PRIORITY_HEADER, OBJECTIVE, FAIRNESS, (("100", "m-priority-100"), ("-10", "m-priority-minus-10"))
)
SIGNED_IN = "x-signed-in-as"
"""Stands for a key: the client's name in plain text, as what finds keys out isn't asked here."""
LIMIT_S = 30


def chain(port: int) -> dict[str, object]:
    """A listener that answers with what an endpoint picker would be told."""
    told = [
        {"header": {"key": f"told-{name}", "value": f"%REQ({name})%"}, "keep_empty_value": True}
        for name in (OBJECTIVE, FAIRNESS, SESSION, PRIORITY_HEADER)
    ]
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200}, "response_headers_to_add": told}
    named = (
        f'function envoy_on_request(h) h:headers():replace("{CLIENT_HEADER}", h:headers():get("{SIGNED_IN}") or "") end'
    )
    signing = envoy.http_filter("lua", "lua", "Lua", default_source_code={"inline_string": named})
    manager = envoy.connection_manager(
        stat_prefix="clients",
        route_config={"name": "told", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        http_filters=[
            client_requests.cleaning_filter(CLIENT_HEADER, PRIORITY_HEADER, kept=[SESSION]),
            {**signing, "name": "signing"},
            client_access.priorities_filter({"chat": 100, "crawler": -10}),
            *client_requests.filters(objectives=OBJECTIVES, sessions=[SESSION]),
            envoy.http_filter("router", "router", "Router"),
        ],
    )
    return envoy.listener("clients", "127.0.0.1", port, manager)


@pytest.fixture(scope="module")
def port(envoy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    number = free_port()
    folder = tmp_path_factory.mktemp("objectives")
    config = folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [chain(number)]}}))
    argv = [str(envoy), "-c", str(config), "--log-level", "warn", "--disable-hot-restart", "--concurrency", "1"]
    with (folder / "envoy.log").open("w") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            _wait(number, process, folder / "envoy.log")
            yield number
        finally:
            process.terminate()


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)
        else:
            return


def told(port: int, client: str, headers: dict[str, str] | None = None) -> dict[str, str | None]:
    """Return what an endpoint picker is told of a client's request: objective, whose turn, session, and priority."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    own = {"content-type": "application/json", SIGNED_IN: client, **(headers or {})}
    connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "p"}), own)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200
    return {name: answer.getheader(f"told-{name}") or None for name in (OBJECTIVE, FAIRNESS, SESSION, PRIORITY_HEADER)}


@pytest.mark.parametrize(
    ("client", "objective"), [("chat", "m-priority-100"), ("crawler", "m-priority-minus-10"), ("nobody", None)]
)
def test_the_picker_receives_the_objective_and_the_fairness_id_of_each_client(
    port: int, client: str, objective: str | None
) -> None:
    assert told(port, client) == {OBJECTIVE: objective, FAIRNESS: client, SESSION: None, PRIORITY_HEADER: None}


@pytest.mark.parametrize("client", ["crawler", "nobody"])
def test_clients_cannot_set_their_own_identity_or_priority(port: int, client: str) -> None:
    lies = {
        CLIENT_HEADER: "chat",
        PRIORITY_HEADER: "100",
        OBJECTIVE: "m-priority-100",
        FAIRNESS: "another",
        "x-gateway-inference-objective": "m-priority-100",
        "x-gateway-inference-fairness-id": "another",
    }
    assert told(port, client, lies) == told(port, client)


def test_the_front_door_passes_on_session_ids_of_up_to_256_characters_only(port: int) -> None:
    assert told(port, "chat", {SESSION: "a" * 256})[SESSION] == "a" * 256
    assert told(port, "chat", {SESSION: "a" * 257})[SESSION] is None
