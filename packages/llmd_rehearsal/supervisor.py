"""First process of a local cluster: sets up the namespaces, starts the processes of the spec, and ends with them.

Run as `python -m llmd_rehearsal.supervisor` by `LocalCluster.start`, never by hand. A process that ends by itself is
restarted as its spec permits. Otherwise the local cluster fails: all other processes are stopped, and the record names
the process, with the end of its log.
"""

import argparse
import asyncio
import dataclasses
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from llmd_base.errors import KitError

from llmd_rehearsal import namespaces
from llmd_rehearsal.cluster_spec import (
    RESTARTS_WITHIN_S,
    ClusterRecord,
    ClusterSpec,
    FileReady,
    HttpReady,
    ProcessRecord,
    ProcessSpec,
    Readiness,
    StateFolder,
    TcpReady,
    end_of_log,
    keep_previous,
)
from llmd_rehearsal.namespaces import identity_of, namespaces_of, stat_fields
from llmd_rehearsal.running_time import RunningLoop

_ATTEMPT_TIMEOUT_S = 2.0
_PAUSE_S = 0.05


class ClusterFailedError(Exception):
    """A process of the local cluster failed; the message names the process and quotes the end of its log."""


class Child:
    """Started process of a local cluster; `ended` is set once the process has been reaped, and `status` is then its
    exit status.
    """

    def __init__(self, spec: ProcessSpec, process: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.pid = process.pid
        self.ended = asyncio.Event()
        self.status: int | None = None
        self._process = process

    def describe_end(self) -> str:
        """Return a description of the process's end: `ended with status 1`, `was ended by SIGKILL`."""
        if self.status is not None and self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"

    def mark_ended(self, status: int) -> None:
        """Record the exit status of the process, which has ended and been reaped."""
        self.status = self._process.returncode = status
        self.ended.set()

    async def stop(self) -> None:
        """Send SIGTERM to the process, and SIGKILL if it hasn't ended within the time limit of its `ProcessSpec`."""
        if self.ended.is_set():
            return
        os.kill(self.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended.wait(), self.spec.stop_timeout_s)
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            await self.ended.wait()


class Children:
    """All started processes of a local cluster, in the order of their starts."""

    def __init__(self, folder: StateFolder, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._by_pid: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._by_pid.values()))

    def start(self, spec: ProcessSpec, *, again: bool = False) -> Child:
        """Start a process of the local cluster with a new log file; the previous log is kept as `<name>.previous.log`.

        With `again`, a restart in the same local cluster, the log is continued.

        Raises:
            OSError: the program can't be started.
        """
        if isinstance(spec.readiness, FileReady):
            Path(spec.readiness.path).unlink(missing_ok=True)
        log_file = self._folder.log_file(spec.name)
        if not again:
            keep_previous(log_file)
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder.path,
                env={**self._environment, **spec.env},
                start_new_session=True,
            )
        child = self._by_pid[process.pid] = Child(spec, process)
        return child

    def reap(self) -> None:
        """Reap all ended processes: started ones, and orphans, whose parent this first process becomes."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._by_pid:
                self._by_pid[pid].mark_ended(os.waitstatus_to_exitcode(status))

    async def stop(self) -> None:
        """Stop all processes of the local cluster, each after the processes that depend on it."""
        await asyncio.gather(*(self._stop_after_dependents(child) for child in self))

    async def _stop_after_dependents(self, child: Child) -> None:
        for other in self:
            if child.spec.name in other.spec.after:
                await other.ended.wait()
        await child.stop()


class Reporter:
    """Writer of reports on the local cluster's start: JSON lines on the pipe of the process that starts it, and text in
    the supervisor's log.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, kind: str, text: str = "") -> None:
        """Report an event of the local cluster's start; `kind` is `detail`, `ready` or `failed`."""
        print(f"{kind}: {text}", flush=True)
        try:
            os.write(self._descriptor, json.dumps({"kind": kind, "text": text}).encode() + b"\n")
        except BrokenPipeError:  # the program that started the local cluster has ended
            return


