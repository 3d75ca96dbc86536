"""The command `python start.py OPTIONS -- COMMAND`: runs a server that keeps the code that it compiles.

Each server has its own numbered directory with a lock that its process holds: compilers name unfinished files by
process ID, which may be equal in several containers. A new directory begins with a copy of the code of another one
whose server has started. Code with which a server didn't become healthy is removed at the next start, which compiles
anew: damaged code would crash vLLM at every start.

The command replaces this process (exec), so that signals and the exit code are the server's. If the directory can't be
used, the server runs without it.
"""

import argparse
import fcntl
import http.client
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

USED = "used"
"""Name of a file whose modification time is the last time at which a server started with the directory."""

LOCK, STARTING, STARTED, CODE = "lock", "starting", "started", "code"
"""Names in a numbered directory: the lock, the mark of a start in progress, the mark of code that has started a server,
and the code.
"""

MOST_PLACES = 64
PERIOD_S = 0.5
OK = 200


@dataclass(frozen=True)
class Place:
    """Numbered directory with the code that a server compiles (vLLM's compile caches); the file descriptor `descriptor`
    holds its lock, `state` describes the code in words.
    """

    folder: Path
    descriptor: int
    state: str

    @property
    def code(self) -> Path:
        """Directory of the compiled code in the numbered directory."""
        return self.folder / CODE

    def start(self, links: Sequence[Path]) -> None:
        """Mark in the numbered directory that a server's start is in progress, and create the symbolic links `links`,
        the paths to which the server compiles, to the directory of compiled code.
        """
        (self.folder / STARTING).touch()
        for link in links:
            target = self.code / link.name
            target.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    def confirm(self) -> None:
        """Mark in the numbered directory that its server became healthy with the compiled code, so that the next server
        starts with this code instead of removing it.
        """
        (self.folder / STARTED).touch()
        (self.folder / STARTING).unlink()


def clear(links: Sequence[Path]) -> None:
    """Remove the links and directories that an earlier start in the same container left at the paths to which the
    server compiles.
    """
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        else:
            shutil.rmtree(link, ignore_errors=True)


def claim(folder: Path) -> Place:
    """Lock the lowest-numbered directory of compiled code that no running server holds, and prepare the code in it for
    a start.

    Raises:
        OSError: the folder isn't writable, or all directories are held.
    """
    (folder / USED).touch()
    for number in range(MOST_PLACES):
        place = folder / str(number)
        if not place.exists():
            place.mkdir(exist_ok=True)
            place.chmod(0o770)  # root's group, whose program removes old folders, sees the lock
        descriptor = os.open(place / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return Place(place, descriptor, _ready(folder, place))
    raise OSError(f"all {MOST_PLACES} places are taken")


def _ready(folder: Path, place: Path) -> str:
    """Prepare the code in a claimed directory for a start, and return a description of the code."""
    code = place / CODE
    if (place / STARTING).exists():
        (place / STARTED).unlink(missing_ok=True)
        shutil.rmtree(code, ignore_errors=True)
        return "removed, because the last server with it did not start"
    if (place / STARTED).exists():
        return "as the last server left it"
    shutil.rmtree(code, ignore_errors=True)
    others = (mark.parent for mark in sorted(folder.glob(f"*/{STARTED}")))
    source = next((other / CODE for other in others if (other / CODE).is_dir()), None)
    if source is None:
        return "none yet"
    try:
        shutil.copytree(source, code, symlinks=True)
    except (OSError, shutil.Error):  # the server of the copied directory may be writing
        shutil.rmtree(code, ignore_errors=True)
        return "none yet"
    return f"a copy of that in place {source.parent.name}"


def watch(place: Place, health: str, limit_s: float) -> None:
    """Wait until the server, this process's parent, is healthy, and mark its compiled code as good; give up if it ends
    or isn't healthy within `limit_s` seconds.
    """
    os.close(place.descriptor)  # the lock is the server's
    deadline, server = time.monotonic() + limit_s, os.getppid()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline and os.getppid() == server:
        try:
            with opener.open(health, timeout=5) as answer:
                if answer.status == OK:
                    place.confirm()
                    return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(PERIOD_S)


def options_of(argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the options of this program in a container's command; None if the command runs another program."""
    program = next((place for place, word in enumerate(argv) if word.endswith("/start.py")), None)
    if program is None or "--" not in argv[program:]:
        return None
    return _parsed(argv[program + 1 :])


def server_command(argv: Sequence[str]) -> list[str]:
    """Return the command of the server itself from a container's command, whether or not this program starts the
    server.
    """
    options = options_of(argv)
    return list(argv) if options is None else options.command


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs a server that keeps the code that it compiles.")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the node, for servers of this kind")
    parser.add_argument("--link", type=Path, action="append", required=True, help="path that the server compiles to")
    parser.add_argument("--health", required=True, help="URL that answers 200 once the server has started")
    parser.add_argument("--limit-s", type=float, required=True, help="seconds that a start may take")
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:end])
    options.command = list(argv[end + 1 :])
    if not options.command:
        parser.error("no command behind --")
    return options


def main(argv: Sequence[str]) -> None:
    """Claim a directory, fork a process that watches the start, and replace this process with the server."""
    options = _parsed(argv)
    try:
        clear(options.link)
        place = claim(options.folder)
        place.start(options.link)
    except OSError as error:
        print(f"compiled code is not kept: {error}", flush=True)
    else:
        print(f"compiled code in {place.folder}: {place.state}", flush=True)
        if os.fork() == 0:
            watch(place, options.health, options.limit_s)
            os._exit(0)
        os.set_inheritable(place.descriptor, True)
    os.execvp(options.command[0], options.command)  # noqa: S606 - the container's own command


if __name__ == "__main__":
    main(sys.argv[1:])
