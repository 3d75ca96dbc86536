"""Child processes without a thread each: the end of a process is an event of the loop (pidfd)."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from llmd_oke.errors import KitError


class ChildProcess:
    """A started process; `wait` may be called by any number of tasks."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | int = subprocess.DEVNULL,
        standard_input: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        self._process = subprocess.Popen(  # its end is awaited by pidfd
            argv, env=environment, stdin=standard_input, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.pid = self._process.pid
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._watched = os.pidfd_open(self.pid)
        loop.add_reader(self._watched, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watched)
        os.close(self._watched)
        code = self._process.wait()
        self._ended.set_result(code if code >= 0 else 128 - code)

    async def wait(self) -> int:
        """Give the exit code, 128 + signal for a process that a signal ended."""
        return await asyncio.shield(self._ended)

    @property
    def running(self) -> bool:
        """Whether it hasn't ended."""
        return not self._ended.done()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.running:
            self._process.send_signal(number)

    def children(self) -> list[int]:
        """Give the ids of its own children."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []


async def run(argv: Sequence[str], given: str = "", timeout_s: float = 10.0) -> tuple[int, str]:
    """Run a short command with `given` as its input; give exit code and output, 124 when it ran past the limit."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        with os.fdopen(write_end, "wb") as writer, _input(given) as standard_input:
            process = ChildProcess(argv, output=writer, standard_input=standard_input)
        try:
            code = await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            process.signal(signal.SIGKILL)
            await process.wait()
            code = 124
        os.set_blocking(reader.fileno(), False)
        output = reader.read() or b""
    return code, output.decode(errors="replace")


async def checked(argv: Sequence[str], given: str = "", timeout_s: float = 10.0) -> str:
    """Run a short command that must succeed; KitError with its output otherwise."""
    code, output = await run(argv, given, timeout_s)
    if code:
        raise KitError(f"{' '.join(argv)} ended with {code}: {output.strip()}\n{given}".rstrip())
    return output


def _input(given: str) -> IO[bytes]:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as writer:
        writer.write(given.encode())
    return os.fdopen(read_end, "rb")
