"""The command `python folders.py`: makes the folder of compiled code for servers of one kind, and removes old ones.

What lies there is run by the servers that find it (libraries, pickles), so that a folder belongs to the user of its
servers, who alone may write to it beside root. This is run before each server, as root, which the folder above belongs
to, with the capability to change owners and no other: it takes over what it removes.
"""

import argparse
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

USED = "used"
"""File of a folder that says by its time when a server was last about to start with it."""

MODE, MARK_MODE = 0o770, 0o660
"""Access of a server's user and of root's group, which servers and this program are in."""

DAY_S = 86400
KEY = re.compile(r"[0-9a-f]{8,64}")


def prepare(root: Path, key: str, user: int) -> Path:
    """Make a folder for a user, note that it is used now, and return it."""
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
    """Remove folders that have not been used for `unused_s` seconds, and the longest unused of more than `most`.

    The folder `own`, and those that a server runs with, stay.

    Returns:
        Names of the folders that were removed.
    """
    others = {path.name: path for path in root.iterdir() if KEY.fullmatch(path.name) and path.name != own}
    last_use = {name: _last_use(path) for name, path in others.items()}
    newest_first = sorted(others, key=lambda name: last_use[name], reverse=True)
    now = time.time()
    old = [name for place, name in enumerate(newest_first, 2) if place > most or now - last_use[name] > unused_s]
    removed = [name for name in old if not any(map(_is_held, _locks(others[name])))]
    for name in removed:
        _take_over(others[name])
        shutil.rmtree(others[name], ignore_errors=True)
    return removed


def _take_over(folder: Path) -> None:
    """Make all folders below one this process's own, without which it can't remove what is in them."""
    for path, _, _ in os.walk(folder):
        if Path(path).stat().st_uid != os.getuid():
            os.chown(path, os.getuid(), -1)


def _last_use(folder: Path) -> float:
    with suppress(OSError):
        return (folder / USED).stat().st_mtime
    return 0.0


def _locks(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*/lock")


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Make the folder and remove old ones; what can't be done is said, and keeps no server from starting."""
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
