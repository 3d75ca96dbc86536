"""A way to a private API endpoint through the OCI Bastion service, with a session and an SSH key of its own.

`ssh` is started again when it ends, and the next session is active before the last one ends, so that a renewal
interrupts connections for a moment only.
"""

import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.access.addresses import is_reachable
from llmd_oke.access.oci_client import OciClient, OciError

_SERVING = {"ACTIVE", "UPDATING"}
"""States of a cluster that answers (OCI API, lifecycle states)."""

ACTIVE_TIMEOUT_S = 180.0
POLL_S = 3.0
LOCALHOST = "127.0.0.1"
ENDING_S = 5.0
LAST_WORDS = 3
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
    """Error for a part of a tunnel that is not there, but may come."""


class SshFailed(KitError):
    """`ssh` ended at once, again and again."""


@dataclass(frozen=True)
class TunnelOptions:
    """Cluster that is wanted: an OCID, or else the name and the compartment of one that a stack makes.

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
class TunnelTarget:
    """End of a tunnel: a private address and port, through a bastion, in sessions of at most so long."""

    bastion_id: str
    host: str
    port: int
    session_s: float


def target(client: OciClient, options: TunnelOptions) -> TunnelTarget:
    """The private endpoint of a cluster, and the bastion on the way to it.

    Raises:
        NotYet: the cluster or its bastion is not there, or not active.
        KitError: the cluster has no private endpoint.
    """
    cluster = _cluster(client, options)
    endpoints: dict[str, str] = cluster.get("endpoints") or {}
    endpoint = endpoints.get("privateEndpoint")
    if not endpoint:
        raise KitError(f"The cluster {cluster.get('name')} has no private endpoint.", "Its public one needs no tunnel.")
    host, _, port = endpoint.partition(":")
    bastion = _bastion(client, cluster, options)
    session_s = min(options.session_s, int(bastion.get("maxSessionTtlInSeconds") or options.session_s))
    return TunnelTarget(str(bastion["id"]), host, int(port or 6443), session_s)


def _cluster(client: OciClient, options: TunnelOptions) -> dict[str, Any]:
    """The newest of a name: one that takes another's place is there beside it for a while."""
    ocid = options.cluster_id
    if ocid is None:
        query = {"compartmentId": options.compartment_id, "name": options.cluster_name}
        newest = client.get("containerengine", "/clusters", **query, sortBy="TIME_CREATED", sortOrder="DESC")
        ocid = next((str(item["id"]) for item in newest if item.get("lifecycleState") in _SERVING), None)
    if ocid is None:
        raise NotYet(f"The compartment has no active cluster {options.cluster_name}.", "Give --cluster-id for another.")
    cluster: dict[str, Any] = client.get("containerengine", f"/clusters/{ocid}")
    if cluster.get("lifecycleState") not in _SERVING:
        raise NotYet(f"The cluster {cluster.get('name')} is {cluster.get('lifecycleState')}.")
    return cluster


def _bastion(client: OciClient, cluster: Mapping[str, Any], options: TunnelOptions) -> dict[str, Any]:
    ocid = options.bastion_id
    if ocid is None:
        compartment = options.network_compartment_id or str(cluster["compartmentId"])
        listed = client.get("bastion", "/bastions", compartmentId=compartment)
        active = (item for item in listed if item.get("lifecycleState") == "ACTIVE")
        ocid = next((str(item["id"]) for item in active if item.get("targetVcnId") == cluster["vcnId"]), None)
    if ocid is None:
        remedy = "Have one created (cluster.network.bastionService.clientCidrs), or give --bastion-id."
        raise NotYet("The network's compartment has no active bastion in the cluster's VCN.", remedy)
    bastion: dict[str, Any] = client.get("bastion", f"/bastions/{ocid}")
    if bastion.get("lifecycleState") != "ACTIVE":
        raise NotYet(f"The bastion {bastion.get('name')} is {bastion.get('lifecycleState')}.")
    return bastion


@dataclass(frozen=True)
class BastionSession:
    """A bastion session that is active, and the command that makes the tunnel."""

    id: str
    command: str


@contextmanager
def session(
    client: OciClient,
    end: TunnelTarget,
    public_key: str,
    progress: Progress,
    pause: Callable[[float], None] = time.sleep,
) -> Generator[BastionSession]:
    """A bastion session during the block.

    Raises:
        OciError: OCI refuses.
        KitError: the session does not become active in time.
    """
    body = {
        "bastionId": end.bastion_id,
        "displayName": "llmd-oke-tunnel",
        "keyDetails": {"publicKeyContent": public_key},
        "sessionTtlInSeconds": round(end.session_s),
        "targetResourceDetails": {
            "sessionType": "PORT_FORWARDING",
            "targetResourcePrivateIpAddress": end.host,
            "targetResourcePort": end.port,
        },
    }
    created = client.send("POST", "bastion", "/sessions", body)
    try:
        yield _when_active(client, created["id"], progress, pause)
    finally:
        with suppress(OciError):  # it ends by itself with its time to live
            client.send("DELETE", "bastion", f"/sessions/{created['id']}")


