"""Processes of containers: programs in a bubblewrap sandbox, servers of the simulated vLLM, or placeholders."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
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
"""Mount the devices that a process in this network namespace has, as ip-netns(8) does, and run a command there."""

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
"""Limits of kubelet: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/."""


class Container(Protocol):
    """One run of a container; a restart makes a new one."""

    @property
    def identity(self) -> str:
        """Give the `containerID` shown in the pod's status."""
        ...

    @property
    def probed(self) -> bool:
        """Tell whether there is something to probe; otherwise it counts as started and ready."""
        ...

    @property
    def own_program(self) -> bool:
        """Tell whether a process is started for this container alone."""
        ...

    @property
    def time_scale(self) -> float:
        """Wall seconds for a second of its own time: above 1 where its requests take longer than on real machines."""
        ...

    def processes(self) -> Sequence[int]:
        """Give the processes that answer for it, by their ids here."""
        ...

    async def start(self) -> None:
        """Start; OSError or KitError when it can't be."""
        ...

    async def wait(self) -> int:
        """Give the exit code when it has ended."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End it: politely first, by force after the grace period. Returns when it has ended."""
        ...

    async def finish_work(self, limit_s: float) -> None:
        """Wait until no server that it works with has a request left, at most so long."""
        ...

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        """Run a command in it; give exit code and output."""
        ...


class StartError(Exception):
    """A container that can't be started; `reason` as in a status, the message says why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Mount:
    """A file or folder of the machine shown at a path of the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Sandbox:
    """Network, files and working folder of a container's program; `has_devices` lets it see the kernel's devices, those
    of its own network among them, at `/sys`.
    """

    network: Path
    host_name: str
    mounts: Sequence[Mount]
    working_folder: str = "/"
    has_devices: bool = False


class PlaceholderContainer:
    """Container without a process; `completes` is true for containers that are expected to end, such as a Job's."""

    probed = False
    own_program = False
    time_scale = 1.0

    def __init__(self, *, completes: bool) -> None:
        self._end_event = asyncio.Event()
        if completes:
            self._end_event.set()
        self.identity = f"simulated://{uuid4().hex}"

    def processes(self) -> Sequence[int]:
        """Return no process."""
        return ()

    async def start(self) -> None:
        """Do nothing."""

    async def wait(self) -> int:
        """Give 0 when it has been stopped, at once if it completes by itself."""
        await self._end_event.wait()
        return 0

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002
        """End the placeholder, which has no process."""
        self._end_event.set()

    async def finish_work(self, limit_s: float) -> None:
        """Do nothing: a placeholder has no work."""

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:  # noqa: ARG002
        """Do nothing and return exit code 0 without output."""
        return 0, ""


@dataclass(frozen=True)
class ProcessContainerSpec:
    """All that a process container needs."""

    sandbox: Sandbox
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    niceness: int = 0
    """How far it stands back for what simulates servers, where both want a processor: 0 to 19, as of nice(1)."""


class ProcessContainer:
    """Container whose program runs by bubblewrap; its output goes straight to its log file."""

    probed = True
    own_program = True
    time_scale = 1.0

    def __init__(self, spec: ProcessContainerSpec) -> None:
        self._spec = spec
        self._process: ChildProcess | None = None
        self._standing_back: asyncio.Task[None] | None = None
        self.identity = f"process://{uuid4().hex}"

    def processes(self) -> Sequence[int]:
        """Processes of the sandbox, as far as each has started one other."""
        chain: list[int] = []
        children = [] if self._process is None else self._process.children()
        while len(children) == 1:
            chain += children
            children = children_of(children[0])
        return chain + children

    async def start(self) -> None:
        """Start the program; FileNotFoundError when nsenter isn't installed."""
        self._spec.log.parent.mkdir(parents=True, exist_ok=True)
        niceness = self._spec.niceness
        argv = command(self._spec.sandbox, self._spec.argv, niceness)
        with self._spec.log.open("ab") as output:
            self._process = ChildProcess(argv, self._spec.environment, output)
        if niceness:
            self._standing_back = asyncio.create_task(_stand_back(self._process, niceness))

    async def wait(self) -> int:
        """Give the exit code, 128 + signal for a program that a signal ended."""
        return await self._started().wait()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the program, SIGKILL to all of its namespace after the grace period."""
        process = self._started()
        self._signal_program(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            self._signal_program(signal.SIGKILL)
            await process.wait()

    async def finish_work(self, limit_s: float) -> None:
        """Do nothing: what work a program has isn't known here."""

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        """Run a command beside the program."""
        program = self._started().children()
        if not program:
            return _NOT_RUNNING, "container isn't running"
        return await run(entering(program[0], argv), timeout_s=timeout_s)

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("container wasn't started")
        return self._process

    def _signal_program(self, number: signal.Signals) -> None:
        """Signal process 1 of the sandbox; bubblewrap itself, its parent, passes no signals on."""
        process = self._started()
        children = process.children()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if not children:
            process.signal(number)


