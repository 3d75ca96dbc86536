"""Implementations of containers: programs in a bubblewrap sandbox, servers of the simulated vLLM, and placeholders."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import httpx2
from lightkube.models.core_v1 import Container as ContainerModel
from llmd_base.errors import KitError

from llmd_rehearsal.pods.processes import ChildProcess, children_of, run

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/ssl", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf")
_OWN_DEVICES = 'mount -t sysfs sysfs /sys && exec "$@"'
"""Shell command that mounts the devices of this network namespace at /sys, as ip-netns(8) does, and runs its
arguments.
"""

_NOT_RUNNING = 126
_STAND_BACK_PAUSE_S = 0.05
_STAND_BACK_ATTEMPTS = 400
_LONG_POLL_S = 30
_START_LIMIT_S = 30
_POLL_TRIES = 3
_WORK_PAUSE_S = 0.5
_LOST = 137
_OK, _CREATED, _NO_CONTENT = 200, 201, 204
DEFAULT_PATH = "/dev/termination-log"
LONGEST_BYTES = 4096
LONGEST_LOG_BYTES = 2048

LONGEST_LOG_LINES = 80
"""Limits of termination messages in kubelet:
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/.
"""


class Container(Protocol):
    """Interface of one run of a container; each restart creates a new object."""

    identity: str
    """Id of the run, as `containerID` in the pod's status."""
    probed: bool
    """Whether the container's probes can be run; a container whose probes can't be run counts as started and ready."""
    own_program: bool
    """Whether a process is started for this container alone."""
    time_scale: float
    """Wall seconds in which the container's program does one second of work on real hardware: the rehearsal's time
    scale for a simulated server.
    """

    def processes(self) -> Sequence[int]:
        """Return the ids, on this machine, of the processes that answer the container's probes."""
        ...

    async def start(self) -> None:
        """Start the container's program.

        Raises:
            OSError: the program can't be started.
            KitError: a required tool is missing.
            StartError: the container can't be created.
        """
        ...

    async def wait(self) -> int:
        """Wait until the container ends and return its exit code."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Stop the container with SIGTERM, and SIGKILL after the grace period; return once it has ended."""
        ...

    async def finish_work(self, limit_s: float) -> None:
        """Wait until the simulated servers, if this container is one of them, have no requests left, at most `limit_s`
        seconds.
        """
        ...

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:  # noqa: ARG002
        """Run a command in the container, for at most `timeout_s` seconds, and return exit code and output; 0 and no
        output for a container without a file system of its own, in which nothing is run.
        """
        return 0, ""

    async def write_log(self) -> None:
        """Write what the program has said so far to the container's log file, unless it is there already."""
        ...


class StartError(Exception):
    """A container can't be started; `reason` is the reason that the pod's status shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Mount:
    """File or folder of this machine that is mounted at a path of the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Sandbox:
    """Network namespace, mounts and working folder of a container's program. With `has_devices` the program sees the
    kernel's devices at `/sys`, including the network devices of its own namespace.
    """

    network: Path
    host_name: str
    mounts: Sequence[Mount]
    working_folder: str = "/"
    has_devices: bool = False


class PlaceholderContainer(Container):
    """Container without a process, for an image for which no program runs on this machine. With `completes` it ends
    immediately with exit code 0, as a Job's container would.
    """

    probed = False
    own_program = False
    time_scale = 1.0

    def __init__(self, *, completes: bool) -> None:
        self._end_event = asyncio.Event()
        if completes:
            self._end_event.set()
        self.identity = f"simulated://{uuid4().hex}"

    def processes(self) -> Sequence[int]:
        """Return no process ids, because a placeholder has no process."""
        return ()

    async def start(self) -> None:
        """Do nothing, because a placeholder has no process."""

    async def wait(self) -> int:
        """Wait until the placeholder is stopped (not at all with `completes`) and return exit code 0."""
        await self._end_event.wait()
        return 0

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002
        """End the placeholder, so that `wait` returns."""
        self._end_event.set()

    async def finish_work(self, limit_s: float) -> None:
        """Do nothing: a placeholder has no work."""

    async def write_log(self) -> None:
        """Do nothing: a placeholder says nothing."""


@dataclass(frozen=True)
class ProcessContainerSpec:
    """Arguments for starting a container whose program is a process of this machine."""

    sandbox: Sandbox
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    niceness: int = 0
    """Niceness (0 to 19, as of nice(1)) with which the program yields processors to the simulated servers."""


