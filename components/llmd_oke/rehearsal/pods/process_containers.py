"""A container that is a process of this machine in namespaces of its own."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from llmd_oke.rehearsal.pods import sandboxes
from llmd_oke.rehearsal.pods.processes import ChildProcess, run

_NOT_RUNNING = 126

_STAND_BACK_PAUSE_S = 0.05
_STAND_BACK_ATTEMPTS = 400


@dataclass(frozen=True)
class ProcessSpec:
    """All that a process container needs."""

    sandbox: sandboxes.Sandbox
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    niceness: int = 0
    """How far it stands back for what simulates servers, where both want a processor: 0 to 19, as of nice(1)."""


class ProcessContainer:
    """Runs a program by bubblewrap; its output goes straight to its log file."""

    probed = True

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec
        self._process: ChildProcess | None = None
        self._standing_back: asyncio.Task[None] | None = None
        self.identity = f"process://{uuid4().hex}"

    async def start(self) -> None:
        """Start the program; FileNotFoundError when nsenter isn't installed."""
        self._spec.log.parent.mkdir(parents=True, exist_ok=True)
        niceness = self._spec.niceness
        argv = sandboxes.command(self._spec.sandbox, self._spec.argv, niceness)
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

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        """Run a command beside the program."""
        program = self._started().children()
        if not program:
            return _NOT_RUNNING, "container isn't running"
        return await run(sandboxes.entering(program[0], argv), timeout_s=timeout_s)

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
