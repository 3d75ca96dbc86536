"""The tunnel: which bastion, which session, which command. OCI and SSH are not there."""

import os
import queue
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.access import tunnel
from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.access.tunnel import NotYet, SshFailed, Tunnel, TunnelIntervals, TunnelOptions, TunnelTarget
from oci_for_tests import CLUSTER, FakeOci, Sequence
from ssh_for_tests import put_ssh

BASTIONS = [
    {"id": "elsewhere", "targetVcnId": "other", "lifecycleState": "ACTIVE"},
    {"id": "gone", "targetVcnId": "vcn", "lifecycleState": "DELETED"},
    {"id": "right", "targetVcnId": "vcn", "lifecycleState": "ACTIVE"},
]
BASTION = {"id": "right", "name": "ours", "lifecycleState": "ACTIVE", "maxSessionTtlInSeconds": 10800}
TOLD = "ssh -i <privateKey> -N -L <localPort>:10.0.0.6:6443 -p 22 ocid1.bastionsession@host.bastion.example"
ACTIVE = {"lifecycleState": "ACTIVE", "sshMetadata": {"command": TOLD}}
TARGET = tunnel.TunnelTarget("right", "10.0.0.6", 6443, 1800)
OPTIONS = TunnelOptions(cluster_id="x", session_s=1800)
NAMED = TunnelOptions(cluster_name="prod", compartment_id="c", session_s=1800)


def oci(**changes: Any) -> FakeOci:
    answers = {
        "containerengine /clusters": [{"id": "old", "lifecycleState": "DELETED"}, CLUSTER],
        "containerengine /clusters/x": CLUSTER,
        "bastion /bastions": BASTIONS,
        "bastion /bastions/right": BASTION,
        "bastion /bastions/mine": {**BASTION, "id": "mine"},
        "POST bastion /sessions": {"id": "s"},
        "bastion /sessions/s": ACTIVE,
        "DELETE bastion /sessions/s": None,
    }
    return FakeOci({**answers, **changes})


def test_a_tunnel_uses_the_active_bastion_of_the_clusters_network_or_a_given_one():
    assert tunnel.target(oci(), OPTIONS) == TARGET
    assert tunnel.target(oci(), replace(OPTIONS, bastion_id="mine")).bastion_id == "mine"


def test_the_tunnel_finds_a_stacks_cluster_by_name_and_prefers_the_newest():
    client = oci()
    assert tunnel.target(client, NAMED) == TARGET
    (query,) = [query for asked, query in client.asked if asked == "containerengine /clusters"]
    assert query == {"compartmentId": "c", "name": "prod", "sortBy": "TIME_CREATED", "sortOrder": "DESC"}


@pytest.mark.parametrize(
    ("options", "answer", "message"),
    [
        (NAMED, {"containerengine /clusters": []}, "no active cluster prod"),
        (NAMED, {"containerengine /clusters": [{"id": "x", "lifecycleState": "CREATING"}]}, "no active cluster prod"),
        (OPTIONS, {"bastion /bastions": BASTIONS[:2]}, "no active bastion"),
        (
            replace(OPTIONS, bastion_id="mine"),
            {"bastion /bastions/mine": {"name": "mine", "lifecycleState": "CREATING"}},
            "The bastion mine is CREATING",
        ),
    ],
    ids=["no cluster", "cluster in creation", "no bastion", "bastion in creation"],
)
def test_what_is_not_there_yet_raises_the_error_that_a_tunnel_waits_on(
    options: TunnelOptions, answer: dict[str, Any], message: str
):
    with pytest.raises(NotYet, match=message):
        tunnel.target(oci(**answer), options)


def test_a_bastion_of_the_networks_compartment_limits_how_long_its_sessions_last():
    short = {"bastion /bastions/right": {**BASTION, "maxSessionTtlInSeconds": 1900}}
    assert tunnel.target(oci(**short), replace(OPTIONS, session_s=10_800)).session_s == 1900
    client = oci()
    tunnel.target(client, replace(OPTIONS, network_compartment_id="of-the-network"))
    assert ("bastion /bastions", {"compartmentId": "of-the-network"}) in client.asked


def test_a_cluster_without_a_private_endpoint_needs_no_tunnel():
    with pytest.raises(KitError, match="no private endpoint"):
        tunnel.target(oci(**{"containerengine /clusters/x": {**CLUSTER, "endpoints": {}}}), OPTIONS)


