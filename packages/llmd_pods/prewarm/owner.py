"""The command `python -m prewarm.owner`: gives a cache's directory to the user that fills it.

Directories that the kubelet creates, and the root directory of a new Lustre file system, belong to root. The command
runs as root with CAP_CHOWN as only capability. The group remains root's and may write, because servers that fill a
cache themselves run as root without the capability to write to other users' files.
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
"""Group ID of everything in a cache."""


def give(folder: Path, user: int) -> int:
    """Give a directory and everything below it to a user. Symbolic links themselves are changed, not their targets.

    Returns:
        The number of files and directories that belonged to another user.
    """
    count = 0
    for _, folders, files, descriptor in os.fwalk(folder):
        facts = os.fstat(descriptor)
        if facts.st_uid != user:  # the mode first: afterwards the directory belongs to another user
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU | stat.S_IRWXG)
            os.fchown(descriptor, user, GROUP)
            count += 1
        for name in [*files, *folders]:
            with suppress(FileNotFoundError):  # another pod fills the cache
                facts = os.lstat(name, dir_fd=descriptor)
                if facts.st_uid != user and not stat.S_ISDIR(facts.st_mode):  # directories follow in the walk
                    os.chown(name, user, GROUP, dir_fd=descriptor, follow_symlinks=False)
                    count += 1
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Give the cache's directory in the arguments to a user. An error is printed and ignored: pre-warming reports if it
    can't write.
    """
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
