"""The user's cache of built programs and unpacked modules.

`programs/<name>/<version>-<hash of what it is built from>/<name>`, `modules/<module>@<version>/`, `logs/`. Everything
enters it in one step, so that what is there is whole.
"""

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from llmd_oke.catalogue import cache as files
from llmd_oke.errors import KitError
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.programs.definitions import Build, tools_folder
from llmd_oke.rehearsal.waiting import intervals

_LOCK_PAUSE_S = 0.5
_REMINDER_S = 10.0


def cache_folder() -> Path:
    """The cache, as an absolute path: compilers run in folders of their own."""
    return files.cache_folder().resolve()


def program_file(name: str, version: str, build: Build) -> Path:
    """Where the cache has, or would have, a program of this build."""
    return cache_folder() / "programs" / name / f"{version}-{fingerprint(build)}" / name


def fingerprint(build: Build) -> str:
    """Changes with anything that a build is made from: the files of its Go module and the settings."""
    digest = hashlib.sha256(build.model_dump_json(exclude={"minutes"}).encode())
    module = tools_folder() / build.module
    for file in sorted(path for path in module.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(module)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def log_file(name: str) -> Path:
    """The log of the last build of that name."""
    path = cache_folder() / "logs" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def workbench() -> Generator[Path]:
    """A new folder in the cache that is gone after the block; what was made in it is moved out with `publish`."""
    root = cache_folder() / "unfinished"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        yield Path(folder)


def publish(made: Path, place: Path) -> None:
    """Move a file or folder from a workbench to its place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if made.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    made.replace(place)


@contextlib.contextmanager
def locked(name: str, progress: Progress, timeout_s: float) -> Generator[None]:
    """Let no other program make the same thing meanwhile.

    Raises KitError when another has it for longer than the limit.
    """
    path = cache_folder() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    told_at = -_REMINDER_S
    with path.open("w") as lock:
        for waited in intervals(timeout_s, _LOCK_PAUSE_S):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if waited - told_at >= _REMINDER_S:
                progress.detail(f"another program is making {name}, waiting for it, {waited:.0f} s")
                told_at = waited
        else:
            raise KitError(f"another program has been making {name} for {timeout_s:.0f} s ({path})")
        yield
