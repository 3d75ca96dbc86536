"""The first process of a world: furnishes its namespaces, starts its processes in order, and ends the world with them.

Run as `python -m llmd_oke.rehearsal.supervisor` by `World.start`, never by hand. A process that ends on its own is
started again where its spec says so. Otherwise, and when it ends too often, the world fails: everything else is
stopped, and the record says which process it was, with the end of its log.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.rehearsal import namespaces
from llmd_oke.rehearsal.children import Child, Children
from llmd_oke.rehearsal.host_processes import identity_of, namespaces_of, stat_fields
from llmd_oke.rehearsal.processes import RESTARTS_WITHIN_S, ProcessSpec, WorldSpec
from llmd_oke.rehearsal.readiness import wait_until_ready
from llmd_oke.rehearsal.world_record import ProcessRecord, StateFolder, WorldRecord, end_of_log


class WorldFailedError(Exception):
    """A process of the world failed; the message names it and ends with its log."""


class Reporter:
    """Tells whoever started the world how it goes, as lines of JSON on a pipe, and the supervisor's log too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, kind: str, text: str = "") -> None:
        """`kind` is `detail`, `ready` or `failed`."""
        print(f"{kind}: {text}", flush=True)
        try:
            os.write(self._descriptor, json.dumps({"kind": kind, "text": text}).encode() + b"\n")
        except BrokenPipeError:  # whoever started the world has gone since
            return


class Supervisor:
    """Brings a world up, watches it, and takes it down."""

    def __init__(self, folder: StateFolder, spec: WorldSpec, record: WorldRecord, reporter: Reporter) -> None:
        self._folder = folder
        self._spec = spec
        self._record = record
        self._reporter = reporter
        self._children = Children(folder, namespaces.environment(folder.home))
        self._ready = {process.name: asyncio.Event() for process in spec.processes}

    async def run(self) -> int:
        """Live until SIGTERM (status 0) or until a process fails (status 1)."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._children.reap)
        work = asyncio.create_task(self._live())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except* asyncio.CancelledError:
            self._write(phase="stopping")
        except* WorldFailedError as failures:
            self._fail(str(failures.exceptions[0]))
        await self._children.stop()
        return 0 if self._record.failure is None else 1

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            for process in self._spec.processes:
                group.create_task(self._run_process(process))
            group.create_task(self._announce())
            await asyncio.Event().wait()  # a world without processes lives too, until it is stopped

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
            self._need_restarts(child, len(ends_s))
            child = self._start(spec, again=True)
            await self._is_ready(child)

    def _need_restarts(self, child: Child, ends: int) -> None:
        """Raises WorldFailedError for a process that has ended more often than it may be started again."""
        restarts = child.spec.restarts
        if ends > restarts:
            often = f" after {restarts} restarts within {RESTARTS_WITHIN_S:.0f} s" if restarts else ""
            raise self._failure(child, f"{child.describe_end()}{often}")
        limit = f"{ends} of at most {restarts} times within {RESTARTS_WITHIN_S:.0f} s"
        self._reporter.tell("detail", f"{child.spec.name} {child.describe_end()} and is started again, {limit}")

    def _start(self, spec: ProcessSpec, *, again: bool = False) -> Child:
        try:
            child = self._children.start(spec, again=again)
        except OSError as error:
            raise WorldFailedError(f"{spec.name} could not be started: {error}") from error
        self._reporter.tell("detail", f"starting {spec.name}")
        restarts = self._record.processes[spec.name].restarts + 1 if again else 0
        self._write(processes={**self._record.processes, spec.name: ProcessRecord(child.pid, restarts=restarts)})
        return child

    async def _is_ready(self, child: Child) -> bool:
        """Wait until it is ready; False where it ends first. Raises WorldFailedError where neither happens in time."""
        began = time.monotonic()
        await self._until_ready_or_ended(child)
        if child.ended.is_set():
            return False
        self._note_ready(child, round(time.monotonic() - began, 2))
        return True

    async def _until_ready_or_ended(self, child: Child) -> None:
        if child.spec.readiness is None:
            return
        answer = asyncio.create_task(wait_until_ready(child.spec.readiness))
        end = asyncio.create_task(child.ended.wait())
        done, pending = await asyncio.wait(
            {answer, end}, timeout=child.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if not done:
            limit = f"{child.spec.ready_timeout_s:.0f} s"
            raise self._failure(child, f"was not ready after {limit} ({child.spec.readiness})")

    def _note_ready(self, child: Child, after_s: float) -> None:
        name = child.spec.name
        known = self._record.processes[name]
        self._write(processes={**self._record.processes, name: dataclasses.replace(known, ready_after_s=after_s)})
        self._reporter.tell("detail", f"{name} ready after {after_s:.1f} s")
        self._ready[name].set()

    async def _announce(self) -> None:
        for ready in self._ready.values():
            await ready.wait()
        self._write(phase="ready")
        self._reporter.tell("ready")

    def _failure(self, child: Child, what: str) -> WorldFailedError:
        log = self._folder.log_file(child.spec.name)
        return WorldFailedError(f"{child.spec.name} {what}; the end of {log}:\n{end_of_log(log)}")

    def _fail(self, failure: str) -> None:
        self._write(phase="failed", failure=failure)
        self._reporter.tell("failed", failure)

    def _write(self, **changes: object) -> None:
        self._record = dataclasses.replace(self._record, **changes)  # pyright: ignore[reportArgumentType]
        self._folder.write_record(self._record)


def first_record(spec: WorldSpec) -> WorldRecord:
    """What is known before anything is started; /proc must still be the host's, so that the numbers are the host's."""
    pid = int(Path("/proc/self").readlink().name)
    identity, fields = identity_of(pid), stat_fields(pid)
    if identity is None or fields is None:
        raise KitError(f"/proc does not list the process {pid} that reads it")
    return WorldRecord(
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
    """Run the world that the spec in the state folder describes; the exit status is 1 when it failed."""
    spec = WorldSpec.from_json(folder.spec_file.read_text())
    record = first_record(spec)
    folder.write_record(record)
    try:
        namespaces.furnish(spec.bridge, spec.bridge_address, spec.nameserver, folder.path)
    except KitError as error:
        folder.write_record(dataclasses.replace(record, phase="failed", failure=str(error)))
        reporter.tell("failed", str(error))
        return 1
    return asyncio.run(_run(folder, spec, record, reporter))


async def _run(folder: StateFolder, spec: WorldSpec, record: WorldRecord, reporter: Reporter) -> int:
    return await Supervisor(folder, spec, record, reporter).run()


def main() -> int:
    """Read the arguments that `World.start` gives, and live."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--report", type=int, required=True, metavar="DESCRIPTOR")
    arguments = parser.parse_args()
    if os.getpid() != 1:
        parser.error("this must be the first process of a world")
    signal.signal(signal.SIGTERM, _leave)
    os.chdir(arguments.state)
    return live(StateFolder(arguments.state), Reporter(arguments.report))


def _leave(_signal: int, _frame: object) -> None:
    """For a first process, SIGTERM has no default: without this it could not be stopped while it makes the network."""
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
