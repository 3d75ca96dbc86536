"""The command that runs a program in a pod: its network namespace and a root that isn't the machine's own."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llmd_oke.errors import KitError

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/ssl", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf")


@dataclass(frozen=True)
class Mount:
    """A file or folder of the machine shown at a path of the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Sandbox:
    """Where a container's program runs."""

    network: Path
    host_name: str
    mounts: Sequence[Mount]
    working_folder: str = "/"


def command(sandbox: Sandbox, argv: Sequence[str], niceness: int = 0) -> list[str]:
    """Give the command line that runs `argv` in the sandbox as process 1 of its own process namespace.

    It keeps no capabilities but binding low ports, and dies with the process that started it.
    """
    return [
        *((_found("nice"), "-n", str(niceness)) if niceness else ()),
        *(_found("nsenter"), f"--net={sandbox.network}", "--", _found("bwrap")),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent", "--new-session"),
        *("--hostname", sandbox.host_name, "--cap-drop", "ALL", "--cap-add", "CAP_NET_BIND_SERVICE"),
        *_system(),
        *_mounted(sandbox.mounts),
        *("--chdir", sandbox.working_folder, "--", *argv),
    ]


def entering(process_id: int, argv: Sequence[str]) -> list[str]:
    """Give the command line that runs `argv` beside process 1 of a sandbox, whose id outside is `process_id`."""
    return [_found("nsenter"), f"--target={process_id}", "--mount", "--pid", "--net", "--uts", "--ipc", "--", *argv]


@cache
def _found(program: str) -> str:
    """Give the program's path: the container's own PATH isn't for finding these."""
    path = shutil.which(program)
    if path is None:
        raise KitError(f"{program} isn't installed", "Install the packages bubblewrap and util-linux.")
    return path


@cache
def _system() -> tuple[str, ...]:
    """Give the root's fixed part: the machine's /usr without /usr/local, read-only, and empty folders."""
    options: list[str] = []
    for folder in _SYSTEM_FOLDERS:
        path = Path(folder)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), folder]
        elif path.is_dir():
            options += ["--ro-bind", folder, folder]
    for folder in _SYSTEM_FILES:
        options += ["--ro-bind-try", folder, folder]
    options += ["--tmpfs", "/usr/local", "--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/var/tmp"):  # noqa: S108  # paths of the container
        options += ["--perms", "1777", "--dir", folder]
    return (*options, "--dir", "/root", "--dir", "/run", "--symlink", "../run", "/var/run")


def _mounted(mounts: Sequence[Mount]) -> list[str]:
    options: list[str] = []
    for mount in sorted(mounts, key=lambda each: each.target.count("/")):
        option = "--ro-bind" if mount.read_only else "--bind"
        options += [option, os.path.realpath(mount.source), mount.target.rstrip("/")]
    return options
