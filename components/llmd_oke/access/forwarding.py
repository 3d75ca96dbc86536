"""A tunnel that stays open: `ssh` is started again when it ends, and sessions are renewed before they do.

The next session is active before the last one ends, so that a renewal interrupts connections for a moment only.
"""

import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from llmd_oke.access import tunnel as tunnels
from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.access.reachability import is_reachable
from llmd_oke.access.tunnel import NotYet, Session, Target
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress

HERE = "127.0.0.1"
ENDING_S = 5.0
LAST_WORDS = 3

Find = Callable[[], tuple[OciClient, Target]]
"""Looks for the cluster and its bastion, signed in anew; raises NotYet where they are not there."""


@dataclass(frozen=True)
class Pace:
    """How the tunnel is kept, in seconds: how often cluster and `ssh` are looked at, how long `ssh` may take until it
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


class SshFailed(KitError):
    """`ssh` ended at once, again and again."""


class _Ended(Exception):
    """Somebody wants the tunnel no longer."""


class Tunnel:
    """Makes `https://127.0.0.1:<port>` lead to a cluster's private API endpoint.

    `failure` says why it is kept no longer, where nobody ended it.
    """

    def __init__(self, find: Find, port: int, progress: Progress, pace: Pace | None = None) -> None:
        self.port = port
        self.failure: KitError | None = None
        self._find = find
        self._progress = progress
        self._pace = pace or Pace()
        self._ending = threading.Event()
        self._open = threading.Event()

    def keep(self, patience_s: float | None = None) -> None:
        """Keeps it open until the block of `beside` is left, or an interrupt.

        It waits for cluster and bastion, so long at most if a limit is given.

        Raises:
            NotYet: they did not come in time.
            KitError: the port is taken, OCI refuses, or `ssh` fails again and again.
        """
        _require_free(self.port)
        with suppress(_Ended), tempfile.TemporaryDirectory(prefix="llmd-oke-tunnel-") as folder:
            key, public = tunnels.make_key(Path(folder))
            held, failed = ExitStack(), 0
            try:
                while True:
                    coming, session, renew_at_s = self._session(public, patience_s)
                    held.close()
                    held = coming
                    try:
                        self._forward(tunnels.ssh_command(session.command, key, self.port), held, renew_at_s)
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
        """Returns once it is open.

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

    def _session(self, public_key: str, patience_s: float | None) -> tuple[ExitStack, Session, float]:
        """An active session in a stack that ends it, and when it has to be renewed on the monotonic clock."""
        began_s = time.monotonic()
        while True:
            coming = ExitStack()
            try:
                client, target = self._find()
                self._progress.detail(f"asking the bastion for a session to {target.host}:{target.port}")
                asked_s = time.monotonic()
                session = tunnels.session(client, target, public_key, self._progress, self._pause)
                return coming, coming.enter_context(session), asked_s + target.session_s - self._pace.renewal_s
            except (NotYet, OciError) as error:
                waited_s = time.monotonic() - began_s
                if _is_final(error) or (patience_s is not None and waited_s >= patience_s):
                    raise
                self._progress.detail(f"waiting, {waited_s:.0f} s: {error.message}")
            self._pause(self._pace.seek_s)

    def _forward(self, argv: Sequence[str], held: ExitStack, renew_at_s: float) -> None:
        """Runs `ssh` until the session has to be renewed; the last one is left to the stack, so that it goes on."""
        failed = 0
        while True:
            self._open.clear()
            with ExitStack() as here:
                process, errors = here.enter_context(_started(argv))
                began_s = time.monotonic()
                if self._watch(process, renew_at_s):
                    held.push(here.pop_all())
                    return
                words = errors()
            lasted = self._open.is_set() and time.monotonic() - began_s >= self._pace.steady_s
            failed = 0 if lasted else failed + 1
            if failed >= self._pace.tries:
                remedy = "Does the bastion's allow list have your address, and does anything stop SSH on the way?"
                raise SshFailed(f"ssh failed {failed} times in a row: {words}", remedy)
            self._progress.detail(f"ssh ended and is started again: {words}")
            self._pause(self._pace.again_s)

    def _watch(self, process: subprocess.Popen[bytes], renew_at_s: float) -> bool:
        """Whether it ran until the session has to be renewed; not if it ended, or listens nowhere in time."""
        listens_by_s = time.monotonic() + self._pace.listen_s
        while process.poll() is None:
            now_s = time.monotonic()
            if now_s >= renew_at_s:
                return True
            if not self._open.is_set():
                if now_s >= listens_by_s:
                    return False
                self._tell_if_open()
            self._pause(self._pace.look_s)
        return False

    def _tell_if_open(self) -> None:
        """It listens only after the bastion has let it in."""
        if is_reachable(HERE, self.port):
            self._progress.step(f"https://{HERE}:{self.port} leads to the API server")
            self._open.set()

    def _pause(self, pause_s: float) -> None:
        if self._ending.wait(pause_s):
            raise _Ended


def _is_final(error: KitError) -> bool:
    """Whether waiting would not help: OCI has understood, and refuses."""
    return isinstance(error, OciError) and 400 <= error.status < 500 and error.status not in {409, 429}


@contextmanager
def _started(argv: Sequence[str]) -> Generator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A program with what it last said; it is out of reach of Ctrl-C, which ends it only after all that needs it."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )

        def last_words() -> str:
            said.seek(0)
            lines = said.read().decode(errors="replace").split("\n")
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
            probe.bind((HERE, port))
        except OSError as error:
            remedy = "If that is a tunnel to this cluster, go without another; else end it, or use another port."
            raise KitError(f"Something listens at {HERE}:{port} already.", remedy) from error
