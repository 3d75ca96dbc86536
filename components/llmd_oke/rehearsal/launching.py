"""The start of a world, from the fork to the word that it is ready."""

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal import ending, namespaces
from llmd_oke.rehearsal.children import keep_previous
from llmd_oke.rehearsal.world_record import StateFolder, WorldRecord, end_of_log

_HEARTBEAT_S = 2.0
_REPORT = 3
"""The descriptor on which the supervisor tells how it goes."""


@dataclass
class Launch:
    """One start of the world whose spec lies in the state folder."""

    folder: StateFolder
    progress: Progress
    timeout_s: float

    def run(self) -> WorldRecord:
        """Start the world's first process and listen to it until the world is ready.

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
                self.progress.step("interrupted: what was started of the world ends")
                self._abandon(launcher)
                self.folder.record_file.unlink(missing_ok=True)
                raise
            except BaseException:
                self._abandon(launcher)
                raise
        record = self.folder.read_record()
        if record is None:
            raise KitError(f"the world is ready, yet {self.folder.record_file} can't be read")
        return record

    def _spawn(self, report: int) -> int:
        log_file = self.folder.log_file("supervisor")
        keep_previous(log_file)
        # -P: the folder that this program happens to run in must not hide a module.
        supervisor = [sys.executable, "-P", "-m", "llmd_oke.rehearsal.supervisor", "--state", str(self.folder.path)]
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
            raise namespaces.refusal(end_of_log(log))
        raise KitError(f"the world ended before it was ready; the end of {log}:\n{end_of_log(log)}")

    def _still_starting(self, waited_s: float) -> None:
        record = self.folder.read_record()
        waiting: list[str] = []
        if record is not None:
            waiting = [name for name, process in record.processes.items() if process.ready_after_s is None]
        self.progress.detail(f"waiting for {', '.join(waiting) or 'the namespaces'}, {waited_s:.0f} s")

    def _abandon(self, launcher: int) -> None:
        record = self.folder.read_record()
        if record is not None:
            ending.end_world(record, timeout_s=20)
            if record.phase != "failed":
                self.folder.write_record(replace(record, phase="failed", failure="the start was given up"))
        ending.kill_launcher(launcher)


def _events(pipe: int, timeout_s: float, heartbeat: Callable[[float], None]) -> Iterator[dict[str, str]]:
    """The lines that the supervisor writes, until it ends; `heartbeat` is called while it says nothing."""
    began = time.monotonic()
    rest = b""
    while time.monotonic() - began < timeout_s:
        readable, _, _ = select.select([pipe], [], [], _HEARTBEAT_S)
        if not readable:
            heartbeat(time.monotonic() - began)
            continue
        received = os.read(pipe, 65_536)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        yield from map(json.loads, lines)
    raise KitError(f"the world was not ready after {timeout_s:.0f} s")
