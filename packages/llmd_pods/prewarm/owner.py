"""The command `python -m prewarm.owner`: gives a cache's folder to the user that fills it.

The kubelet makes folders on a node's disks, and a new Lustre file system has one, that belong to root. This is run as
root, with the capability to change owners and no other. The group stays root's and may write, for servers that fill a
cache by themselves are root without the capability to write to what belongs to others.
"""

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from . import say

GROUP = 0
"""The group of everything in a cache."""


def give(folder: Path, user: int) -> int:
    """Give a folder and all that lies in it to a user. Links are given, not followed.

    Returns:
        The number of files and folders that belonged to somebody else.
    """
    count = 0
    for _, folders, files, descriptor in os.fwalk(folder):
        facts = os.fstat(descriptor)
        if facts.st_uid != user:  # the mode comes first: afterwards the folder is somebody else's
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU | stat.S_IRWXG)
            os.fchown(descriptor, user, GROUP)
            count += 1
        for name in [*files, *folders]:
            with suppress(FileNotFoundError):  # another pod fills the cache
                facts = os.lstat(name, dir_fd=descriptor)
                if facts.st_uid != user and not stat.S_ISDIR(facts.st_mode):  # the turn of folders comes
                    os.chown(name, user, GROUP, dir_fd=descriptor, follow_symlinks=False)
                    count += 1
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Give the folder away. Where it may not, pre-warming says whether it can write nevertheless."""
    parser = argparse.ArgumentParser(description="Gives a cache's folder to the user that fills it.")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--user", type=int, required=True)
    options = parser.parse_args(argv)
    try:
        count = give(options.cache, options.user)
    except OSError as error:
        say(f"{options.cache} stays as it is, because its owner can't be changed: {error}")
        return 0
    say(f"{options.cache}: {count} files and folders were given to user {options.user}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
