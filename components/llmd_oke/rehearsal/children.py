"""The processes that a world's first process has started, and the reaping of everything that ends in the world."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmd_oke.rehearsal.processes import FileReady, ProcessSpec
from llmd_oke.rehearsal.world_record import StateFolder


class Child:
    """A started process; `ended` is set once it has been reaped, then `status` is its exit status."""

    def __init__(self, spec: ProcessSpec, process: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.pid = process.pid
        self.ended = asyncio.Event()
        self.status: int | None = None
        self._process = process

    def describe_end(self) -> str:
        """How it ended: `ended with status 1`, `was ended by SIGKILL`."""
        if self.status is not None and self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"

    def mark_ended(self, status: int) -> None:
        """Take note of the reaped exit status."""
        self.status = self._process.returncode = status
        self.ended.set()

    async def stop(self) -> None:
        """Ask it to end, and kill it when it has not ended within its limit."""
        if self.ended.is_set():
            return
        os.kill(self.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended.wait(), self.spec.stop_timeout_s)
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            await self.ended.wait()


class Children:
    """Every process that was started, in the order of the starts."""

    def __init__(self, folder: StateFolder, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._by_pid: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._by_pid.values()))

    def start(self, spec: ProcessSpec, *, again: bool = False) -> Child:
        """Start a process with a fresh log; the log of the run before is kept as `<name>.previous.log`.

        One that is started `again` in the same world goes on with its log. Raises OSError where there is no such
        program.
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
        """Take every ended process from the kernel: those that were started here, and orphans that fell to this one."""
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
        """Stop all of them, each after those that were started on top of it."""
        await asyncio.gather(*(self._stop_after_dependents(child) for child in self))

    async def _stop_after_dependents(self, child: Child) -> None:
        for other in self:
            if child.spec.name in other.spec.after:
                await other.ended.wait()
        await child.stop()


def keep_previous(log_file: Path) -> None:
    """Move the log of the run before out of the way."""
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".previous.log"))