def _when_active(client: OciClient, ocid: str, progress: Progress, pause: Callable[[float], None]) -> BastionSession:
    state = ""
    for attempt in range(int(ACTIVE_TIMEOUT_S / POLL_S)):
        document = client.get("bastion", f"/sessions/{ocid}")
        state = str(document.get("lifecycleState"))
        if state == "ACTIVE":
            return BastionSession(ocid, str(document["sshMetadata"]["command"]))
        if state in {"FAILED", "DELETED", "DELETING"}:
            break
        progress.detail(f"the bastion session is {state}, {attempt * POLL_S:.0f} s")
        pause(POLL_S)
    raise KitError(
        f"The bastion session did not become active in {ACTIVE_TIMEOUT_S:.0f} s; it is {state or 'nowhere'}.",
        "Does the bastion's allow list have your address?",
    )


def ssh_command(command: str, key: Path, local_port: int) -> list[str]:
    """The command of a session (`ssh -i <privateKey> -N -L <localPort>:…`) as a list, with its gaps filled.

    Hosts that it meets are remembered beside the key, not among the user's own.

    Raises:
        KitError: it is no such command.
    """
    words = [
        word.replace("<privateKey>", str(key)).replace("<localPort>", str(local_port)) for word in shlex.split(command)
    ]
    if words[:1] != ["ssh"] or str(key) not in words or any("<" in word for word in words):
        raise KitError(f"The bastion's command is not the one that was expected: {command}")
    hosts = f"UserKnownHostsFile={key.with_name('known_hosts')}"
    options = [part for option in (*SSH_OPTIONS, hosts) for part in ("-o", option)]
    return ["ssh", *options, *words[1:]]