class ProcessContainer:
    """Container whose program runs in bubblewrap and writes its output to the log file."""

    probed = True
    own_program = True
    time_scale = 1.0

    def __init__(self, spec: ProcessContainerSpec) -> None:
        self._spec = spec
        self._process: ChildProcess | None = None
        self._standing_back: asyncio.Task[None] | None = None
        self.identity = f"process://{uuid4().hex}"

    def processes(self) -> Sequence[int]:
        """Return the ids of the processes in the container's sandbox: each process that is the only child of the one
        before, and then all children of the last of these.
        """
        chain: list[int] = []
        children = [] if self._process is None else self._process.children()
        while len(children) == 1:
            chain += children
            children = children_of(children[0])
        return chain + children

    async def start(self) -> None:
        """Start the container's program in bubblewrap.

        Raises:
            KitError: nsenter or bubblewrap isn't installed.
            OSError: the program can't be started.
        """
        self._spec.log.parent.mkdir(parents=True, exist_ok=True)
        niceness = self._spec.niceness
        argv = command(self._spec.sandbox, self._spec.argv, niceness)
        with self._spec.log.open("ab") as output:
            self._process = ChildProcess(argv, self._spec.environment, output)
        if niceness:
            self._standing_back = asyncio.create_task(_stand_back(self._process, niceness))

    async def wait(self) -> int:
        """Wait until the container's program ends and return its exit code; 128 + signal number if a signal ended the
        program.
        """
        return await self._started().wait()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the program, and SIGKILL to its PID namespace after the grace period; return once it has
        ended.
        """
        process = self._started()
        self._signal_program(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            self._signal_program(signal.SIGKILL)
            await process.wait()

    async def finish_work(self, limit_s: float) -> None:
        """Do nothing: the node agent doesn't know which work a program has."""

    async def write_log(self) -> None:
        """Do nothing: the program itself writes to the log file."""

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        """Run a command in the program's namespaces and return exit code and output; 126 if the program isn't
        running.
        """
        program = self._started().children()
        if not program:
            return _NOT_RUNNING, "container isn't running"
        return await run(entering(program[0], argv), timeout_s=timeout_s)

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("container wasn't started")
        return self._process

    def _signal_program(self, number: signal.Signals) -> None:
        """Send a signal to process 1 of the sandbox, as its parent, bubblewrap itself, forwards no signals."""
        process = self._started()
        children = process.children()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if not children:
            process.signal(number)


async def _stand_back(process: ChildProcess, niceness: int) -> None:
    """Lower the priority of the sandbox's whole session: Linux schedules by session, and niceness counts only within
    one.

    See sched(7), "The autogroup feature"; without that feature nothing needs to be done. A session exists once
    bubblewrap has created it, and users may change autogroups ten times a second in total.
    """
    for _ in range(_STAND_BACK_ATTEMPTS):
        for pid in process.children():
            with suppress(ProcessLookupError, BlockingIOError):
                if os.getsid(pid) == pid:
                    _lower_session(pid, niceness)
                    return
        await asyncio.sleep(_STAND_BACK_PAUSE_S)


def _lower_session(pid: int, niceness: int) -> None:
    with suppress(FileNotFoundError, PermissionError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


@dataclass(frozen=True)
class SimulatorSpec:
    """Arguments for starting a container that is a server of the simulated vLLM."""

    network: Path
    argv: Sequence[str]
    environment: Mapping[str, str]
    image: str
    log: Path
    mounts: Sequence[Mount] = ()
    time_scale: float = 1.0


class SimulatorContainer(Container):
    """Container that is a server in the process of the simulated vLLM, whose log is fetched when somebody asks for it
    and when the server ends.
    """

    probed = True
    own_program = False

    def __init__(self, spec: SimulatorSpec, client: httpx2.AsyncClient) -> None:
        self._spec = spec
        self._client = client
        self._id = uuid4().hex
        self.identity = f"simulator://{self._id}"
        self.time_scale = spec.time_scale
        self._simulator: tuple[int, ...] = ()

    def processes(self) -> Sequence[int]:
        """Return the id of the process of the simulated vLLM, which serves all simulated servers."""
        return self._simulator

    async def start(self) -> None:
        """Ask the simulated vLLM's process to start the container's server.

        Raises:
            StartError: the simulator refuses or doesn't answer.
        """
        spec = self._spec
        body: dict[str, Any] = {
            "id": self._id,
            "netns": str(spec.network),
            "argv": list(spec.argv),
            "env": dict(spec.environment),
            "image": spec.image,
            "mounts": {mount.target: str(mount.source) for mount in spec.mounts},
        }
        try:
            response = await self._client.post("/servers", json=body, timeout=_START_LIMIT_S)
        except httpx2.HTTPError as error:
            await self._forget(0)  # the server may have been started nevertheless, and would occupy the port
            raise StartError("CreateContainerError", f"simulated vLLM can't be reached: {error}") from error
        if response.status_code != _CREATED:
            raise StartError("CreateContainerError", f"simulated vLLM refused: {response.text}")
        self._simulator = (int(response.json()["process"]),)

    async def wait(self) -> int:
        """Wait until the simulated server ends and return its exit code; 137 if the simulated vLLM's process ended or
        doesn't know the server.
        """
        unanswered = 0
        limits = httpx2.Timeout(_LONG_POLL_S + 10)
        while unanswered < _POLL_TRIES:
            try:
                response = await self._client.get(
                    f"/servers/{self._id}/wait", params={"timeout_s": _LONG_POLL_S}, timeout=limits
                )
            except httpx2.ConnectError:
                return _LOST
            except httpx2.HTTPError:
                unanswered += 1
                continue
            unanswered = 0
            if response.status_code == _OK:
                await self.write_log()
                return int(response.json().get("exit_code") or 0)
            if response.status_code != _NO_CONTENT:
                return _LOST
        return _LOST

    async def stop(self, grace_s: float) -> None:
        """End the simulated server; requests in progress may finish within the grace period."""
        await self.write_log()
        await self._forget(grace_s)

    async def finish_work(self, limit_s: float) -> None:
        """Wait until no simulated server has a request or a KV cache that another server may fetch, at most `limit_s`
        seconds.

        The requests of all servers count, because a sidecar may still wait for another server's prefill before it sends
        a request to this container's server.
        """
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(limit_s):
                while not (await self._client.get("/healthz")).json()["at_rest"]:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_WORK_PAUSE_S)

    async def _forget(self, grace_s: float) -> None:
        with suppress(httpx2.HTTPError):
            timeout = httpx2.Timeout(grace_s + 10)
            await self._client.delete(f"/servers/{self._id}", params={"grace_s": grace_s}, timeout=timeout)

    async def write_log(self) -> None:
        """Write the log of the simulated server, as far as it has come, to the container's log file."""
        with suppress(httpx2.HTTPError):
            response = await self._client.get(f"/servers/{self._id}/log")
            if response.status_code == _OK:
                self._spec.log.parent.mkdir(parents=True, exist_ok=True)
                self._spec.log.write_text(response.text)