def test_a_bastion_session_reaches_only_the_api_endpoint_and_is_deleted_at_the_end():
    client = oci(**{"bastion /sessions/s": Sequence([{"lifecycleState": "CREATING"}, ACTIVE])})
    pauses: list[float] = []
    with tunnel.session(client, TARGET, "ssh-rsa AAAA", SilentProgress(), pauses.append) as session:
        assert session.command == TOLD
    (_, _, body), deleted = client.sent
    assert body["targetResourceDetails"] == {
        "sessionType": "PORT_FORWARDING",
        "targetResourcePrivateIpAddress": "10.0.0.6",
        "targetResourcePort": 6443,
    }
    assert (body["keyDetails"], body["sessionTtlInSeconds"]) == ({"publicKeyContent": "ssh-rsa AAAA"}, 1800)
    assert deleted[:2] == ("DELETE", "bastion /sessions/s")
    assert len(pauses) == 1


@pytest.mark.parametrize(("state", "message"), [("FAILED", "it is FAILED"), ("CREATING", "180 s")])
def test_a_bastion_session_that_does_not_become_active_is_deleted_and_reported(state: str, message: str):
    client = oci(**{"bastion /sessions/s": {"lifecycleState": state}})
    opened = tunnel.session(client, TARGET, "k", SilentProgress(), lambda _: None)
    with pytest.raises(KitError, match=message), opened:
        pass
    assert client.sent[-1][0] == "DELETE"


def test_a_tunnels_ssh_command_is_the_bastions_without_keys_or_hosts_of_the_user():
    argv = tunnel.ssh_command(TOLD, Path("/tmp/k/key"), 6443)
    assert argv[0] == "ssh"
    assert argv[-7:] == ["/tmp/k/key", "-N", "-L", "6443:10.0.0.6:6443", "-p", "22", argv[-1]]
    options = {word for before, word in pairwise(argv) if before == "-o"}
    assert {"IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes"} <= options
    assert {"UserKnownHostsFile=/tmp/k/known_hosts", "StrictHostKeyChecking=accept-new"} <= options


@pytest.mark.parametrize("told", ["rm -rf <privateKey>", "ssh host", "ssh -i <privateKey> <other>"])
def test_an_unexpected_ssh_command_from_the_bastion_is_not_run(told: str):
    with pytest.raises(KitError, match="not the one that was expected"):
        tunnel.ssh_command(told, Path("/k"), 6443)


def test_the_tunnels_ssh_key_is_new_and_readable_only_by_its_owner(tmp_path: Path):
    key, public = tunnel.make_key(tmp_path)
    assert public.startswith("ssh-rsa ")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")


LIMIT_S = 20.0
QUICK = TunnelIntervals(seek_s=0.01, look_s=0.01, listen_s=LIMIT_S, steady_s=LIMIT_S, again_s=0.01, tries=3, sessions=2)


class Oci:
    """OCI with session after session, each active at once, and what was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def get(self, service: str, path: str, **query: str) -> Any:
        number = path.rsplit("/", 1)[-1]
        told = f"ssh -i <privateKey> -N -L <localPort>:10.0.0.6:6443 -p 22 {number}@host"
        return {"lifecycleState": "ACTIVE", "sshMetadata": {"command": told}}

    def send(self, method: str, service: str, path: str, body: Any = None) -> Any:
        count = sum(item.startswith("POST") for item in self.sent) + 1
        self.sent.append(f"{method} s{count}" if method == "POST" else f"{method} {path.rsplit('/', 1)[-1]}")
        return {"id": f"s{count}"}


class Told(Listener):
    """A listener that hands steps out as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: queue.Queue[str] = queue.Queue()

    def step(self, text: str) -> None:
        self.coming.put(text)

    def until_open(self) -> None:
        while "leads to the API server" not in self.coming.get(timeout=LIMIT_S):
            pass


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], list[str]]]:
    """Put an `ssh` on PATH whose runs go as planned, and then stay; return for which sessions it ran."""

    def planned(*runs: str) -> Callable[[], list[str]]:
        put_ssh(tmp_path, *runs)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return lambda: [line.partition("@")[0] for line in (tmp_path / "starts").read_text().split()]

    return planned


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "KEY_BITS", 1024)


def found(oci: OciClient, *errors: Exception) -> Callable[[], tuple[OciClient, TunnelTarget]]:
    """Return what finds the cluster after as many looks as there are errors."""
    before = iter(errors)

    def find() -> tuple[OciClient, TunnelTarget]:
        for error in before:
            raise error
        return oci, TunnelTarget("bastion", "10.0.0.6", 6443, 1800)

    return find


