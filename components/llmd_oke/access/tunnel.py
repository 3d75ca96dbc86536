"""SSH tunnel to a private API endpoint through the OCI Bastion service, with its own session and SSH key.

`ssh` is restarted when it ends, and a new session is active before the current session expires, so that a renewal
interrupts connections only briefly.
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
from llmd_base.private_files import write_private
from llmd_base.progress import Progress

from llmd_oke.access.addresses import is_reachable
from llmd_oke.access.oci_client import OciClient, OciError

_SERVING = {"ACTIVE", "UPDATING"}
"""Lifecycle states of a cluster whose API server answers (OCI API)."""

ACTIVE_TIMEOUT_S = 180.0
POLL_S = 3.0
LOCALHOST = "127.0.0.1"
ENDING_S = 5.0
LAST_WORDS = 3
LONGEST_SESSION_S = 10_800
"""Longest session of the Bastion service in seconds: three hours (OCI documentation, Bastion)."""

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
"""Options of `ssh` by which the tunnel doesn't use the user's own keys, agent and shared connections, and never
prompts."""


class NotYet(KitError):
    """Error for a cluster or bastion that doesn't exist or isn't active yet."""


class SshFailed(KitError):
    """Error for an `ssh` that ended early several times in a row."""


@dataclass(frozen=True)
class TunnelOptions:
    """Cluster at the end of a tunnel: its OCID, or the name and compartment of a cluster that a stack creates.

    If `bastion_id` is None, the bastion is looked up in the network's compartment, which is the cluster's if left out.
    `session_s` is the longest lifetime of a session in seconds.
    """

    cluster_id: str | None = None
    cluster_name: str = ""
    compartment_id: str = ""
    bastion_id: str | None = None
    network_compartment_id: str | None = None
    session_s: int = LONGEST_SESSION_S


@dataclass(frozen=True)
class TunnelTarget:
    """End of a tunnel to a private API endpoint: host and port, the bastion's OCID, and the longest lifetime of a
    session in seconds.
    """

    bastion_id: str
    host: str
    port: int
    session_s: float


def target(client: OciClient, options: TunnelOptions) -> TunnelTarget:
    """Look up a cluster's private endpoint and the bastion in the cluster's VCN.

    Raises:
        NotYet: the cluster or the bastion doesn't exist, or isn't active.
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
    """Return OCI's description of the cluster with the given OCID, or else of the newest active cluster of that name: a
    cluster and its replacement have the same name for a while.

    Raises:
        NotYet: no such cluster exists, or the cluster isn't active.
    """
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
    """An active bastion session: its OCID, and the `ssh` command that OCI gives for the tunnel."""

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
    """Create a bastion session, wait until it is active, and delete it at the end of the block.

    Raises:
        OciError: OCI refuses the session.
        KitError: the session isn't active after `ACTIVE_TIMEOUT_S`.
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
        with suppress(OciError):  # the session expires anyway
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
    """Return a session's command (`ssh -i <privateKey> -N -L <localPort>:…`) as an argument list, with its placeholders
    filled in and `SSH_OPTIONS` added.

    Host keys are stored beside the private key, not in the user's `known_hosts`.

    Raises:
        KitError: the command hasn't the expected form.
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
    """Create an SSH key pair; return the private key's path in `folder` (mode 0600) and the public
    key in OpenSSH form.
    """
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    path = folder / "key"
    write_private(path, private_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path, private_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


Find = Callable[[], tuple[OciClient, TunnelTarget]]
"""Function that signs in to OCI and looks up the cluster and its bastion; raises NotYet while they don't exist."""


@dataclass(frozen=True)
class TunnelIntervals:
    """Intervals (in seconds) and numbers of attempts of a tunnel.

    `seek_s` and `look_s` are the intervals of checks of cluster and `ssh`; `listen_s` the longest wait until `ssh`
    listens; `steady_s` the shortest run of `ssh` that counts as success; `again_s` the pause before a restart; `tries`
    and `sessions` the numbers of consecutive failures of `ssh` in a session, and of sessions, that end the tunnel;
    `renewal_s` the time between the start of a renewal and the session's end.
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
    """Exception that ends the tunnel's thread once the block of `beside` is left."""


class Tunnel:
    """Tunnel from `https://127.0.0.1:<port>` to a cluster's private API endpoint.

    `failure` is the error that ended the tunnel; None while the tunnel runs, and after a regular end.
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
        """Keep the tunnel open until the block of `beside` is left, or until an interrupt (Ctrl-C).

        First waits for cluster and bastion, at most `patience_s` seconds, or without limit if left out.

        Raises:
            NotYet: cluster or bastion isn't active after `patience_s`.
            KitError: the port is in use, OCI refuses a request, or `ssh` fails several times in a row.
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
                    except SshFailed:  # the session may have been deleted
                        failed += 1
                        if failed >= self._pace.sessions:
                            raise
            finally:
                held.close()

    @contextmanager
    def beside(self) -> Generator[None]:
        """Keep the tunnel open in a thread during the block; errors of the thread go to progress and to `failure`.

        Raises:
            KitError: the port is in use.
        """
        _require_free(self.port)
        thread = threading.Thread(target=self._keep_and_tell, name="tunnel")  # no daemon: it must end `ssh`
        try:
            thread.start()
            yield
        finally:
            self._ending.set()
            thread.join()

    def wait_until_open(self, timeout_s: float) -> None:
        """Wait until the tunnel is open.

        Raises:
            KitError: the tunnel can't be opened, or isn't open after `timeout_s` seconds.
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
        except (OSError, ValueError) as error:  # of the system, and of answers that can't be parsed
            self.failure = KitError(f"The tunnel can't be kept: {error}.")
        if self.failure:
            self._progress.step(f"there is no tunnel any more: {self.failure.message}")

    def _session(self, public_key: str, patience_s: float | None) -> tuple[ExitStack, BastionSession, float]:
        """Return an ExitStack whose closing deletes the session, the active session, and the time of its renewal in
        seconds on the monotonic clock. Waits for cluster and bastion as `keep` does.
        """
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
                # Other errors of a request (4xx) are the same after a retry.
                is_refused = (
                    isinstance(error, OciError) and 400 <= error.status < 500 and error.status not in {409, 429}
                )
                if is_refused or (patience_s is not None and waited_s >= patience_s):
                    raise
                self._progress.detail(f"waiting, {waited_s:.0f} s: {error.message}")
            self._pause(self._pace.seek_s)

    def _forward(self, argv: Sequence[str], held: ExitStack, renew_at_s: float) -> None:
        """Run `ssh`, restarted when it ends, until the session must be renewed; the running process is then moved to
        `held`, so that it serves until the next session is active.

        Raises:
            SshFailed: `ssh` failed several times in a row.
        """
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
        """Wait until `renew_at_s`; return True if `ssh` still runs then, False if `ssh` ended or doesn't listen in
        time.
        """
        listens_by_s = time.monotonic() + self._pace.listen_s
        while process.poll() is None:
            now_s = time.monotonic()
            if now_s >= renew_at_s:
                return True
            if not self._open.is_set():
                if now_s >= listens_by_s:
                    return False
                if is_reachable(LOCALHOST, self.port):  # `ssh` listens only after it has authenticated
                    self._progress.step(f"https://{LOCALHOST}:{self.port} leads to the API server")
                    self._open.set()
            self._pause(self._pace.look_s)
        return False

    def _pause(self, pause_s: float) -> None:
        if self._ending.wait(pause_s):
            raise _Ended


@contextmanager
def _ssh_process(argv: Sequence[str]) -> Generator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run a program during the block; yield the process and a function that returns its last lines of standard error.

    The process has a session of its own, so that Ctrl-C doesn't end it before the processes that use the tunnel.
    """
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
