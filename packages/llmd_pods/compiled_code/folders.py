"""The command `python folders.py`: creates the directory of compiled code for servers of one kind, and removes old
ones.

Servers execute the content (libraries, pickles), so only the servers' user and root may write to the directory. The
command runs before each server, as root, which owns the parent directory, with CAP_CHOWN as only capability: it takes
ownership of directories before it removes them.
"""

import argparse
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

USED = "used"
"""Name of a file whose modification time is the last time at which a server was about to start with the directory."""

MODE, MARK_MODE = 0o770, 0o660
"""Access modes of directories of compiled code (`MODE`) and of the file `USED` (`MARK_MODE`): read and write for the
servers' user and for root's group, to which servers and this program belong.
"""

DAY_S = 86400
KEY = re.compile(r"[0-9a-f]{8,64}")


def prepare(root: Path, key: str, user: int) -> Path:
    """Create the directory `key` for the user ID `user` unless it exists, set the time of its file `USED` to now, and
    return the directory.
    """
    folder = root / key
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(MODE)
    mark = folder / USED
    if not mark.exists():
        mark.touch()
        mark.chmod(MARK_MODE)
    os.utime(mark)
    if folder.stat().st_uid != user:
        os.chown(folder, user, 0)
    return folder


def remove_old(root: Path, own: str, unused_s: float, most: int) -> list[str]:
    """Remove directories of compiled code that have not been used for `unused_s` seconds and, if there are more than
    `most`, those that have been unused longest.

    The directory `own` and the directories of running servers are kept.

    Returns:
        Names of the removed directories.
    """
    others = {path.name: path for path in root.iterdir() if KEY.fullmatch(path.name) and path.name != own}
    last_use = {name: _last_use(path) for name, path in others.items()}
    newest_first = sorted(others, key=lambda name: last_use[name], reverse=True)
    now = time.time()
    old = [name for place, name in enumerate(newest_first, 2) if place > most or now - last_use[name] > unused_s]
    removed = [name for name in old if not any(map(_is_held, others[name].glob("*/lock")))]
    for name in removed:
        _take_over(others[name])
        shutil.rmtree(others[name], ignore_errors=True)
    return removed


def _take_over(folder: Path) -> None:
    """Change the owner of a directory and of all directories below it to this process's user, who can otherwise not
    remove their content.
    """
    for path, _, _ in os.walk(folder):
        if Path(path).stat().st_uid != os.getuid():
            os.chown(path, os.getuid(), -1)


def _last_use(folder: Path) -> float:
    with suppress(OSError):
        return (folder / USED).stat().st_mtime
    return 0.0


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Create the directory of compiled code that the arguments name, and remove old ones; errors are printed and don't
    keep the server from starting.
    """
    parser = argparse.ArgumentParser(description="Makes the folder of a server's compiled code.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--unused-days", type=float, required=True)
    parser.add_argument("--most", type=int, required=True)
    options = parser.parse_args(argv)
    try:
        folder = prepare(options.root, options.key, options.user)
        removed = remove_old(options.root, options.key, options.unused_days * DAY_S, options.most)
    except OSError as error:
        print(f"the folder of compiled code can't be made: {error}", flush=True)
        return 0
    print(f"compiled code is kept in {folder}; removed: {', '.join(removed) or 'nothing'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
