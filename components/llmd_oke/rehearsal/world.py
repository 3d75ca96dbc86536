"""A world seen from the host: start it, ask how it is, run something inside, end it.

A world is one rehearsed stack: a control plane, simulated nodes and whatever else its spec lists, in namespaces of
their own. Its files, logs included, lie in one state folder; it outlives the program that started it.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress, SilentProgress
from llmd_oke.rehearsal import ending, host_processes, namespaces
from llmd_oke.rehearsal.exclusive import exclusive
from llmd_oke.rehearsal.launching import Launch
from llmd_oke.rehearsal.processes import WorldSpec, differences
from llmd_oke.rehearsal.world_record import StateFolder, WorldRecord

_LOCK_TIMEOUT_S = 360.0


class World:
    """The world of one state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = StateFolder(state.resolve())

    def status(self) -> WorldRecord | None:
        """How the world is; None when there is none.

        A failed world keeps its record, so that it can still be asked why. One that ended without a word (the machine
        was restarted, its first process was killed) is none.
        """
        record = self.folder.read_record()
        if record is None or record.phase == "failed" or record.supervisor.alive():
            return record
        return None

    def start(
        self,
        spec: WorldSpec,
        progress: Progress | None = None,
        *,
        discard: Sequence[Path] = (),
        timeout_s: float = 300,
    ) -> WorldRecord:
        """Start the world and return when it is ready; one that already runs from the same spec is left as it is.

        A world that runs from another spec is stopped first. Before a start, the folders in `discard` are removed: data
        of the run before that is not to be taken over. Raises KitError, with the end of the log of the process
        that failed, when the world does not get ready; nothing of it is left running then.
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
            listener.step(f"starting the rehearsal's world{_anew(previous, spec)}")
            self.folder.spec_file.write_text(spec.to_json())
            return Launch(self.folder, listener, timeout_s).run()

    def stop(self, *, timeout_s: float = 30) -> None:
        """End the world and make sure that no process, mount or link of it is left; nothing happens when there is none.

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

        It takes its environment from whoever runs it: pass `environment()`. Raises KitError when the world isn't ready.
        """
        record = self.status()
        if record is None or record.phase != "ready":
            why = "" if record is None or record.failure is None else f": {record.failure}"
            start = f"Start it: scripts/rehearse --stack {self.folder.path.name}"
            raise KitError(f"The rehearsal's world in {self.folder.path} is not running{why}", start)
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
            ending.end_group(process)

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
            raise KitError(f"{self.folder.path} lies in /run, which a world hides", "use a folder elsewhere")
        for path in (self.folder.logs, self.folder.home):
            path.mkdir(parents=True, exist_ok=True)

    def _spec(self) -> WorldSpec | None:
        """What the world was asked to be; None where another version of the kit wrote that."""
        try:
            return WorldSpec.from_json(self.folder.spec_file.read_text())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _locked(self, progress: Progress) -> AbstractContextManager[None]:
        return exclusive(
            self.folder.lock_file, f"start or stop the world in {self.folder.path}", progress, _LOCK_TIMEOUT_S
        )

    def _stop(self, timeout_s: float) -> None:
        record = self.folder.read_record()
        if record is not None:
            ending.end_world(record, timeout_s)
            ending.reap(record.launcher_pid)
        left = host_processes.mounts_under(self.folder.path)
        if left:
            raise KitError(f"the world left mounts on this machine: {', '.join(left)}", "unmount them with `umount`")
        self.folder.record_file.unlink(missing_ok=True)


def _anew(previous: WorldSpec | None, spec: WorldSpec) -> str:
    """To be put behind the news of a start: that a world, and all that was deployed in it, made room, and why."""
    if previous is None:
        return ""
    return f" anew, without what was deployed in the one before: {', '.join(differences(previous, spec))}"
