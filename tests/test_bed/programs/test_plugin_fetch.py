"""Pulumi's Kubernetes plug-in, fetched by the real engine from a server on this machine."""

import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from listening import Listener
from llmd_rehearsal.downloads import MIRROR, architecture
from llmd_rehearsal.plugins import EXECUTABLE, fetch, installed
from llmd_rehearsal.programs import LocalProgram, locate

VERSION = "4.30.0"


class Server:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            content = served.files.get(self.path)
            served.asked.append(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(served.files.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{running.server_port}")
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield served
        running.shutdown()


@pytest.fixture(scope="module")
def pulumi() -> LocalProgram:
    program = locate("pulumi")
    if program is None:
        pytest.skip("no Pulumi CLI: llmd-oke rehearse programs builds it")
    return program


def plugin_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(EXECUTABLE)
        member.mode, content = 0o755, b"#!/bin/sh\n"
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_pulumi_installs_the_kubernetes_plug_in_where_it_looks_for_it(
    server: Server, pulumi: LocalProgram, tmp_path: Path
):
    listener = Listener()
    server.files[f"/{EXECUTABLE}-v{VERSION}-linux-{architecture()}.tar.gz"] = plugin_archive()
    path = fetch(VERSION, pulumi, listener)
    assert path == tmp_path / "home" / "plugins" / f"resource-kubernetes-v{VERSION}" / EXECUTABLE
    assert path == installed(VERSION)
    assert listener.steps == [f"fetching Pulumi's Kubernetes plug-in v{VERSION}"]


def test_a_download_server_that_lacks_the_kubernetes_plug_in_is_queried_once_a_day(
    server: Server, pulumi: LocalProgram
):
    listener = Listener()
    assert [fetch(VERSION, pulumi, listener) for _ in range(2)] == [None, None]
    assert (len(server.asked), listener.steps) == (1, [])


def test_a_download_that_is_no_pulumi_plug_in_is_not_installed(server: Server, pulumi: LocalProgram):
    server.files[f"/{EXECUTABLE}-v{VERSION}-linux-{architecture()}.tar.gz"] = b"<html>"
    assert fetch(VERSION, pulumi, Listener()) is None
    assert installed(VERSION) is None


def test_the_kubernetes_plug_in_is_not_fetched_if_downloads_are_disabled(
    server: Server, pulumi: LocalProgram, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(MIRROR, "none")
    assert fetch(VERSION, pulumi, Listener()) is None
    assert server.asked == []
