"""The program that waits for the servers of a DisaggregatedSet, against an HTTP server with the API's answers."""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from llmd_pods import disaggregated_set_program as program

NEW, OLD = "e0e7158b26", "0123456789"
SERVERS = {"prefill": 2, "decode": 1}


def made(role: str, templates: str, wanted: int, ready: int, present: int | None = None) -> dict[str, Any]:
    """A LeaderWorkerSet of the controller."""
    return {
        "metadata": {"name": f"unit-{templates[:8]}-{role}", "labels": {program.ROLE_LABEL: role}},
        "spec": {
            "replicas": wanted,
            "leaderWorkerTemplate": {
                "workerTemplate": {"metadata": {"labels": {program.TEMPLATES_LABEL: templates}}, "spec": {}}
            },
        },
        "status": {"replicas": wanted if present is None else present, "readyReplicas": ready},
    }


READY = [made("prefill", NEW, 2, 2), made("decode", NEW, 1, 1)]


def missing(*sets: dict[str, Any]) -> list[str]:
    return [*program.lacks([*sets], NEW, SERVERS)]


WITHOUT_STATUS = {name: value for name, value in READY[1].items() if name != "status"}


@pytest.mark.parametrize(
    ("sets", "lacking"),
    [
        pytest.param(READY, [], id="all ready"),
        pytest.param([], [f"no set of {role} servers of this update" for role in SERVERS], id="no set"),
        pytest.param(READY[1:], ["no set of prefill servers of this update"], id="no set of a role"),
        pytest.param([made("prefill", NEW, 3, 3), READY[1]], ["3 of 2 prefill servers are ready"], id="too many"),
        pytest.param([READY[0], WITHOUT_STATUS], ["0 of 1 decode servers are ready"], id="no status"),
        pytest.param([*READY, made("prefill", OLD, 0, 0)], [], id="old ones are gone"),
        pytest.param(
            [*READY, made("prefill", OLD, 0, 0, present=1)],
            ["unit-01234567-prefill of before still has 1"],
            id="old ones still end",
        ),
    ],
)
def test_the_last_update_is_waited_for_until_its_servers_alone_are_there_and_ready(
    sets: list[dict[str, Any]], lacking: list[str]
):
    assert missing(*sets) == lacking


def test_ready_servers_of_before_do_not_count_as_those_of_the_update():
    old = [made("prefill", OLD, 2, 2), made("decode", OLD, 1, 1)]
    new = [made("prefill", NEW, 0, 0), made("decode", NEW, 0, 0)]
    assert missing(*old, *new) == [
        "0 of 2 prefill servers are ready",
        "0 of 1 decode servers are ready",
        "unit-01234567-prefill of before still has 2",
        "unit-01234567-decode of before still has 1",
    ]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, list[str]]]]:
    """Run the program against an API server with these answers, the last of them for ever; return its exit code, its
    last words and the paths that it asked for.
    """
    servers: list[ThreadingHTTPServer] = []

    def call(*answers: list[dict[str, Any]] | int, limit_s: float = 30.0) -> tuple[int, str, list[str]]:
        left, asked = list(answers), list[str]()

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                answer = left.pop(0) if len(left) > 1 else left[0]
                content = json.dumps({"items": answer} if isinstance(answer, list) else {}).encode()
                self.send_response(200 if isinstance(answer, list) else answer)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, text in (("namespace", "llm-d"), ("token", "secret")):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(program, "ACCOUNT", tmp_path)
        monkeypatch.setattr(program, "TERMINATION_LOG", tmp_path / "absent")
        monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
        monkeypatch.setattr(program, "URL", program.URL.replace("https:", "http:"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
        words = ["--name=unit", f"--templates={NEW}", "--servers=prefill=2", "--servers=decode=1"]
        monkeypatch.setattr(sys, "argv", ["wait.py", *words, f"--limit-s={limit_s}", "--pause-s=0"])
        code = program.main()
        return code, capsys.readouterr().out.splitlines()[-1], asked

    yield call
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_wait_ends_once_the_api_server_shows_all_servers_ready(run: Callable[..., tuple[int, str, list[str]]]):
    loading = [made("prefill", NEW, 2, 1), READY[1]]
    code, text, asked = run([], loading, 500, loading, READY)
    assert (code, text) == (0, "unit: 2 prefill and 1 decode servers are ready")
    assert len(asked) == 5
    url = urlsplit(asked[0])
    assert url.path == "/apis/leaderworkerset.x-k8s.io/v1/namespaces/llm-d/leaderworkersets"
    assert parse_qs(url.query) == {"labelSelector": ["disaggregatedset.x-k8s.io/name=unit"]}


def test_the_wait_fails_at_its_limit_with_what_is_missing(run: Callable[..., tuple[int, str, list[str]]]):
    code, text, _ = run([made("prefill", NEW, 2, 1), READY[1]], limit_s=0.0)
    assert code == 1
    assert text == "unit: 1 of 2 prefill servers are ready; not waited for after 0 s"


def test_the_wait_for_an_api_server_that_refuses_ends_at_its_limit(run: Callable[..., tuple[int, str, list[str]]]):
    code, text, _ = run(403, limit_s=0.0)
    assert code == 1
    assert text.startswith("unit: the API server does not answer: HTTP Error 403")
