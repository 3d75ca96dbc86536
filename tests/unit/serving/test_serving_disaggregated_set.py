"""The program that waits for the servers of a DisaggregatedSet, against an HTTP server with the API's answers."""

import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from http_for_tests import HttpAnswer, HttpRequest, http_server
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
    left, asked = list[Any](), list[str]()

    def answer(request: HttpRequest) -> HttpAnswer:
        asked.append(request.url.geturl())
        said = left.pop(0) if len(left) > 1 else left[0]
        return HttpAnswer(200, {"items": said}) if isinstance(said, list) else HttpAnswer(said, {})

    with http_server(answer) as server:
        for name, text in (("namespace", "llm-d"), ("token", "secret")):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(program, "ACCOUNT", tmp_path)
        monkeypatch.setattr(program, "TERMINATION_LOG", tmp_path / "absent")
        monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
        monkeypatch.setattr(program, "URL", program.URL.replace("https:", "http:"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))

        def call(*answers: list[dict[str, Any]] | int, limit_s: float = 30.0) -> tuple[int, str, list[str]]:
            left.extend(answers)
            words = ["--name=unit", f"--templates={NEW}", "--servers=prefill=2", "--servers=decode=1"]
            monkeypatch.setattr(sys, "argv", ["wait.py", *words, f"--limit-s={limit_s}", "--pause-s=0"])
            code = program.main()
            return code, capsys.readouterr().out.splitlines()[-1], asked

        yield call


def test_the_wait_ends_once_the_api_server_shows_all_servers_ready(run: Callable[..., tuple[int, str, list[str]]]):
    loading = [made("prefill", NEW, 2, 1), READY[1]]
    code, text, asked = run([], loading, 500, loading, READY)
    assert (code, text) == (0, "unit: 2 prefill and 1 decode servers are ready")
    assert len(asked) == 5
    url = urlsplit(asked[0])
    assert url.path == "/apis/leaderworkerset.x-k8s.io/v1/namespaces/llm-d/leaderworkersets"
    assert parse_qs(url.query) == {"labelSelector": ["disaggregatedset.x-k8s.io/name=unit"]}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([made("prefill", NEW, 2, 1), READY[1]], "1 of 2 prefill servers are ready"),
        (403, "the API server does not answer: HTTP Error 403: Forbidden"),
    ],
    ids=["missing", "refused"],
)
def test_the_wait_fails_at_its_limit_with_what_is_missing(
    run: Callable[..., tuple[int, str, list[str]]], answer: Any, said: str
):
    code, text, _ = run(answer, limit_s=0.0)
    assert (code, text) == (1, f"unit: {said}; not waited for after 0 s")