class Supervisor:
    """Supervisor that starts, monitors and stops the processes of a local cluster."""

    def __init__(self, folder: StateFolder, spec: ClusterSpec, record: ClusterRecord, reporter: Reporter) -> None:
        self._folder = folder
        self._spec = spec
        self._record = record
        self._reporter = reporter
        self._children = Children(folder, namespaces.environment(folder.home))
        self._ready = {process.name: asyncio.Event() for process in spec.processes}

    async def run(self) -> int:
        """Run the local cluster until SIGTERM (returns 0) or until a process fails (returns 1)."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._children.reap)
        work = asyncio.create_task(self._live())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except* asyncio.CancelledError:
            self._write(phase="stopping")
        except* ClusterFailedError as failures:
            failure = str(failures.exceptions[0])
            self._write(phase="failed", failure=failure)
            self._reporter.report("failed", failure)
        await self._children.stop()
        return 0 if self._record.failure is None else 1

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            for process in self._spec.processes:
                group.create_task(self._run_process(process))
            for ready in self._ready.values():
                await ready.wait()
            self._write(phase="ready")
            self._reporter.report("ready")
            await asyncio.Event().wait()  # keeps a local cluster without processes running until it is stopped

    async def _run_process(self, spec: ProcessSpec) -> None:
        for name in spec.after:
            await self._ready[name].wait()
        child = self._start(spec)
        if not await self._is_ready(child):
            raise self._failure(child, f"{child.describe_end()} before it was ready")
        ends_s: list[float] = []
        while True:
            await child.ended.wait()
            now_s = time.monotonic()
            ends_s = [*(end_s for end_s in ends_s if end_s > now_s - RESTARTS_WITHIN_S), now_s]
            if len(ends_s) > spec.restarts:
                often = f" after {spec.restarts} restarts within {RESTARTS_WITHIN_S:.0f} s" if spec.restarts else ""
                raise self._failure(child, f"{child.describe_end()}{often}")
            limit = f"{len(ends_s)} of at most {spec.restarts} times within {RESTARTS_WITHIN_S:.0f} s"
            self._reporter.report("detail", f"{spec.name} {child.describe_end()} and is started again, {limit}")
            child = self._start(spec, again=True)
            await self._is_ready(child)

    def _start(self, spec: ProcessSpec, *, again: bool = False) -> Child:
        try:
            child = self._children.start(spec, again=again)
        except OSError as error:
            raise ClusterFailedError(f"{spec.name} could not be started: {error}") from error
        self._reporter.report("detail", f"starting {spec.name}")
        restarts = self._record.processes[spec.name].restarts + 1 if again else 0
        self._write(processes={**self._record.processes, spec.name: ProcessRecord(child.pid, restarts=restarts)})
        return child

    async def _is_ready(self, child: Child) -> bool:
        """Wait until the process is ready and return True; return False if the process ends before.

        Raises:
            ClusterFailedError: the process is neither ready nor ended at its time limit.
        """
        started_s = time.monotonic()
        if child.spec.readiness is not None:
            await self._until_ready_or_ended(child, child.spec.readiness)
        if child.ended.is_set():
            return False
        name, after_s = child.spec.name, round(time.monotonic() - started_s, 2)
        record = dataclasses.replace(self._record.processes[name], ready_after_s=after_s)
        self._write(processes={**self._record.processes, name: record})
        self._reporter.report("detail", f"{name} ready after {after_s:.1f} s")
        self._ready[name].set()
        return True

    async def _until_ready_or_ended(self, child: Child, readiness: Readiness) -> None:
        ready = asyncio.create_task(wait_until_ready(readiness))
        end = asyncio.create_task(child.ended.wait())
        done, pending = await asyncio.wait(
            {ready, end}, timeout=child.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if not done:
            limit = f"{child.spec.ready_timeout_s:.0f} s"
            raise self._failure(child, f"was not ready after {limit} ({readiness})")

    def _failure(self, child: Child, what: str) -> ClusterFailedError:
        log = self._folder.log_file(child.spec.name)
        return ClusterFailedError(f"{child.spec.name} {what}; the end of {log}:\n{end_of_log(log)}")

    def _write(self, **changes: object) -> None:
        self._record = dataclasses.replace(self._record, **changes)  # pyright: ignore[reportArgumentType]
        self._folder.write_record(self._record)


async def wait_until_ready(readiness: Readiness) -> None:
    """Wait, without a time limit, until a process of the local cluster is ready, checking every 50 ms."""
    while not await asyncio.to_thread(is_ready, readiness):  # noqa: ASYNC110 - another process can't set an event
        await asyncio.sleep(_PAUSE_S)


def is_ready(readiness: Readiness) -> bool:
    """Check once whether a process of the local cluster is ready."""
    match readiness:
        case HttpReady():
            return _answers(readiness)
        case TcpReady():
            try:
                socket.create_connection((readiness.host, readiness.port), timeout=_ATTEMPT_TIMEOUT_S).close()
            except OSError:
                return False
            return True
        case FileReady():
            return Path(readiness.path).exists()


def _answers(readiness: HttpReady) -> bool:
    address = urllib.parse.urlsplit(readiness.url)
    host = address.hostname or "127.0.0.1"
    if address.scheme == "http":
        connection = http.client.HTTPConnection(host, address.port, timeout=_ATTEMPT_TIMEOUT_S)
    else:
        tls = _tls(readiness)
        connection = http.client.HTTPSConnection(host, address.port, timeout=_ATTEMPT_TIMEOUT_S, context=tls)
    try:
        connection.request("GET", address.path or "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@cache
def _tls(readiness: HttpReady) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # doesn't read the system's CA certificates, which is slow
    if readiness.ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(readiness.ca_file)
    if readiness.certificate_file is not None:
        context.load_cert_chain(readiness.certificate_file, readiness.key_file)
    return context


def first_record(spec: ClusterSpec) -> ClusterRecord:
    """Return the status record of a local cluster before its processes start. /proc must still be the host's, because
    the record has the host's process ids.
    """
    pid = int(Path("/proc/self").readlink().name)
    identity, fields = identity_of(pid), stat_fields(pid)
    if identity is None or fields is None:
        raise KitError(f"/proc does not list the process {pid} that reads it")
    return ClusterRecord(
        phase="starting",
        supervisor=identity,
        launcher_pid=int(fields[1]),
        user_namespace=Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)],
        namespaces=namespaces_of(pid),
        spec_digest=spec.digest(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        facts=dict(spec.facts),
    )


def live(folder: StateFolder, reporter: Reporter) -> int:
    """Run the local cluster whose specification is in the state folder until its end; return 1 if the local cluster
    failed.
    """
    spec = ClusterSpec.from_json(folder.spec_file.read_text())
    record = first_record(spec)
    folder.write_record(record)
    try:
        namespaces.set_up(spec.address, spec.nameserver, folder.path)
    except KitError as error:
        folder.write_record(dataclasses.replace(record, phase="failed", failure=str(error)))
        reporter.report("failed", str(error))
        return 1

    async def supervise() -> int:  # creates the events in the running loop
        return await Supervisor(folder, spec, record, reporter).run()

    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        return runner.run(supervise())


def main() -> int:
    """Run the local cluster whose state folder `LocalCluster.start` names on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--report", type=int, required=True, metavar="DESCRIPTOR")
    arguments = parser.parse_args()
    if os.getpid() != 1:
        parser.error("this must be the first process of a local cluster")
    # The kernel ignores SIGTERM for process 1 of a namespace that has no handler.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(0))
    os.chdir(arguments.state)
    return live(StateFolder(arguments.state), Reporter(arguments.report))


if __name__ == "__main__":
    sys.exit(main())
