"""A way to a private API endpoint through the OCI Bastion service, with a session and an SSH key of its own."""

import shlex
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress

ACTIVE_TIMEOUT_S = 180.0
POLL_S = 3.0
LONGEST_SESSION_S = 10_800
"""OCI documentation, Bastion: sessions live three hours at most."""

KEY_BITS = 3072
SSH_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ControlMaster=no",
    "ControlPath=none",
    "ExitOnForwardFailure=yes",
    "GatewayPorts=no",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "ServerAliveCountMax=6",
    "ServerAliveInterval=30",
    "StrictHostKeyChecking=accept-new",
)
"""The user's own keys, agent and shared connections have no part in the tunnel, and nobody is asked."""


class NotYet(KitError):
    """What a tunnel leads to, or through, is not there, but may come."""


@dataclass(frozen=True)
class Wanted:
    """Which cluster is wanted: an OCID, or else the name and the compartment of one that a stack makes.

    `bastion_id` is a bastion of the user's; otherwise it is looked for in the network's compartment, which is the
    cluster's if left out. `session_s` is how long a session may live, in seconds.
    """

    cluster_id: str | None = None
    cluster_name: str = ""
    compartment_id: str = ""
    bastion_id: str | None = None
    network_compartment_id: str | None = None
    session_s: int = LONGEST_SESSION_S


@dataclass(frozen=True)
class Target:
    """What the tunnel leads to: a private address and port, through a bastion, in sessions of at most so long."""

    bastion_id: str
    host: str
    port: int
    session_s: float


def target(client: OciClient, wanted: Wanted) -> Target:
    """The private endpoint of a cluster, and the bastion on the way to it.

    Raises:
        NotYet: the cluster or its bastion is not there, or not active.
        KitError: the cluster has no private endpoint.
    """
    cluster = _cluster(client, wanted)
    endpoints: dict[str, str] = cluster.get("endpoints") or {}
    endpoint = endpoints.get("privateEndpoint")
    if not endpoint:
        raise KitError(f"The cluster {cluster.get('name')} has no private endpoint.", "Its public one needs no tunnel.")
    host, _, port = endpoint.partition(":")
    bastion = _bastion(client, cluster, wanted)
    session_s = min(wanted.session_s, int(bastion.get("maxSessionTtlInSeconds") or wanted.session_s))
    return Target(str(bastion["id"]), host, int(port or 6443), session_s)


def _cluster(client: OciClient, wanted: Wanted) -> dict[str, Any]:
    """The newest of a name: one that takes another's place is there beside it for a while."""
    ocid = wanted.cluster_id
    if ocid is None:
        query = {"compartmentId": wanted.compartment_id, "name": wanted.cluster_name}
        newest = client.get("containerengine", "/clusters", **query, sortBy="TIME_CREATED", sortOrder="DESC")
        ocid = next((str(each["id"]) for each in newest if each.get("lifecycleState") in _SERVING), None)
    if ocid is None:
        raise NotYet(f"The compartment has no active cluster {wanted.cluster_name}.", "Give --cluster-id for another.")
    cluster: dict[str, Any] = client.get("containerengine", f"/clusters/{ocid}")
    if cluster.get("lifecycleState") not in _SERVING:
        raise NotYet(f"The cluster {cluster.get('name')} is {cluster.get('lifecycleState')}.")
    return cluster


_SERVING = {"ACTIVE", "UPDATING"}


def _bastion(client: OciClient, cluster: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    ocid = wanted.bastion_id or _bastion_of(client, cluster, wanted.network_compartment_id)
    bastion: dict[str, Any] = client.get("bastion", f"/bastions/{ocid}")
    if bastion.get("lifecycleState") != "ACTIVE":
        raise NotYet(f"The bastion {bastion.get('name')} is {bastion.get('lifecycleState')}.")
    return bastion


def _bastion_of(client: OciClient, cluster: Mapping[str, Any], compartment_id: str | None) -> str:
    place = compartment_id or str(cluster["compartmentId"])
    for bastion in client.get("bastion", "/bastions", compartmentId=place):
        if bastion.get("targetVcnId") == cluster["vcnId"] and bastion.get("lifecycleState") == "ACTIVE":
            return str(bastion["id"])
    remedy = "Have one created (cluster.network.bastionService.clientCidrs), or give --bastion-id."
    raise NotYet("The network's compartment has no active bastion in the cluster's VCN.", remedy)


@dataclass(frozen=True)
class Session:
    """A bastion session that is active, and the command that makes the tunnel."""

    id: str
    command: str


@contextmanager
def session(
    client: OciClient,
    wanted: Target,
    public_key: str,
    progress: Progress,
    pause: Callable[[float], None] = time.sleep,
) -> Generator[Session]:
    """A bastion session during the block.

    Raises:
        OciError: OCI refuses.
        KitError: the session does not become active in time.
    """
    body = {
        "bastionId": wanted.bastion_id,
        "displayName": "llmd-oke-tunnel",
        "keyDetails": {"publicKeyContent": public_key},
        "sessionTtlInSeconds": round(wanted.session_s),
        "targetResourceDetails": {
            "sessionType": "PORT_FORWARDING",
            "targetResourcePrivateIpAddress": wanted.host,
            "targetResourcePort": wanted.port,
        },
    }
    made = client.send("POST", "bastion", "/sessions", body)
    try:
        yield _when_active(client, made["id"], progress, pause)
    finally:
        with suppress(OciError):  # it ends by itself with its time to live
            client.send("DELETE", "bastion", f"/sessions/{made['id']}")


def _when_active(client: OciClient, ocid: str, progress: Progress, pause: Callable[[float], None]) -> Session:
    state = ""
    for attempt in range(int(ACTIVE_TIMEOUT_S / POLL_S)):
        found = client.get("bastion", f"/sessions/{ocid}")
        state = str(found.get("lifecycleState"))
        if state == "ACTIVE":
            return Session(ocid, str(found["sshMetadata"]["command"]))
        if state in {"FAILED", "DELETED", "DELETING"}:
            break
        progress.detail(f"the bastion session is {state}, {attempt * POLL_S:.0f} s")
        pause(POLL_S)
    raise KitError(
        f"The bastion session did not become active in {ACTIVE_TIMEOUT_S:.0f} s; it is {state or 'nowhere'}.",
        "Does the bastion's allow list have your address?",
    )


def ssh_command(told: str, key: Path, local_port: int) -> list[str]:
    """The command of a session (`ssh -i <privateKey> -N -L <localPort>:…`) as a list, with its gaps filled.

    Hosts that it meets are remembered beside the key, not among the user's own.

    Raises:
        KitError: it is no such command.
    """
    words = [
        word.replace("<privateKey>", str(key)).replace("<localPort>", str(local_port)) for word in shlex.split(told)
    ]
    if words[:1] != ["ssh"] or str(key) not in words or any("<" in word for word in words):
        raise KitError(f"The bastion's command is not the one that was expected: {told}")
    hosts = f"UserKnownHostsFile={key.with_name('known_hosts')}"
    options = [part for option in (*SSH_OPTIONS, hosts) for part in ("-o", option)]
    return ["ssh", *options, *words[1:]]


def make_key(folder: Path) -> tuple[Path, str]:
    """A new key in a folder, readable by its owner only, and its public half as SSH writes it."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path, made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
