"""Pulumi's Kubernetes plug-in, fetched by the real engine from a server on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, archive, running_file_server
from listening import Listener
from llmd_rehearsal.downloads import MIRROR, architecture
from llmd_rehearsal.plugins import EXECUTABLE, fetch, installed
from llmd_rehearsal.programs import LocalProgram, locate

VERSION = "4.30.0"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "")
    with running_file_server() as served:
        monkeypatch.setenv(MIRROR, served.address)
        yield served


@pytest.fixture(scope="module")
def pulumi() -> LocalProgram:
    program = locate("pulumi")
    if program is None:
        pytest.skip("no Pulumi CLI: llmd-oke rehearse programs builds it")
    return program


def test_pulumi_installs_the_kubernetes_plug_in_where_it_looks_for_it(
    server: FileServer, pulumi: LocalProgram, tmp_path: Path
):
    listener = Listener()
    server.files[f"/{EXECUTABLE}-v{VERSION}-linux-{architecture()}.tar.gz"] = archive(
        {EXECUTABLE: b"#!/bin/sh\n"}, 0o755
    )
    path = fetch(VERSION, pulumi, listener)
    assert path == tmp_path / "home" / "plugins" / f"resource-kubernetes-v{VERSION}" / EXECUTABLE
    assert path == installed(VERSION)
    assert listener.steps == [f"fetching Pulumi's Kubernetes plug-in v{VERSION}"]


def test_a_download_server_that_lacks_the_kubernetes_plug_in_is_queried_once_a_day(
    server: FileServer, pulumi: LocalProgram
):
    listener = Listener()
    assert [fetch(VERSION, pulumi, listener) for _ in range(2)] == [None, None]
    assert (len(server.asked), listener.steps) == (1, [])


def test_a_download_that_is_no_pulumi_plug_in_is_not_installed(server: FileServer, pulumi: LocalProgram):
    server.files[f"/{EXECUTABLE}-v{VERSION}-linux-{architecture()}.tar.gz"] = b"<html>"
    assert fetch(VERSION, pulumi, Listener()) is None
    assert installed(VERSION) is None


def test_the_kubernetes_plug_in_is_not_fetched_if_downloads_are_disabled(
    server: FileServer, pulumi: LocalProgram, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(MIRROR, "none")
    assert fetch(VERSION, pulumi, Listener()) is None
    assert server.asked == []
