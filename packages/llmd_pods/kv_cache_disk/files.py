"""The commands `python files.py create` and `python files.py limit`: create a directory for the KV cache of servers of
one kind, and delete those files of all such directories that were written or read longest ago, while they take more
than a limit.

vLLM's tier of files deletes nothing (vLLM 0.30, v1/kv_offload/tiering/fs/manager.py). A file that is gone when vLLM
loads it is a miss, and the prompt's tokens are computed (`get_finished_jobs`, the same file).
"""

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType

FOLDER_MODE = 0o700
"""Access mode of a directory: KV cache is computed from users' prompts and may reveal them."""

LOCK = "lock"
"""Name of the file that is locked by the one of a node's pods that deletes files."""

KEPT_SHARE = 0.9
"""Share of the limit that files take after some were deleted; our choice, so that the directories aren't read anew for
each file.
"""

READ_S = 600.0
"""Maximum time in seconds between two readings of the directories; our choice."""

AGE_S = 60
"""Precision in seconds of the time at which a file was used, so that a reading needs little memory."""

GIB = 2**30


@dataclass(frozen=True, slots=True)
class KvFile:
    """File with a block of KV cache: the minute of its last reading or writing, its size in bytes, and its path."""

    minute: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class Space:
    """Size of a file system, and how much of it is free, in bytes."""

    size: int
    free: int


def create(root: Path, key: str, user: int) -> Path:
    """Create the directory `key` for the user ID `user` unless it exists, and return it."""
    folder = root / key
    root.mkdir(parents=True, exist_ok=True)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    owner = folder.stat().st_uid
    if owner == os.getuid():  # others' modes can't be changed without a further capability
        folder.chmod(FOLDER_MODE)
    if owner != user:
        os.chown(folder, user, 0)
    return folder


def files(folder: str) -> Iterator[KvFile]:
    """Yield the files with KV cache in a directory and all directories below it, unfinished ones included; those that
    vanish meanwhile are left out.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files(entry.path)
            elif entry.name.endswith((".bin", ".tmp")):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    used_s = max(status.st_atime, status.st_mtime)
                    yield KvFile(int(used_s // AGE_S), status.st_size, entry.path)


def sizes_by_minute(folder: Path) -> Counter[int]:
    """Return the bytes of the files in a directory by the minute in which they were last read or written."""
    found: Counter[int] = Counter()
    for file in files(str(folder)):
        found[file.minute] += file.size
    return found


def delete_oldest(folder: Path, sizes: Mapping[int, int], excess: int) -> tuple[int, int]:
    """Delete the files that were written or read longest ago, and directories that are empty then, until `excess` bytes
    are free. Of the last minute that is needed it is left open which files are deleted.

    Args:
        folder: directory with the files.
        sizes: bytes of the files by minute (`sizes_by_minute`), of one minute at least.
        excess: bytes to free.

    Returns:
        Number of files and bytes that were deleted.
    """
    minutes = sorted(sizes)
    sums = list(accumulate(sizes[minute] for minute in minutes))
    needed = min(bisect_left(sums, excess), len(minutes) - 1)
    last, rest = minutes[needed], excess - (sums[needed - 1] if needed else 0)
    count = freed = 0
    for file in files(str(folder)):
        if file.minute > last or (file.minute == last and rest <= 0):
            continue
        if file.minute == last:
            rest -= file.size
        path = Path(file.path)
        with suppress(FileNotFoundError):
            path.unlink()
            count, freed = count + 1, freed + file.size
        with suppress(OSError):  # not empty
            path.parent.rmdir()
            path.parent.parent.rmdir()
    return count, freed


def space(folder: Path) -> Space:
    """Return the size and the free space of the file system with a directory."""
    facts = os.statvfs(folder)
    return Space(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)


class Limit:
    """Limit in bytes on the KV cache of one model's servers, and on all KV cache of a stack if the file system has
    little space left. Between two readings of the directory, the file system's free space tells how much can have been
    written.

    Args:
        root: directory with the KV cache of all models of a stack, which may also have that of earlier models.
        model: name of the model's directory there.
        most: limit in bytes.
        least_free_share: share of the file system that must be free, of whatever takes it.
    """

    def __init__(self, root: Path, model: str, most: int, least_free_share: float) -> None:
        self._root, self._model, self._most = root, root / model, most
        self._least_free_share = least_free_share
        self._written = self._taken = 0
        self._free = space(root).free
        self._read_s = float("-inf")

    def keep(self, now_s: float) -> str:
        """Delete files if they may take more than the limit or little space is left, and return a sentence about it;
        empty if none was deleted.

        Args:
            now_s: monotonic time in seconds.
        """
        now = space(self._root)
        self._written += max(0, self._free - now.free)
        self._free = now.free
        said: list[str] = []
        if now_s - self._read_s >= READ_S or self._taken + self._written > self._most:
            self._written, self._read_s = 0, now_s
            sizes = sizes_by_minute(self._model)
            self._taken = sizes.total()
            if self._taken > self._most:
                kept = int(self._most * KEPT_SHARE)
                said.append(self._delete(self._model, sizes, self._taken - kept, f"of {self._taken / GIB:.1f} GiB"))
        missing = int(now.size * self._least_free_share) - now.free
        if missing > 0 and (sizes := sizes_by_minute(self._root)):
            said.append(self._delete(self._root, sizes, missing, f"as {now.free / GIB:.1f} GiB were free"))
            self._read_s = float("-inf")  # whose files went is unknown
        return "; ".join(said)

    def _delete(self, folder: Path, sizes: Mapping[int, int], excess: int, why: str) -> str:
        count, freed = delete_oldest(folder, sizes, excess)
        self._taken = max(0, self._taken - freed)
        return f"deleted {count} files with {freed / GIB:.1f} GiB {why}"


def keep(limit: Limit, lock_file: Path, period_s: float, ended: threading.Event) -> None:
    """Keep a limit until `ended` is set, looking each `period_s` seconds. Of several processes on a node, which have
    the same file to lock, one does this, and another takes over when it ends. Errors are printed.
    """
    said = ""
    with lock_file.open("a") as lock:
        while not ended.wait(period_s):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                text = limit.keep(time.monotonic())
            except BlockingIOError:
                continue
            except OSError as error:
                text = f"KV cache on disk isn't limited: {error}"
            if text and text != said:
                print(text, flush=True)
            said = text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands, and return the exit code."""
    parser = argparse.ArgumentParser(description="Limits the KV cache in files on a node's disks.")
    commands = parser.add_subparsers(dest="command", required=True)
    creating, limiting = commands.add_parser("create"), commands.add_parser("limit")
    for command in (creating, limiting):
        command.add_argument("--root", type=Path, required=True, help="directory of the stack")
        command.add_argument("--model", required=True, help="name of the model's directory there")
    creating.add_argument("--key", required=True, help="name of the directory of servers of one kind")
    creating.add_argument("--user", type=int, required=True, help="ID of the user that the servers run as")
    limiting.add_argument("--most-gib", type=float, required=True)
    limiting.add_argument("--least-free-share", type=float, required=True, help="of the file system")
    limiting.add_argument("--period-s", type=float, required=True)
    options = parser.parse_args(argv)
    if options.command == "create":
        folder = create(options.root / options.model, options.key, options.user)
        print(f"KV cache is kept in {folder}", flush=True)
        return 0
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    limit = Limit(options.root, options.model, int(options.most_gib * GIB), options.least_free_share)
    keep(limit, options.root / options.model / LOCK, options.period_s, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main())