def make_key(folder: Path) -> tuple[Path, str]:
    """A new key in a folder, readable by its owner only, and its public half as SSH writes it."""
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_bytes(private_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path, private_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


Find = Callable[[], tuple[OciClient, TunnelTarget]]
"""Looks for the cluster and its bastion, signed in anew; raises NotYet where they are not there."""


@dataclass(frozen=True)
class TunnelIntervals:
    """Intervals of a tunnel, in seconds: how often cluster and `ssh` are looked at, how long `ssh` may take until it
    listens, how long it must have run not to count as failed, the pause before it is started again and how often in a
    row, with how many sessions in a row, and how long before its end a session is renewed.
    """

    seek_s: float = 10.0
    look_s: float = 1.0
    listen_s: float = 30.0
    steady_s: float = 30.0
    again_s: float = 10.0
    tries: int = 4
    sessions: int = 2
    renewal_s: float = 300.0


class _Ended(Exception):
    """Somebody wants the tunnel no longer."""


class Tunnel:
    """Tunnel by which `https://127.0.0.1:<port>` leads to a cluster's private API endpoint.

    `failure` says why it is kept no longer, where nobody ended it.
    """

    def __init__(self, find: Find, port: int, progress: Progress, pace: TunnelIntervals | None = None) -> None:
        self.port = port
        self.failure: KitError | None = None
        self._find = find
        self._progress = progress
        self._pace = pace or TunnelIntervals()
        self._ending = threading.Event()
        self._open = threading.Event()

    def keep(self, patience_s: float | None = None) -> None:
        """Keep the tunnel open until the block of `beside` is left, or an interrupt.

        It waits for cluster and bastion, so long at most if a limit is given.

        Raises:
            NotYet: they did not come in time.
            KitError: the port is taken, OCI refuses, or `ssh` fails again and again.
        """
        _require_free(self.port)
        with suppress(_Ended), tempfile.TemporaryDirectory(prefix="llmd-oke-tunnel-") as folder:
            key, public = make_key(Path(folder))
            held, failed = ExitStack(), 0
            try:
                while True:
                    coming, active, renew_at_s = self._session(public, patience_s)
                    held.close()
                    held = coming
                    try:
                        self._forward(ssh_command(active.command, key, self.port), held, renew_at_s)
                        failed = 0
                    except SshFailed:  # somebody may have ended the session
                        failed += 1
                        if failed >= self._pace.sessions:
                            raise
            finally:
                held.close()

    @contextmanager
    def beside(self) -> Generator[None]:
        """Kept beside the block by a thread; what goes wrong is told as progress and as `failure`.

        Raises:
            KitError: the port is taken.
        """
        _require_free(self.port)
        thread = threading.Thread(target=self._keep_and_tell, name="tunnel")  # ends `ssh` even if nobody waits for it
        try:
            thread.start()
            yield
        finally:
            self._ending.set()
            thread.join()

    def wait_until_open(self, timeout_s: float) -> None:
        """Return once the tunnel is open.

        Raises:
            KitError: it can't be opened, or is not in time.
        """
        ends_at = time.monotonic() + timeout_s
        while not self._open.wait(self._pace.look_s):
            if self.failure:
                raise self.failure
            if time.monotonic() >= ends_at:
                raise KitError(f"The tunnel did not open in {timeout_s:g} s.", "`llmd-oke tunnel` shows its steps.")

    def _keep_and_tell(self) -> None:
        try:
            self.keep()
        except KitError as error:
            self.failure = error
        except (OSError, ValueError) as error:  # of the system, and of answers that nobody understands
            self.failure = KitError(f"The tunnel can't be kept: {error}.")
        if self.failure:
            self._progress.step(f"there is no tunnel any more: {self.failure.message}")

    def _session(self, public_key: str, patience_s: float | None) -> tuple[ExitStack, BastionSession, float]:
        """An active session in a stack that ends it, and when it has to be renewed on the monotonic clock."""
        started_s = time.monotonic()
        while True:
            coming = ExitStack()
            try:
                client, target = self._find()
                self._progress.detail(f"asking the bastion for a session to {target.host}:{target.port}")
                requested_s = time.monotonic()
                opening = session(client, target, public_key, self._progress, self._pause)
                return coming, coming.enter_context(opening), requested_s + target.session_s - self._pace.renewal_s
            except (NotYet, OciError) as error:
                waited_s = time.monotonic() - started_s
                if _is_final(error) or (patience_s is not None and waited_s >= patience_s):
                    raise
                self._progress.detail(f"waiting, {waited_s:.0f} s: {error.message}")
            self._pause(self._pace.seek_s)

    def _forward(self, argv: Sequence[str], held: ExitStack, renew_at_s: float) -> None:
        """Run `ssh` until the session has to be renewed; the last one is left to the stack, so that it goes on."""
        failed = 0
        while True:
            self._open.clear()
            with ExitStack() as here:
                process, errors = here.enter_context(_ssh_process(argv))
                started_s = time.monotonic()
                if self._watch(process, renew_at_s):
                    held.push(here.pop_all())
                    return
                words = errors()
            lasted = self._open.is_set() and time.monotonic() - started_s >= self._pace.steady_s
            failed = 0 if lasted else failed + 1
            if failed >= self._pace.tries:
                remedy = "Does the bastion's allow list have your address, and does anything stop SSH on the way?"
                raise SshFailed(f"ssh failed {failed} times in a row: {words}", remedy)
            self._progress.detail(f"ssh ended and is started again: {words}")
            self._pause(self._pace.again_s)

    def _watch(self, process: subprocess.Popen[bytes], renew_at_s: float) -> bool:
        """Tell whether `ssh` ran until the session has to be renewed; not if it ended, or listens nowhere in time."""
        listens_by_s = time.monotonic() + self._pace.listen_s
        while process.poll() is None:
            now_s = time.monotonic()
            if now_s >= renew_at_s:
                return True
            if not self._open.is_set():
                if now_s >= listens_by_s:
                    return False
                if is_reachable(LOCALHOST, self.port):  # it listens only after the bastion has let it in
                    self._progress.step(f"https://{LOCALHOST}:{self.port} leads to the API server")
                    self._open.set()
            self._pause(self._pace.look_s)
        return False

    def _pause(self, pause_s: float) -> None:
        if self._ending.wait(pause_s):
            raise _Ended


def _is_final(error: KitError) -> bool:
    """Tell whether waiting would not help: OCI has understood, and refuses."""
    return isinstance(error, OciError) and 400 <= error.status < 500 and error.status not in {409, 429}


@contextmanager
def _ssh_process(argv: Sequence[str]) -> Generator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A program with what it last said; it is out of reach of Ctrl-C, which ends it only after all that needs it."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )

        def last_words() -> str:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").split("\n")
            return "; ".join([line.strip() for line in lines if line.strip()][-LAST_WORDS:]) or "it said nothing"

        try:
            yield process, last_words
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError as error:
            remedy = "If that is a tunnel to this cluster, go without another; else end it, or use another port."
            raise KitError(f"Something listens at {LOCALHOST}:{port} already.", remedy) from error
