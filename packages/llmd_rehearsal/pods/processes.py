"""Background work of the node agent: child processes without a thread for each, and tasks of the event loop."""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from llmd_base.errors import KitError

_log = logging.getLogger(__name__)


class ChildProcess:
    """Child process of the node agent whose end is an event of the event loop (pidfd); several tasks may call
    `wait`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | int = subprocess.DEVNULL,
        standard_input: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        self._process = subprocess.Popen(  # not asyncio's, which needs a thread for each child
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
        """Wait until the process ends and return its exit code; 128 + signal number if a signal ended the process."""
        return await asyncio.shield(self._ended)

    @property
    def running(self) -> bool:
        """Tell whether the process hasn't ended yet."""
        return not self._ended.done()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it still runs."""
        if self.running:
            self._process.send_signal(number)

    def children(self) -> list[int]:
        """Return the ids of the process's direct children."""
        return children_of(self.pid)


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's direct children; empty if the process has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


async def run(argv: Sequence[str], stdin: str = "", timeout_s: float = 10.0) -> tuple[int, str]:
    """Run a command with `stdin` as its input and return exit code and output; 124 if it was killed after `timeout_s`
    seconds.
    """
    input_end, feed_end = os.pipe()
    with os.fdopen(feed_end, "wb") as feed:
        feed.write(stdin.encode())
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        with os.fdopen(write_end, "wb") as writer, os.fdopen(input_end, "rb") as standard_input:
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


async def run_checked(argv: Sequence[str], stdin: str = "") -> str:
    """Run a command and return its output.

    Raises:
        KitError: the exit code isn't 0; the message has the output.
    """
    code, output = await run(argv, stdin)
    if code:
        raise KitError(f"{' '.join(argv)} ended with {code}: {output.strip()}\n{stdin}".rstrip())
    return output


def start_task(work: Coroutine[Any, Any, None], purpose: str) -> asyncio.Task[None]:
    """Run `work` as a task that logs its exception, because most tasks of a pod aren't awaited."""
    task = asyncio.create_task(work, name=purpose)
    task.add_done_callback(partial(_log_failure, purpose))
    return task


def _log_failure(purpose: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s failed", purpose, exc_info=task.exception())