MISSING = NotYet("The compartment has no active cluster prod.")


def test_a_tunnel_waits_for_a_cluster_that_does_not_exist_yet(ssh: Any, port: int):
    ssh()
    progress = Told()
    with Tunnel(found(Oci(), MISSING), port, progress, QUICK).beside():
        progress.until_open()
    assert any("no active cluster prod" in item for item in progress.details)


@pytest.mark.parametrize(
    ("error", "patience_s"),
    [(MISSING, 0), (OciError(401, "NotAuthenticated", "refused"), None)],
    ids=["limit", "error"],
)
def test_a_time_limit_and_an_error_of_oci_end_a_tunnels_wait_for_its_cluster(
    ssh: Any, port: int, error: KitError, patience_s: float | None
):
    ssh()
    with pytest.raises(type(error), match=error.message):
        Tunnel(found(Oci(), error), port, Told(), QUICK).keep(patience_s)


def test_the_tunnel_starts_ssh_again_if_ssh_fails_at_first(ssh: Any, port: int):
    starts, progress = ssh("refuse", "refuse"), Told()
    with Tunnel(found(Oci()), port, progress, QUICK).beside():
        progress.until_open()
    assert starts() == ["s1", "s1", "s1"]
    assert any("Permission denied" in item for item in progress.details)


def test_the_tunnel_starts_ssh_again_after_the_connection_ends(ssh: Any, port: int):
    starts, progress = ssh("leave"), Told()
    with Tunnel(found(Oci()), port, progress, QUICK).beside():
        progress.until_open()
        progress.until_open()
    assert starts() == ["s1", "s1"]


def test_a_second_bastion_session_is_tried_before_the_tunnel_fails(ssh: Any, port: int):
    starts = ssh(*["refuse"] * 6)
    oci = Oci()
    with pytest.raises(SshFailed, match=r"3 times in a row: Permission denied") as failed:
        Tunnel(found(oci), port, Told(), QUICK).keep()
    assert starts() == ["s1"] * 3 + ["s2"] * 3
    assert "allow list" in (failed.value.remedy or "")
    assert oci.sent[-1] == "DELETE s2"


def test_the_next_bastion_session_is_opened_before_the_last_one_expires(ssh: Any, port: int):
    starts, progress, oci = ssh(), Told(), Oci()
    lives_s = iter([QUICK.renewal_s + 0.3])

    def find() -> tuple[OciClient, TunnelTarget]:
        return oci, TunnelTarget("bastion", "10.0.0.6", 6443, next(lives_s, 1800.0))

    with Tunnel(find, port, progress, QUICK).beside():
        progress.until_open()
        while "s2" not in starts():
            progress.until_open()
    assert oci.sent[:3] == ["POST s1", "POST s2", "DELETE s1"]


def test_a_closed_tunnel_leaves_neither_bastion_session_nor_local_listener(ssh: Any, port: int):
    ssh()
    progress, oci = Told(), Oci()
    with Tunnel(found(oci), port, progress, QUICK).beside():
        progress.until_open()
    assert oci.sent == ["POST s1", "DELETE s1"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_an_occupied_local_port_of_the_tunnel_is_reported(port: int):
    occupied, link = socket.create_server(("127.0.0.1", port)), Tunnel(found(Oci()), port, Told(), QUICK)
    with occupied, pytest.raises(KitError, match=f"127.0.0.1:{port} already"), link.beside():
        pass


def test_waiting_for_a_tunnel_that_fails_ends_with_the_ssh_error(ssh: Any, port: int):
    ssh(*["refuse"] * 6)
    link = Tunnel(found(Oci()), port, Told(), QUICK)
    with link.beside(), pytest.raises(SshFailed, match="Permission denied"):
        link.wait_until_open(LIMIT_S)


def test_an_os_error_ends_the_wait_for_a_tunnel_with_a_message(ssh: Any, port: int):
    progress = Told()
    link = Tunnel(found(Oci(), PermissionError(13, "Permission denied", "/some/key")), port, progress, QUICK)
    with link.beside(), pytest.raises(KitError, match="Permission denied"):
        link.wait_until_open(LIMIT_S)
    assert "there is no tunnel any more" in progress.coming.get(timeout=LIMIT_S)
