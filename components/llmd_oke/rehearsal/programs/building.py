"""Builds programs from the Go modules in `tools/` into the cache."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.programs import cache, golang
from llmd_oke.rehearsal.programs.definitions import Build, program_definition, tools_folder
from llmd_oke.rehearsal.world_record import end_of_log

_TIMEOUT_S = 3600.0
_HEARTBEAT_S = 10.0
_GRACE_S = 10.0


def build_programs(name: str, build: Build, progress: Progress) -> None:
    """Make every program of one build, unless another program has made them by the time it is this one's turn.

    Raises KitError when Go is missing, or with the end of the build's log when it fails.
    """
    go = golang.find_go(tools_folder() / build.module)
    with cache.locked(name, progress, _TIMEOUT_S):
        if all(_place(program, build).is_file() for program in build.packages):
            return
        progress.step(f"building {', '.join(build.packages)} ({_estimate(build)} the first time)")
        with cache.workbench() as made:
            _compile(go, name, build, made, progress)
            for program in build.packages:
                cache.publish(made / program, _place(program, build))


def _place(program: str, build: Build) -> Path:
    return cache.program_file(program, program_definition(program).version, build)


def _estimate(build: Build) -> str:
    return f"about {build.minutes} minute{'s' if build.minutes > 1 else ''}"


def _compile(go: Path, name: str, build: Build, made: Path, progress: Progress) -> None:
    """Run one `go build`; several programs get the names of their packages, which are those that they have here."""
    log = cache.log_file(name)
    output = made if len(build.packages) > 1 else made / next(iter(build.packages))
    argv = [str(go), *golang.build_arguments(build.variables, tuple(build.packages.values()), output)]
    with _started(argv, build, log) as process:
        _wait(process, log, progress)
    if process.returncode != 0:
        raise KitError(f"building {name} failed; the end of {log}:\n{end_of_log(log, lines=20)}")


@contextlib.contextmanager
def _started(argv: list[str], build: Build, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """A build that is ended, with the compilers that it started, when the block is left early."""
    settings = {} if build.cgo is None else {"CGO_ENABLED": str(int(build.cgo))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=tools_folder() / build.module,
            env=golang.environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_S)


def _wait(process: subprocess.Popen[bytes], log: Path, progress: Progress) -> None:
    began = time.monotonic()
    while (spent := time.monotonic() - began) < _TIMEOUT_S:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_HEARTBEAT_S)
            return
        lines = log.read_text(errors="replace").splitlines()
        progress.detail(
            f"{spent + _HEARTBEAT_S:.0f} s, {len(lines)} packages, now {lines[-1] if lines else 'starting'}"
        )
    raise KitError(f"the build took longer than {_TIMEOUT_S / 60:.0f} minutes ({log})")
