"""`up`, `destroy` and `tunnel` on the way to a private API endpoint. OCI, the Pulumi CLI and `ssh` are stand-ins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.access import tunnel
from llmd_oke.access.sign_in import SignIn
from llmd_oke.cli import token
from llmd_oke.cli.tunnel import tunnel_options_of
from llmd_oke.config import validate
from oci_for_tests import CLUSTER, FakeOci, Sequence
from ssh_for_tests import put_ssh
from stack_files import cluster_layer, existing_cluster, write

STACK = cluster_layer(cluster={"network": {"bastionService": {"clientCidrs": ["203.0.113.0/24"]}}})
BASTION = {"id": "b", "targetVcnId": "vcn", "lifecycleState": "ACTIVE"}
COMMAND = "ssh -i <privateKey> -N -L <localPort>:10.0.0.6:6443 -p 22 s@host"
ANSWERS: dict[str, Any] = {
    "containerengine /clusters": [CLUSTER],
    "containerengine /clusters/x": CLUSTER,
    "bastion /bastions": [BASTION],
    "bastion /bastions/b": BASTION,
    "POST bastion /sessions": {"id": "s"},
    "bastion /sessions/s": {"lifecycleState": "ACTIVE", "sshMetadata": {"command": COMMAND}},
    "DELETE bastion /sessions/s": None,
}

# `preview` and `destroy` say whether the tunnel is open; `up` waits until it is.
CLI = """#!/bin/bash
here=$(dirname "$0")
reached() { (exec 3<>/dev/tcp/127.0.0.1/$(cat "$here/port")) 2>/dev/null; }
case "$1 $2" in
  "preview "*) reached && echo "preview reached" >> "$here/log"; echo '{"steps": []}' ;;
  "stack export") echo '{"deployment": {"resources": []}}' ;;
  "stack history") echo '[]' ;;
  "up "*) until reached || [ $SECONDS -gt 20 ]; do :; done; reached && echo "up reached" >> "$here/log" ;;
  "destroy "*) reached && echo "destroy reached" >> "$here/log" ;;
esac
"""

QUICK = tunnel.TunnelIntervals(seek_s=0.01, look_s=0.01, again_s=0.01)
Kit = Callable[..., tuple[int, str, str]]
Command = Callable[..., tuple[int, list[str], str]]


class Tenancy(FakeOci):
    """A tenancy that keeps who signed in, too."""

    def __init__(self) -> None:
        super().__init__(ANSWERS)
        self.who: list[SignIn] = []

    def signed_in(self, who: SignIn, _: str) -> FakeOci:
        self.who.append(who)
        return self


@pytest.fixture
def oci(monkeypatch: pytest.MonkeyPatch) -> Tenancy:
    client = Tenancy()
    monkeypatch.setattr(tunnel, "KEY_BITS", 1024)
    monkeypatch.setattr(tunnel, "TunnelIntervals", lambda: QUICK)
    monkeypatch.setattr(token, "client_of", client.signed_in)
    return client


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit: Kit, put_pulumi: Callable[[str], None], port: int
) -> Command:
    """Run `llmd-oke` on a stack whose file has these keys too; return exit code, the engine's log, standard error."""
    put_pulumi(CLI)
    (tmp_path / "port").write_text(str(port))
    put_ssh(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*words: str, **settings: str) -> tuple[int, list[str], str]:
        write(tmp_path, "prod", STACK, {key.replace("_", ":"): text for key, text in settings.items()})
        code, _, errors = kit(*words, "--stack", "prod", "--project", str(tmp_path))
        log = tmp_path / "log"
        return code, log.read_text().splitlines() if log.exists() else [], errors

    return run


def through(port: int) -> dict[str, str]:
    return {"llmd-oke_apiServer": f"https://127.0.0.1:{port}"}


def test_the_tunnel_opens_before_the_preview_by_the_stacks_own_oci_profile(command: Command, oci: Tenancy, port: int):
    words = ("up", "--yes", "--tunnel", "--no-benchmark")
    code, log, _ = command(*words, **through(port), oci_configFileProfile="PROD")
    assert (code, log) == (0, ["preview reached", "up reached"])
    assert set(oci.who) == {SignIn(None, "PROD")}
    assert oci.sent[-1][:2] == ("DELETE", "bastion /sessions/s")


def test_with_a_new_cluster_the_tunnel_opens_during_the_update(command: Command, oci: Tenancy, port: int):
    answers = [[], [], *[[CLUSTER]] * 9]
    oci.answers["containerengine /clusters"] = Sequence(answers)
    code, log, errors = command("up", "--yes", "--tunnel", "--no-benchmark", **through(port))
    assert (code, log[-1]) == (0, "up reached")
    assert "as soon as the cluster and its bastion are there" in errors


@pytest.mark.parametrize(("words", "last"), [(("destroy", "--yes"), "destroy"), (("pipeline", "deploy"), "up")])
def test_destroy_and_pipeline_deploy_open_a_tunnel_too(
    command: Command, oci: Tenancy, port: int, words: tuple[str, str], last: str
):
    code, log, _ = command(*words, "--tunnel", **through(port))
    assert (code, log[-1]) == (0, f"{last} reached")


def test_up_with_tunnel_refuses_a_kubeconfig_or_api_server_that_bypasses_the_tunnel(command: Command, oci: Tenancy):
    code, log, errors = command("up", "--yes", "--tunnel")
    assert (code, log) == (1, [])
    assert "pulumi config set llmd-oke:apiServer https://127.0.0.1:6443 --stack prod" in " ".join(errors.split())
    code, _, errors = command("up", "--tunnel", **{"llmd-oke_apiServer": "https://10.0.0.6:6443"})
    assert code == 1
    assert "llmd-oke:apiServer is https://10.0.0.6:6443" in " ".join(errors.split())


def test_an_update_that_needs_a_tunnel_says_which_option_opens_one(command: Command, oci: Tenancy, port: int):
    _, _, errors = command("destroy", "--yes", **through(port))
    assert f"nothing listens at 127.0.0.1:{port}" in errors
    assert "--tunnel" in errors


def test_the_tunnel_command_stops_waiting_for_a_missing_bastion_and_names_it(command: Command, oci: Tenancy):
    oci.answers["bastion /bastions"] = []
    code, _, errors = command("tunnel", "--wait", "0")
    assert code == 1
    assert "no active bastion in the cluster's VCN" in errors


def test_a_tunnel_to_an_existing_cluster_requires_the_clusters_ocid():
    stack = validate({**STACK, "cluster": existing_cluster()})
    with pytest.raises(KitError, match="no OCID of its cluster"):
        tunnel_options_of(stack)
    assert tunnel_options_of(stack, "ocid1.cluster.oc1.iad.x").cluster_id == "ocid1.cluster.oc1.iad.x"
