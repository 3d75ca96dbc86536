"""A tunnel that stays open. OCI is a table of answers; `ssh` is a script that listens, or does not."""

import os
import queue
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.access import tunnel
from llmd_oke.access.forwarding import Pace, SshFailed, Tunnel
from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.access.tunnel import NotYet, Target
from llmd_oke.errors import KitError
from ssh_for_tests import free_port, put_ssh

LIMIT_S = 20.0
QUICK = Pace(seek_s=0.01, look_s=0.01, listen_s=LIMIT_S, steady_s=LIMIT_S, again_s=0.01, tries=3, sessions=2)


class Oci:
    """Gives session after session, each active at once, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def get(self, service: str, path: str, **query: str) -> Any:
        number = path.rsplit("/", 1)[-1]
        told = f"ssh -i <privateKey> -N -L <localPort>:10.0.0.6:6443 -p 22 {number}@host"
        return {"lifecycleState": "ACTIVE", "sshMetadata": {"command": told}}

    def send(self, method: str, service: str, path: str, body: Any = None) -> Any:
        made = sum(each.startswith("POST") for each in self.sent) + 1
        self.sent.append(f"{method} s{made}" if method == "POST" else f"{method} {path.rsplit('/', 1)[-1]}")
        return {"id": f"s{made}"}


class Told:
    """Keeps what is told, and hands it out as it comes."""

    def __init__(self) -> None:
        self.steps: queue.Queue[str] = queue.Queue()
        self.details: list[str] = []

    def step(self, text: str) -> None:
        self.steps.put(text)

    def detail(self, text: str) -> None:
        self.details.append(text)

    def until_open(self) -> None:
        while "leads to the API server" not in self.steps.get(timeout=LIMIT_S):
            pass


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], list[str]]]:
    """Puts an `ssh` on PATH whose runs go as planned, and then stay; the answer says for which sessions it ran."""

    def planned(*runs: str) -> Callable[[], list[str]]:
        put_ssh(tmp_path, *runs)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return lambda: [line.partition("@")[0] for line in (tmp_path / "starts").read_text().split()]

    return planned


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "KEY_BITS", 1024)


def found(oci: OciClient) -> Callable[[], tuple[OciClient, Target]]:
    return lambda: (oci, Target("bastion", "10.0.0.6", 6443, 1800))


def test_it_waits_for_a_cluster_that_is_still_to_come(ssh: Any, port: int):
    ssh()
    oci, told, looks = Oci(), Told(), iter([NotYet("The compartment has no active cluster prod."), None])

    def find() -> tuple[OciClient, Target]:
        if hindrance := next(looks, None):
            raise hindrance
        return found(oci)()

    with Tunnel(find, port, told, QUICK).beside():
        told.until_open()
    assert any("no active cluster prod" in each for each in told.details)


def test_a_wait_that_has_a_limit_ends(ssh: Any, port: int):
    ssh()

    def find() -> tuple[OciClient, Target]:
        raise NotYet("The compartment has no active cluster prod.")

    with pytest.raises(NotYet, match="no active cluster prod"):
        Tunnel(find, port, Told(), QUICK).keep(patience_s=0)


def test_a_refusal_of_oci_is_no_reason_to_wait(ssh: Any, port: int):
    ssh()

    def find() -> tuple[OciClient, Target]:
        raise OciError(401, "NotAuthenticated", "OCI refuses")

    with pytest.raises(OciError):
        Tunnel(find, port, Told(), QUICK).keep()


def test_ssh_that_fails_at_first_is_started_again(ssh: Any, port: int):
    starts, told = ssh("refuse", "refuse"), Told()
    with Tunnel(found(Oci()), port, told, QUICK).beside():
        told.until_open()
    assert starts() == ["s1", "s1", "s1"]
    assert any("Permission denied" in each for each in told.details)


def test_a_tunnel_that_breaks_is_opened_again(ssh: Any, port: int):
    starts, told = ssh("leave"), Told()
    with Tunnel(found(Oci()), port, told, QUICK).beside():
        told.until_open()
        told.until_open()
    assert starts() == ["s1", "s1"]


def test_another_session_is_tried_before_it_is_given_up(ssh: Any, port: int):
    starts = ssh(*["refuse"] * 6)
    oci = Oci()
    with pytest.raises(SshFailed, match=r"3 times in a row: Permission denied") as failed:
        Tunnel(found(oci), port, Told(), QUICK).keep()
    assert starts() == ["s1"] * 3 + ["s2"] * 3
    assert "allow list" in (failed.value.remedy or "")
    assert oci.sent[-1] == "DELETE s2"


def test_the_next_session_is_there_before_the_last_one_goes(ssh: Any, port: int):
    starts, told, oci = ssh(), Told(), Oci()
    lives_s = iter([QUICK.renewal_s + 0.3])

    def find() -> tuple[OciClient, Target]:
        return oci, Target("bastion", "10.0.0.6", 6443, next(lives_s, 1800.0))

    with Tunnel(find, port, told, QUICK).beside():
        told.until_open()
        while "s2" not in starts():
            told.until_open()
    assert oci.sent[:3] == ["POST s1", "POST s2", "DELETE s1"]


def test_at_the_end_neither_session_nor_listener_is_left(ssh: Any, port: int):
    ssh()
    told, oci = Told(), Oci()
    with Tunnel(found(oci), port, told, QUICK).beside():
        told.until_open()
    assert oci.sent == ["POST s1", "DELETE s1"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_taken_is_said_to_be(port: int):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(KitError, match=f"127.0.0.1:{port} already"),
        Tunnel(found(Oci()), port, Told(), QUICK).beside(),
    ):
        pass


def test_whoever_waits_for_it_is_told_why_it_does_not_open(ssh: Any, port: int):
    ssh(*["refuse"] * 6)
    kept = Tunnel(found(Oci()), port, Told(), QUICK)
    with kept.beside(), pytest.raises(SshFailed, match="Permission denied"):
        kept.wait_until_open(LIMIT_S)


def test_what_the_system_refuses_ends_the_wait_for_it_with_a_sentence(ssh: Any, port: int):
    def find() -> tuple[OciClient, Target]:
        raise PermissionError(13, "Permission denied", "/some/key")

    told = Told()
    kept = Tunnel(find, port, told, QUICK)
    with kept.beside(), pytest.raises(KitError, match="Permission denied"):
        kept.wait_until_open(LIMIT_S)
    assert "there is no tunnel any more" in told.steps.get(timeout=LIMIT_S)
