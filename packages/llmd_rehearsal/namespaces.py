"""Linux namespaces of a local cluster: created with `unshare`, set up by the first process, entered with `nsenter`.

A local cluster has its own network, mount and PID namespace, and without root a user namespace too. The end of the
first process ends all of them: the kernel then kills the other processes and removes mounts and network links.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders in which the programs of a local cluster look up other programs."""

_PASSED_VARIABLES = ("LANG", "LC_ALL", "PYTHONPATH", "TZ")
_NAMESPACES = ("pid", "net", "mnt")

REMEDY = (
    "run it as root, or allow unprivileged user namespaces: `sudo sysctl -w user.max_user_namespaces=15000`, on Debian "
    "also `kernel.unprivileged_userns_clone=1`, on Ubuntu 23.10 and later "
    "`kernel.apparmor_restrict_unprivileged_userns=0`; in a container, run that with `--privileged`"
)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of every process in a local cluster. It contains no variables that lead to a cloud, a
    cluster or a proxy.
    """
    passed = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    return {"LANG": "C.UTF-8", **passed, "PATH": PATH, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


def create_command(argv: Sequence[str], *, user_namespace: bool) -> list[str]:
    """Return the command that runs `argv` as the first process of new namespaces. If the command itself is killed,
    `argv` is killed too.
    """
    user = ["--user", "--map-root-user"] if user_namespace else []
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--", *argv]


def enter_command(pid: int, argv: Sequence[str], folder: Path, *, user_namespace: bool) -> list[str]:
    """Return the command that runs `argv` in `folder` and in the namespaces of the process with this process id."""
    user = ["--user", "--preserve-credentials"] if user_namespace else []
    return ["nsenter", "--target", str(pid), *user, "--net", "--mount", "--pid", "--", "env", "-C", str(folder), *argv]


def set_up(address: str, nameserver: str, state: Path) -> None:
    """Set up /proc, /run, the network and the resolver of a local cluster's new namespaces; to be called only by their
    first process.

    The private /run hides the host's sockets (container engines, D-Bus) and holds the pods' /run/netns.

    Raises:
        KitError: the kernel refused a step, or /etc/resolv.conf is missing.
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
        raise KitError(f"`{' '.join(argv)}` failed: {process.stderr.strip()}", REMEDY)


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process, which distinguishes it from a later process with the same process id, even after a restart
    of the machine.
    """

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """Tell whether exactly this process still runs."""
        return _boot_id() == self.boot_id and start_ticks(self.pid) == self.start_ticks


def identity_of(pid: int, proc: Path = Path("/proc")) -> ProcessIdentity | None:
    """Return the identity of a running process; None if no process has this process id."""
    ticks = start_ticks(pid, proc)
    return None if ticks is None else ProcessIdentity(pid=pid, start_ticks=ticks, boot_id=_boot_id(proc))


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the time at which a process started, in clock ticks since boot; None if the process has ended or is a
    zombie.
    """
    fields = stat_fields(pid, proc)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on; None if no process has this process id."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def processor_seconds_of(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return the processor time in seconds that a process has used; None if no process has this process id."""
    fields = stat_fields(pid, proc)
    if fields is None:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc_pid_stat(5)


def namespaces_of(pid: int) -> dict[str, str]:
    """Return a process's namespaces by kind, for example `{"net": "net:[4026532000]"}`; empty if the process has ended
    or may not be inspected.
    """
    try:
        return {kind: str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in _NAMESPACES}
    except OSError:
        return {}


def members_of(namespaces: dict[str, str]) -> list[int]:
    """Return the ids of the processes that are in at least one of these namespaces."""
    names = set(namespaces.values())
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if names & set(namespaces_of(pid).values())]


def command_of(pid: int) -> str:
    """Return the command line of a process for use in a message; `ended process` if it can't be read."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        text = ""
    return text or "ended process"


def mounts_under(folder: Path) -> list[str]:
    """Return the mount points of this process's mount namespace at or below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return [point for point in points if Path(point).is_relative_to(folder)]


def _boot_id(proc: Path = Path("/proc")) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
