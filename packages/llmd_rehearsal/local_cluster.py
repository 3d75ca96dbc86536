"""A local cluster seen from the host: start it, ask how it is, run something inside, end it.

A local cluster is one rehearsed stack: a control plane, simulated nodes and whatever else its spec lists, in namespaces
of their own. Its files, logs included, lie in one state folder; it outlives the program that started it.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from llmd_base.errors import KitError
from llmd_base.progress import Progress, SilentProgress
from llmd_oke.operations.locks import file_lock, until
from llmd_oke.operations.pulumi_cli import end_group

from llmd_rehearsal import namespaces, running_time
from llmd_rehearsal.cluster_spec import (
    ClusterRecord,
    ClusterSpec,
    StateFolder,
    end_of_log,
    keep_previous,
    spec_differences,
)
from llmd_rehearsal.namespaces import ProcessIdentity

_LOCK_TIMEOUT_S = 360.0
_HEARTBEAT_S = 2.0

_KERNEL_TIMEOUT_S = 10.0
"""Within this, the kernel has ended everything of a local cluster whose first process has ended."""

_REPORT = 3
"""The descriptor on which the supervisor reports how it goes."""


class LocalCluster:
    """The local cluster of one state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = StateFolder(state.resolve())

    def status(self) -> ClusterRecord | None:
        """Status of the local cluster; None when there is none.

        A failed local cluster keeps its record, so that it can still be asked why. One that ended without a word (the
        machine was restarted, its first process was killed) is none.
        """
        record = self.folder.read_record()
        if record is None or record.phase == "failed" or record.supervisor.alive():
            return record
        return None

    def start(
        self,
        spec: ClusterSpec,
        progress: Progress | None = None,
        *,
        discard: Sequence[Path] = (),
        timeout_s: float = 300,
    ) -> ClusterRecord:
        """Start it and return when it is ready; one that already runs from the same spec is left as it is.

        A local cluster that runs from another spec is stopped first. Before a start, the folders in `discard` are
        removed: data of the run before that is not to be taken over. Raises KitError, with the end of the log of the
        process that failed, when the local cluster does not get ready; nothing of it is left running then.
        """
        listener = progress or SilentProgress()
        self._prepare_folder()
        with self._locked(listener):
            running = self.status()
            if running is not None and running.phase == "ready" and running.spec_digest == spec.digest():
                return running
            previous = self._spec() if running is not None and running.phase == "ready" else None
            self._stop(timeout_s=30)
            for folder in discard:
                shutil.rmtree(folder, ignore_errors=True)
            anew = ""
            if previous is not None:
                why = ", ".join(spec_differences(previous, spec))
                anew = f" anew, without what was deployed in the one before: {why}"
            listener.step(f"starting the rehearsal's local cluster{anew}")
            self.folder.spec_file.write_text(spec.to_json())
            return _Start(self.folder, listener, timeout_s).run()

    def stop(self, *, timeout_s: float = 30) -> None:
        """End the local cluster and check that no process, mount or link of it is left; do nothing where there is none.

        Its files stay. Raises KitError naming what would not end within the limit.
        """
        if self.folder.path.is_dir():
            with self._locked(SilentProgress()):
                self._stop(timeout_s)

    def environment(self) -> dict[str, str]:
        """The clean environment of the processes inside."""
        return namespaces.environment(self.folder.home)

    def enter_command(self, argv: Sequence[str], *, folder: Path | None = None) -> list[str]:
        """The command that runs `argv` inside, in `folder` (the state folder unless told otherwise).

        It takes its environment from whoever runs it: pass `environment()`. Raises KitError when the local cluster
        isn't ready.
        """
        record = self.status()
        if record is None or record.phase != "ready":
            why = "" if record is None or record.failure is None else f": {record.failure}"
            start = f"Start it: scripts/rehearse --stack {self.folder.path.name}"
            raise KitError(f"The rehearsal's local cluster in {self.folder.path} is not running{why}", start)
        return namespaces.enter_command(
            record.supervisor.pid, argv, folder or self.folder.path, user_namespace=record.user_namespace
        )

    @contextlib.contextmanager
    def process_inside(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: int | IO[str] | None = None,
        errors: int | IO[str] | None = None,
    ) -> Generator[subprocess.Popen[str]]:
        """A process inside, which ends with the block: SIGTERM to it and its children, SIGKILL 5 s later.

        `env` is added to the clean environment. `output` and `errors` are as `subprocess` has them; both go where
        the caller's go unless told otherwise.
        """
        process = subprocess.Popen(
            self.enter_command(argv, folder=folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            text=True,
            env={**self.environment(), **(env or {})},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end_group(process)

    def run_inside(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end, with its output captured; its status is for the caller to judge.

        Raises KitError when it takes longer than `timeout_s`.
        """
        with self.process_inside(
            argv, env=env, folder=folder, output=subprocess.PIPE, errors=subprocess.PIPE
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise KitError(f"`{' '.join(argv)}` did not end within {timeout_s:.0f} s") from error
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def _prepare_folder(self) -> None:
        if self.folder.path.is_relative_to("/run"):
            raise KitError(f"{self.folder.path} lies in /run, which a local cluster hides", "use a folder elsewhere")
        for path in (self.folder.logs, self.folder.home):
            path.mkdir(parents=True, exist_ok=True)

    def _spec(self) -> ClusterSpec | None:
        """Spec of the local cluster; None where another version of the kit wrote it."""
        try:
            return ClusterSpec.from_json(self.folder.spec_file.read_text())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _locked(self, progress: Progress) -> AbstractContextManager[None]:
        return file_lock(
            self.folder.lock_file, f"start or stop the local cluster in {self.folder.path}", progress, _LOCK_TIMEOUT_S
        )

    def _stop(self, timeout_s: float) -> None:
        record = self.folder.read_record()
        if record is not None:
            end_processes(record, timeout_s)
            with contextlib.suppress(ChildProcessError):  # the launcher is a child of the program that started it
                until(lambda: os.waitpid(record.launcher_pid, os.WNOHANG)[0] == record.launcher_pid, _KERNEL_TIMEOUT_S)
        mounts = namespaces.mounts_under(self.folder.path)
        if mounts:
            message = f"the local cluster left mounts on this machine: {', '.join(mounts)}"
            raise KitError(message, "unmount them with `umount`")
        self.folder.record_file.unlink(missing_ok=True)


@dataclass
class _Start:
    """One start of the local cluster whose spec lies in the state folder."""

    folder: StateFolder
    progress: Progress
    timeout_s: float

    def run(self) -> ClusterRecord:
        """Start the local cluster's first process and listen to it until the local cluster is ready.

        Raises KitError with the end of the log of the process that failed; nothing is left running then.
        """
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            try:
                launcher = self._spawn(writing)
            finally:
                os.close(writing)
            try:
                self._listen(pipe.fileno())
            except KeyboardInterrupt:
                self.progress.step("interrupted: what was started of the local cluster ends")
                self._abandon(launcher)
                self.folder.record_file.unlink(missing_ok=True)
                raise
            except BaseException:
                self._abandon(launcher)
                raise
        record = self.folder.read_record()
        if record is None:
            raise KitError(f"the local cluster is ready, yet {self.folder.record_file} can't be read")
        return record

    def _spawn(self, report: int) -> int:
        log_file = self.folder.log_file("supervisor")
        keep_previous(log_file)
        # -P: the folder that this program happens to run in must not hide a module.
        supervisor = [sys.executable, "-P", "-m", "llmd_rehearsal.supervisor", "--state", str(self.folder.path)]
        argv = namespaces.create_command([*supervisor, "--report", str(_REPORT)], user_namespace=os.geteuid() != 0)
        program = shutil.which(argv[0], path=namespaces.PATH)
        if program is None:
            raise KitError("`unshare` is missing", "install util-linux")
        descriptors = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, report, _REPORT),
        ]
        environment = namespaces.environment(self.folder.home)
        return os.posix_spawn(program, argv, environment, file_actions=descriptors, setsid=True)

    def _listen(self, pipe: int) -> None:
        for event in _events(pipe, self.timeout_s, self._still_starting):
            match event["kind"]:
                case "ready":
                    return
                case "failed":
                    raise KitError(event["text"])
                case _:
                    self.progress.detail(event["text"])
        log = self.folder.log_file("supervisor")
        if self.folder.read_record() is None:
            raise namespaces.namespace_error(end_of_log(log))
        raise KitError(f"the local cluster ended before it was ready; the end of {log}:\n{end_of_log(log)}")

    def _still_starting(self, waited_s: float) -> None:
        record = self.folder.read_record()
        waiting: list[str] = []
        if record is not None:
            waiting = [name for name, process in record.processes.items() if process.ready_after_s is None]
        self.progress.detail(f"waiting for {', '.join(waiting) or 'the namespaces'}, {waited_s:.0f} s")

    def _abandon(self, launcher: int) -> None:
        record = self.folder.read_record()
        if record is not None:
            end_processes(record, timeout_s=20)
            if record.phase != "failed":
                self.folder.write_record(replace(record, phase="failed", failure="the start was given up"))
        _signal(launcher, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(launcher, 0)


def _events(pipe: int, timeout_s: float, heartbeat: Callable[[float], None]) -> Iterator[dict[str, str]]:
    """The lines that the supervisor writes, until it ends; `heartbeat` is called while it says nothing."""
    started_s = running_time.now()
    rest = b""
    while running_time.now() - started_s < timeout_s:
        readable, _, _ = select.select([pipe], [], [], _HEARTBEAT_S)
        if not readable:
            heartbeat(running_time.now() - started_s)
            continue
        received = os.read(pipe, 65_536)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        yield from map(json.loads, lines)
    raise KitError(f"the local cluster was not ready after {timeout_s:.0f} s")


def end_processes(record: ClusterRecord, timeout_s: float) -> None:
    """Ask the local cluster's first process to stop the rest, kill it after `timeout_s`, and see that all have gone.

    Nothing happens when it has ended before. Raises KitError naming the processes that would not end.
    """
    supervisor = record.supervisor
    if not supervisor.alive():
        return
    members = _members(record)
    _signal(supervisor.pid, signal.SIGTERM)
    if not until(lambda: not supervisor.alive(), timeout_s):
        _signal(supervisor.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        for member in _alive(members):
            _signal(member.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        survivors = ", ".join(f"{member.pid} ({namespaces.command_of(member.pid)})" for member in _alive(members))
        raise KitError(f"these processes of the rehearsal's local cluster would not end: {survivors}")


def _members(record: ClusterRecord) -> list[ProcessIdentity]:
    """Processes in the local cluster's namespaces now; never one of the host's own, whatever the record says."""
    host = namespaces.namespaces_of(os.getpid())
    foreign = {kind: name for kind, name in record.namespaces.items() if host.get(kind) != name}
    members = map(namespaces.identity_of, namespaces.members_of(foreign))
    return [identity for identity in members if identity is not None]


def _alive(members: list[ProcessIdentity]) -> list[ProcessIdentity]:
    return [member for member in members if member.alive()]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