async def _stand_back(process: ChildProcess, niceness: int) -> None:
    """Lower the sandbox's session as a whole: Linux groups processes by session, and niceness counts within a group.

    See sched(7), "The autogroup feature"; without that feature there is nothing to do. A session can be lowered once
    the sandbox has made it, and users may do so ten times a second in all.
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
    """All that a simulated server needs."""

    network: Path
    argv: Sequence[str]
    environment: Mapping[str, str]
    image: str
    log: Path
    mounts: Sequence[Mount] = ()
    time_scale: float = 1.0


def simulator_client(url: str) -> httpx2.AsyncClient:
    """A way to the simulator; each server keeps a connection, on which its end is waited for."""
    return httpx2.AsyncClient(base_url=url, limits=httpx2.Limits(max_connections=None), trust_env=False)


class SimulatorContainer:
    """A simulated model server; its log is fetched when it ends."""

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
        """The simulator, which is one process for all servers."""
        return self._simulator

    async def start(self) -> None:
        """Ask for the server; StartError when the simulator refuses or isn't there."""
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
            await self._forget(0)  # it may have been made all the same, and would keep the port
            raise StartError("CreateContainerError", f"simulated vLLM can't be reached: {error}") from error
        if response.status_code != _CREATED:
            raise StartError("CreateContainerError", f"simulated vLLM refused: {response.text}")
        self._simulator = (int(response.json()["process"]),)

    async def wait(self) -> int:
        """Give the exit code; 137 when the simulator has forgotten the server or has gone itself."""
        unanswered = 0
        while unanswered < _POLL_TRIES:
            try:
                response = await self._poll()
            except httpx2.ConnectError:
                return _LOST
            except httpx2.HTTPError:
                unanswered += 1
                continue
            unanswered = 0
            if response.status_code == _OK:
                await self._fetch_log()
                return int(response.json().get("exit_code") or 0)
            if response.status_code != _NO_CONTENT:
                return _LOST
        return _LOST

    async def stop(self, grace_s: float) -> None:
        """End the server; running requests may end within the grace period."""
        await self._fetch_log()
        await self._forget(grace_s)

    async def finish_work(self, limit_s: float) -> None:
        """Wait until no simulated server has a request or a KV cache that others may fetch, at most so long.

        A sidecar may still wait for another server's prefill before it asks this one: so all of them count.
        """
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(limit_s):
                while not (await self._client.get("/healthz")).json()["at_rest"]:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_WORK_PAUSE_S)

    async def _poll(self) -> httpx2.Response:
        limits = httpx2.Timeout(_LONG_POLL_S + 10)
        return await self._client.get(f"/servers/{self._id}/wait", params={"timeout_s": _LONG_POLL_S}, timeout=limits)

    async def _forget(self, grace_s: float) -> None:
        with suppress(httpx2.HTTPError):
            timeout = httpx2.Timeout(grace_s + 10)
            await self._client.delete(f"/servers/{self._id}", params={"grace_s": grace_s}, timeout=timeout)

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:  # noqa: ARG002
        """Do nothing, successfully: a simulated server has no file system to run a command in."""
        return 0, ""

    async def _fetch_log(self) -> None:
        with suppress(httpx2.HTTPError):
            response = await self._client.get(f"/servers/{self._id}/log")
            if response.status_code == _OK:
                self._spec.log.parent.mkdir(parents=True, exist_ok=True)
                self._spec.log.write_text(response.text)


def command(sandbox: Sandbox, argv: Sequence[str], niceness: int = 0) -> list[str]:
    """Give the command line that runs `argv` in the sandbox as process 1 of its own process namespace.

    It keeps no capabilities but binding low ports, and dies with the process that started it.
    """
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
        *_mount_options(sandbox.mounts),
        *("--chdir", sandbox.working_folder, "--", *argv),
    ]


def entering(process_id: int, argv: Sequence[str]) -> list[str]:
    """Give the command line that runs `argv` beside process 1 of a sandbox, whose id outside is `process_id`."""
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
    """Give the program's path: the container's own PATH isn't for finding these."""
    path = shutil.which(program)
    if path is None:
        raise KitError(f"{program} isn't installed", "Install the packages bubblewrap and util-linux.")
    return path


@cache
def _system_options() -> tuple[str, ...]:
    """Give the root's fixed part: the machine's /usr without /usr/local, read-only, and empty folders."""
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


def _mount_options(mounts: Sequence[Mount]) -> list[str]:
    options: list[str] = []
    for mount in sorted(mounts, key=lambda mount: mount.target.count("/")):
        option = "--ro-bind" if mount.read_only else "--bind"
        options += [option, os.path.realpath(mount.source), mount.target.rstrip("/")]
    return options


def empty_file(path: Path) -> Path:
    """Create the empty file of a container's termination message and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def mount(model: ContainerModel, file: Path) -> Mount:
    """Mount of the file at the path where the container expects it."""
    return Mount(file, model.terminationMessagePath or DEFAULT_PATH)


def termination_message(model: ContainerModel, code: int, file: Path, log: Path) -> str | None:
    """The container's termination message; the end of its log if it failed without one and asks for that."""
    message = _end(file, LONGEST_BYTES)
    if not message and code and model.terminationMessagePolicy == "FallbackToLogsOnError":
        message = "".join(_end(log, LONGEST_LOG_BYTES).splitlines(keepends=True)[-LONGEST_LOG_LINES:])
    return message or None


def _end(path: Path, longest_bytes: int) -> str:
    try:
        return path.read_bytes()[-longest_bytes:].decode(errors="replace")
    except FileNotFoundError:
        return ""
