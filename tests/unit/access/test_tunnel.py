"""The tunnel: which bastion, which session, which command. OCI and SSH are not there."""

import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.access import tunnel
from llmd_oke.errors import KitError
from llmd_oke.progress import SilentProgress
from oci_for_tests import CLUSTER, FakeOci, Sequence

BASTIONS = [
    {"id": "elsewhere", "targetVcnId": "other", "lifecycleState": "ACTIVE"},
    {"id": "gone", "targetVcnId": "vcn", "lifecycleState": "DELETED"},
    {"id": "right", "targetVcnId": "vcn", "lifecycleState": "ACTIVE"},
]
BASTION = {"id": "right", "name": "ours", "lifecycleState": "ACTIVE", "maxSessionTtlInSeconds": 10800}
TOLD = "ssh -i <privateKey> -N -L <localPort>:10.0.0.6:6443 -p 22 ocid1.bastionsession@host.bastion.example"
ACTIVE = {"lifecycleState": "ACTIVE", "sshMetadata": {"command": TOLD}}
TARGET = tunnel.Target("right", "10.0.0.6", 6443, 1800)
WANTED = tunnel.Wanted(cluster_id="x", session_s=1800)
NAMED = tunnel.Wanted(cluster_name="prod", compartment_id="c", session_s=1800)


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


def test_the_active_bastion_of_the_clusters_network_leads_to_its_private_endpoint():
    assert tunnel.target(oci(), WANTED) == TARGET


def test_a_cluster_that_a_stack_makes_is_known_by_its_name_newest_first():
    client = oci()
    assert tunnel.target(client, NAMED) == TARGET
    (query,) = [query for asked, query in client.asked if asked == "containerengine /clusters"]
    assert query == {"compartmentId": "c", "name": "prod", "sortBy": "TIME_CREATED", "sortOrder": "DESC"}


@pytest.mark.parametrize("found", [[], [{"id": "x", "lifecycleState": "CREATING"}]])
def test_a_cluster_that_is_still_to_come_may_be_waited_for(found: list[Any]):
    with pytest.raises(tunnel.NotYet, match="no active cluster prod"):
        tunnel.target(oci(**{"containerengine /clusters": found}), NAMED)


def test_a_bastion_that_is_given_is_taken():
    assert tunnel.target(oci(), replace(WANTED, bastion_id="mine")).bastion_id == "mine"


def test_a_bastion_that_is_still_to_come_may_be_waited_for():
    coming = {"bastion /bastions/mine": {"name": "mine", "lifecycleState": "CREATING"}}
    with pytest.raises(tunnel.NotYet, match="The bastion mine is CREATING"):
        tunnel.target(oci(**coming), replace(WANTED, bastion_id="mine"))


def test_sessions_live_no_longer_than_the_bastion_lets_them():
    short = {"bastion /bastions/right": {**BASTION, "maxSessionTtlInSeconds": 1900}}
    assert tunnel.target(oci(**short), replace(WANTED, session_s=10_800)).session_s == 1900


def test_a_bastion_is_looked_for_in_the_networks_compartment():
    client = oci()
    tunnel.target(client, replace(WANTED, network_compartment_id="of-the-network"))
    assert ("bastion /bastions", {"compartmentId": "of-the-network"}) in client.asked


def test_a_network_without_a_bastion_is_said_to_have_none():
    with pytest.raises(tunnel.NotYet, match="no active bastion"):
        tunnel.target(oci(**{"bastion /bastions": BASTIONS[:2]}), WANTED)


def test_a_cluster_without_a_private_endpoint_needs_no_tunnel():
    with pytest.raises(KitError, match="no private endpoint"):
        tunnel.target(oci(**{"containerengine /clusters/x": {**CLUSTER, "endpoints": {}}}), WANTED)


def test_a_session_is_for_the_endpoint_only_and_is_deleted_at_the_end():
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


def test_a_session_that_fails_is_deleted_and_said_to_have_failed():
    client = oci(**{"bastion /sessions/s": {"lifecycleState": "FAILED"}})
    with (
        pytest.raises(KitError, match="it is FAILED"),
        tunnel.session(client, TARGET, "k", SilentProgress(), lambda _: None),
    ):
        pass
    assert client.sent[-1][0] == "DELETE"


def test_a_session_that_never_becomes_active_ends_the_wait():
    client = oci(**{"bastion /sessions/s": {"lifecycleState": "CREATING"}})
    with (
        pytest.raises(KitError, match="180 s"),
        tunnel.session(client, TARGET, "k", SilentProgress(), lambda _: None),
    ):
        pass


def test_the_command_is_the_bastions_with_its_gaps_filled():
    argv = tunnel.ssh_command(TOLD, Path("/tmp/k/key"), 6443)
    assert argv[0] == "ssh"
    assert argv[-7:] == ["/tmp/k/key", "-N", "-L", "6443:10.0.0.6:6443", "-p", "22", argv[-1]]


def test_the_users_own_keys_agent_and_known_hosts_have_no_part_in_it():
    argv = tunnel.ssh_command(TOLD, Path("/tmp/k/key"), 6443)
    options = {word for before, word in pairwise(argv) if before == "-o"}
    assert {"IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes"} <= options
    assert {"UserKnownHostsFile=/tmp/k/known_hosts", "StrictHostKeyChecking=accept-new"} <= options


@pytest.mark.parametrize("told", ["rm -rf <privateKey>", "ssh host", "ssh -i <privateKey> <other>"])
def test_another_command_is_not_run(told: str):
    with pytest.raises(KitError, match="not the one that was expected"):
        tunnel.ssh_command(told, Path("/k"), 6443)


def test_the_key_is_new_and_its_owners_only(tmp_path: Path):
    key, public = tunnel.make_key(tmp_path)
    assert public.startswith("ssh-rsa ")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
