"""Local cluster as seen from the host: start, status, commands inside, and end.

A local cluster is one rehearsed stack: a control plane, simulated nodes and the other processes of its spec, in
namespaces of their own. All its files, logs included, are in one state folder. A local cluster outlives the program
that started it.
"""

import contextlib
import json
import os
import select
import shlex
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
    fact_differences,
    keep_previous,
)
from llmd_rehearsal.namespaces import ProcessIdentity

_LOCK_TIMEOUT_S = 360.0
_HEARTBEAT_S = 2.0
_NONE_UP = "none was up"

_KERNEL_TIMEOUT_S = 10.0
"""Limit in seconds for the kernel to end all processes of a local cluster after the end of its first process."""

_REPORT = 3
"""File descriptor on which the supervisor reports the progress of the start."""


def command_line(project: Path, words: str) -> str:
    """Return the command line of a rehearsal command (`words`) for the user's shell: `scripts/rehearse` if this process
    was started in a checkout with that script, else `llmd-oke rehearse`; with `--project` if the command would take
    another project otherwise.
    """
    command = "scripts/rehearse" if Path("scripts", "rehearse").is_file() else "llmd-oke rehearse"
    named = project.resolve() != Path(os.environ.get("LLMD_OKE_PROJECT", "")).resolve()
    return f"{command} {words}" + (f" --project {shlex.quote(str(project))}" if named else "")


class LocalCluster:
    """Local cluster of a rehearsal, controlled from the host, with its files in the folder `state`."""

    def __init__(self, state: Path) -> None:
        self.folder = StateFolder(state.resolve())

    def status(self) -> ClusterRecord | None:
        """Return the local cluster's status; None if there is no local cluster.

        A failed local cluster keeps its record, which says why. A local cluster that ended without recording a failure
        (the machine was restarted, or the first process was killed) has no status.
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
        """Start the local cluster and return its record once it is ready; do nothing if it already runs from an equal
        spec.

        A local cluster that runs from another spec is stopped first. The folders in `discard`, data of an earlier run,
        are deleted before the start.

        Raises:
            KitError: the local cluster didn't become ready within `timeout_s` seconds, or a process failed; the message
                has the end of that process's log. No process is left running.
        """
        listener = progress or SilentProgress()
        if self.folder.path.is_relative_to("/run"):
            raise KitError(f"{self.folder.path} lies in /run, which a local cluster hides", "use a folder elsewhere")
        for path in (self.folder.logs, self.folder.home):
            path.mkdir(parents=True, exist_ok=True)
        with self._locked(listener):
            running = self.status()
            reason = start_reason(running, spec)
            if running is not None and not reason:
                return running
            self._stop(timeout_s=30)
            for folder in discard:
                shutil.rmtree(folder, ignore_errors=True)
            anew = "" if reason == _NONE_UP else f" anew, without what was deployed in the one before: {reason}"
            listener.step(f"starting the rehearsal's local cluster{anew}")
            self.folder.spec_file.write_text(spec.to_json())
            return _Start(self.folder, listener, timeout_s).run()

    def stop(self, *, timeout_s: float = 30) -> None:
        """End the local cluster and check that none of its processes and mounts is left; do nothing if no local cluster
        is up. The local cluster's files are kept.

        Raises:
            KitError: processes or mounts are left after the time limit; the message names each of them.
        """
        if self.folder.path.is_dir():
            with self._locked(SilentProgress()):
                self._stop(timeout_s)

    def environment(self) -> dict[str, str]:
        """Return the environment of processes inside the local cluster, without the user's variables."""
        return namespaces.environment(self.folder.home)

    def enter_command(self, argv: Sequence[str], *, folder: Path | None = None) -> list[str]:
        """Return the command that runs `argv` inside the local cluster, in `folder` (by default the state folder).

        The command doesn't set the environment: start it with `environment()`.

        Raises:
            KitError: the local cluster isn't ready.
        """
        record = self.status()
        if record is None or record.phase != "ready":
            why = "" if record is None or record.failure is None else f": {record.failure}"
            project = self.folder.path.parents[1]
            start = f"Start it: {command_line(project, f'--stack {self.folder.path.name}')}"
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
        """Start a process inside the local cluster and yield it. At the end of the block, the process group gets
        SIGTERM, and SIGKILL 5 s later.

        `env` is added to `environment()`. `output` and `errors` are `stdout` and `stderr` of `subprocess.Popen`; by
        default both are the caller's.
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
        """Run a command inside the local cluster to its end and return its exit status and captured output.

        Raises:
            KitError: the command took longer than `timeout_s` seconds.
        """
        with self.process_inside(
            argv, env=env, folder=folder, output=subprocess.PIPE, errors=subprocess.PIPE
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise KitError(f"`{' '.join(argv)}` did not end within {timeout_s:.0f} s") from error
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

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


def start_reason(running: ClusterRecord | None, spec: ClusterSpec) -> str:
    """Return the reason why a local cluster has to be started for a spec: no local cluster is ready, or the one that is
    (`running`) has another spec, with the differences. Empty if that one has an equal spec.
    """
    if running is None or running.phase != "ready":
        return _NONE_UP
    return "" if running.spec_digest == spec.digest() else ", ".join(fact_differences(running.facts, spec.facts))


@dataclass
class _Start:
    """Start of the local cluster whose spec is in the state folder."""

    folder: StateFolder
    progress: Progress
    timeout_s: float

    def run(self) -> ClusterRecord:
        """Start the local cluster's first process, report its events until the local cluster is ready, and return the
        record.

        Raises:
            KitError: a process failed, or the time limit passed; the message has the end of the process's log. No
                process is left
                running.
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
        # -P: modules in the working directory must not shadow others.
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
            refusal = f"this machine does not allow the rehearsal its own namespaces: {end_of_log(log).strip()}"
            raise KitError(refusal, namespaces.REMEDY)
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
    """Yield the supervisor's reports until the supervisor ends; call `heartbeat` with the waited seconds while there
    are none.

    Raises:
        KitError: the supervisor still runs after `timeout_s` seconds.
    """
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
    """Send SIGTERM to the local cluster's first process, SIGKILL after `timeout_s` seconds, and wait until all
    processes of the local cluster are gone; do nothing if the first process has ended before.

    Raises:
        KitError: processes are left; the message names them.
    """
    supervisor = record.supervisor
    if not supervisor.alive():
        return
    host = namespaces.namespaces_of(os.getpid())
    own = {kind: name for kind, name in record.namespaces.items() if host.get(kind) != name}
    members = [member for pid in namespaces.members_of(own) if (member := namespaces.identity_of(pid)) is not None]
    _signal(supervisor.pid, signal.SIGTERM)
    if not until(lambda: not supervisor.alive(), timeout_s):
        _signal(supervisor.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        for member in _alive(members):
            _signal(member.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        survivors = ", ".join(f"{member.pid} ({namespaces.command_of(member.pid)})" for member in _alive(members))
        raise KitError(f"these processes of the rehearsal's local cluster would not end: {survivors}")


def _alive(members: list[ProcessIdentity]) -> list[ProcessIdentity]:
    return [member for member in members if member.alive()]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