def command(sandbox: Sandbox, argv: Sequence[str], niceness: int = 0) -> list[str]:
    """Return the command line that runs `argv` in the sandbox as process 1 of its own PID namespace.

    The program has no capabilities except CAP_NET_BIND_SERVICE, and is killed if the process that started it ends.
    """
    mounts = [
        ("--ro-bind" if mount.read_only else "--bind", os.path.realpath(mount.source), mount.target.rstrip("/"))
        for mount in sorted(sandbox.mounts, key=lambda mount: mount.target.count("/"))
    ]
    return [
        *((_program_path("nice"), "-n", str(niceness)) if niceness else ()),
        *(_program_path("nsenter"), f"--net={sandbox.network}", "--"),
        *(
            (_program_path("unshare"), "--mount", "--", "/bin/sh", "-c", _OWN_DEVICES, "sh")
            if sandbox.has_devices
            else ()
        ),
        _program_path("bwrap"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent", "--new-session"),
        *("--hostname", sandbox.host_name, "--cap-drop", "ALL", "--cap-add", "CAP_NET_BIND_SERVICE"),
        *_system_options(),
        *(("--ro-bind", "/sys", "/sys") if sandbox.has_devices else ()),
        *chain.from_iterable(mounts),
        *("--chdir", sandbox.working_folder, "--", *argv),
    ]


def entering(process_id: int, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` in the namespaces of a container's sandbox; `process_id` is the id, on
    this machine, of the sandbox's process 1.
    """
    return [
        _program_path("nsenter"),
        f"--target={process_id}",
        "--mount",
        "--pid",
        "--net",
        "--uts",
        "--ipc",
        "--",
        *argv,
    ]


@cache
def _program_path(program: str) -> str:
    """Return the path of a program on this machine's PATH, which differs from the container's."""
    path = shutil.which(program)
    if path is None:
        raise KitError(f"{program} isn't installed", "Install the packages bubblewrap and util-linux.")
    return path


@cache
def _system_options() -> tuple[str, ...]:
    """Return the bubblewrap options for the fixed part of the root file system: this machine's /usr without /usr/local,
    read-only, and empty folders.
    """
    options: list[str] = []
    for folder in _SYSTEM_FOLDERS:
        path = Path(folder)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), folder]
        elif path.is_dir():
            options += ["--ro-bind", folder, folder]
    for folder in _SYSTEM_FILES:
        options += ["--ro-bind-try", folder, folder]
    options += ["--tmpfs", "/usr/local", "--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/var/tmp"):  # noqa: S108  # paths of the container
        options += ["--perms", "1777", "--dir", folder]
    return (*options, "--dir", "/root", "--dir", "/run", "--symlink", "../run", "/var/run")


def empty_file(path: Path) -> Path:
    """Create the empty file of a container's termination message and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def mount(model: ContainerModel, file: Path) -> Mount:
    """Return the mount of `file` at the path where the container `model` writes its termination message."""
    return Mount(file, model.terminationMessagePath or DEFAULT_PATH)


def termination_message(model: ContainerModel, code: int, file: Path, log: Path) -> str | None:
    """Return the container's termination message; None without one. If a failed container has none and its policy is
    FallbackToLogsOnError, the end of its log is the message.
    """
    message = _end(file, LONGEST_BYTES)
    if not message and code and model.terminationMessagePolicy == "FallbackToLogsOnError":
        message = "".join(_end(log, LONGEST_LOG_BYTES).splitlines(keepends=True)[-LONGEST_LOG_LINES:])
    return message or None


def _end(path: Path, longest_bytes: int) -> str:
    try:
        return path.read_bytes()[-longest_bytes:].decode(errors="replace")
    except FileNotFoundError:
        return ""
