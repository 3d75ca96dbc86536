"""The namespaces of a local cluster: made with `unshare`, set up by its first process, entered with `nsenter`.

A local cluster has a network, a mount table and process numbers of its own, and without root a user namespace too. All
end with its first process: the kernel then kills whatever else runs there and drops the mounts and links.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders in which a local cluster looks programs up."""

_PASSED_VARIABLES = ("LANG", "LC_ALL", "PYTHONPATH", "TZ")
_NAMESPACES = ("pid", "net", "mnt")

_REMEDY = (
    "run it as root, or allow unprivileged user namespaces: `sudo sysctl -w user.max_user_namespaces=15000`, on Debian "
    "also `kernel.unprivileged_userns_clone=1`, on Ubuntu 23.10 and later "
    "`kernel.apparmor_restrict_unprivileged_userns=0`; in a container, run that with `--privileged`"
)


def environment(home: Path) -> dict[str, str]:
    """The environment of every process in a local cluster: nothing in it leads to a cloud, a cluster or a proxy."""
    passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    return {"LANG": "C.UTF-8", **passed, "PATH": PATH, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


def create_command(argv: Sequence[str], *, user_namespace: bool) -> list[str]:
    """The command that runs `argv` as the first process of new namespaces, and kills it when it is itself killed."""
    user = ["--user", "--map-root-user"] if user_namespace else []
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--", *argv]


def enter_command(pid: int, argv: Sequence[str], folder: Path, *, user_namespace: bool) -> list[str]:
    """The command that runs `argv` in the namespaces of the process `pid`, in `folder`."""
    user = ["--user", "--preserve-credentials"] if user_namespace else []
    return ["nsenter", "--target", str(pid), *user, "--net", "--mount", "--pid", "--", "env", "-C", str(folder), *argv]


def set_up(address: str, nameserver: str, state: Path) -> None:
    """Give the new namespaces their own /proc and /run, a network and a resolver. Only for a first process.

    The private /run hides the host's sockets (container engines, D-Bus) and takes the pods' /run/netns.

    Raises KitError with what the kernel refused.
    """
    resolver = Path("/etc/resolv.conf").resolve()
    if not resolver.is_file():
        remedy = "create it (it may be empty): a local cluster puts its own in its place"
        raise KitError("/etc/resolv.conf does not exist", remedy)
    _run("mount", "-t", "proc", "proc", "/proc")
    _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    resolver_copy = state / "resolv.conf"
    resolver_copy.write_text(f"nameserver {nameserver}\noptions timeout:2 attempts:2\n")
    if resolver.is_relative_to("/run"):
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.touch()
    _run("mount", "--bind", str(resolver_copy), str(resolver))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", address, "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _run(*argv: str) -> None:
    process = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if process.returncode != 0:
        raise KitError(f"`{' '.join(argv)}` failed: {process.stderr.strip()}", _REMEDY)


def namespace_error(output: str) -> KitError:
    """The error for namespaces that the kernel would not make; `output` is what `unshare` said."""
    return KitError(f"this machine does not allow the rehearsal its own namespaces: {output.strip()}", _REMEDY)


@dataclass(frozen=True)
class ProcessIdentity:
    """A process for good: its number alone may belong to another process later, or after a restart of the machine."""

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """Tell whether this very process still runs."""
        return _boot_id() == self.boot_id and start_ticks(self.pid) == self.start_ticks


def identity_of(pid: int, proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """The identity of a running process, or None when there is none of that number."""
    ticks = start_ticks(pid, proc)
    return None if ticks is None else ProcessIdentity(pid=pid, start_ticks=ticks, boot_id=_boot_id(proc))


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Start of the process in clock ticks since boot; None for one that has ended, zombies included."""
    fields = stat_fields(pid, proc)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third (state) on; None when there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def namespaces_of(pid: int) -> dict[str, str]:
    """The namespaces of a process by kind, such as `{"net": "net:[4026532000]"}`; empty when it can't be read."""
    try:
        return {kind: str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in _NAMESPACES}
    except OSError:
        return {}


def members_of(namespaces: dict[str, str]) -> list[int]:
    """The processes that are in any of these namespaces."""
    names = set(namespaces.values())
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if names & set(namespaces_of(pid).values())]


def command_of(pid: int) -> str:
    """The command line of a process, for messages."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "ended process"


def mounts_under(folder: Path) -> list[str]:
    """The mount points at or below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return [point for point in points if Path(point).is_relative_to(folder)]


def _boot_id(proc: Path = Path("/proc")) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
