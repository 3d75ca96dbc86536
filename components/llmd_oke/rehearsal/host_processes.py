"""Processes as the kernel lists them: who still is who, and who is in which namespace."""

from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = ("pid", "net", "mnt")


@dataclass(frozen=True)
class Identity:
    """A process for good: its number alone may belong to another process later, or after a restart of the machine."""

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return _boot_id() == self.boot_id and start_ticks(self.pid) == self.start_ticks


def identity_of(pid: int, proc: Path = Path("/proc")) -> Identity | None:
    """The identity of a running process, or None when there is none of that number."""
    ticks = start_ticks(pid, proc)
    return None if ticks is None else Identity(pid=pid, start_ticks=ticks, boot_id=_boot_id(proc))


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When the process started, in clock ticks since boot; None for one that has ended, zombies included."""
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
    wanted = set(namespaces.values())
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted & set(namespaces_of(pid).values())]


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
