"""A way to a private API endpoint through the OCI Bastion service, with a session and an SSH key of its own."""

import shlex
import time
from collections.abc import Callable, Generator
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
KEY_BITS = 3072
SSH_OPTIONS = ("StrictHostKeyChecking=accept-new", "ServerAliveInterval=30", "ExitOnForwardFailure=yes")


@dataclass(frozen=True)
class Target:
    """What the tunnel leads to: a private address and port, through a bastion."""

    bastion_id: str
    host: str
    port: int
    session_s: int


def target(
    client: OciClient, cluster_id: str, bastion_id: str | None, session_s: int, compartment_id: str | None = None
) -> Target:
    """The private endpoint of a cluster, and the bastion of its network unless one is given.

    It is looked for in the network's compartment, which is the cluster's if left out.

    Raises:
        KitError: the cluster has no private endpoint, or its network no bastion.
    """
    cluster = client.get("containerengine", f"/clusters/{cluster_id}")
    endpoints: dict[str, str] = cluster.get("endpoints") or {}
    endpoint = endpoints.get("privateEndpoint")
    if not endpoint:
        raise KitError(f"The cluster {cluster.get('name')} has no private endpoint.", "Its public one needs no tunnel.")
    host, _, port = endpoint.partition(":")
    chosen = bastion_id or _bastion(client, cluster, compartment_id or str(cluster["compartmentId"]))
    return Target(chosen, host, int(port or 6443), session_s)


def _bastion(client: OciClient, cluster: dict[str, Any], compartment_id: str) -> str:
    bastions = client.get("bastion", "/bastions", compartmentId=compartment_id)
    for bastion in bastions:
        if bastion.get("targetVcnId") == cluster["vcnId"] and bastion.get("lifecycleState") == "ACTIVE":
            return str(bastion["id"])
    remedy = "Have one created (cluster.network.bastionService.clientCidrs), or give --bastion-id."
    raise KitError("The network's compartment has no active bastion in the cluster's VCN.", remedy)


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
        "sessionTtlInSeconds": wanted.session_s,
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

    Raises:
        KitError: it is no such command.
    """
    words = [
        word.replace("<privateKey>", str(key)).replace("<localPort>", str(local_port)) for word in shlex.split(told)
    ]
    if words[:1] != ["ssh"] or str(key) not in words or any("<" in word for word in words):
        raise KitError(f"The bastion's command is not the one that was expected: {told}")
    options = [part for option in SSH_OPTIONS for part in ("-o", option)]
    return ["ssh", *options, *words[1:]]


def make_key(folder: Path) -> tuple[Path, str]:
    """A new key in a folder, readable by its owner only, and its public half as SSH writes it."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path, made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
