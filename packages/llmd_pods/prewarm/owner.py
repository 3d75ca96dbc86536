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
    for _, folders, files, folder_descriptor in os.fwalk(folder):
        count += _give_folder(folder_descriptor, user)
        for name in [*files, *folders]:
            with suppress(FileNotFoundError):  # another pod fills the cache
                count += _give_entry(folder_descriptor, name, user)
    return count


def _give_entry(folder: int, name: str, user: int) -> bool:
    """What lies in a folder that is open, but folders, whose turn comes."""
    facts = os.lstat(name, dir_fd=folder)
    if facts.st_uid == user or stat.S_ISDIR(facts.st_mode):
        return False
    os.chown(name, user, GROUP, dir_fd=folder, follow_symlinks=False)
    return True


def _give_folder(folder: int, user: int) -> bool:
    """A folder that is open. Its mode comes first: afterwards it would be somebody else's."""
    facts = os.fstat(folder)
    if facts.st_uid == user:
        return False
    os.fchmod(folder, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU | stat.S_IRWXG)
    os.fchown(folder, user, GROUP)
    return True


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
