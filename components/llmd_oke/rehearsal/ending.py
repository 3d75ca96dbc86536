"""The end of a world, and the proof that nothing of it is left."""

import contextlib
import os
import signal
import subprocess

from llmd_oke.errors import KitError
from llmd_oke.rehearsal import host_processes
from llmd_oke.rehearsal.host_processes import Identity
from llmd_oke.rehearsal.waiting import until
from llmd_oke.rehearsal.world_record import WorldRecord

_KERNEL_TIMEOUT_S = 10.0
"""Within this, the kernel has ended everything of a world whose first process has ended."""


def end_world(record: WorldRecord, timeout_s: float) -> None:
    """Ask the world's first process to stop the rest, kill it after `timeout_s`, and see that all have gone.

    Nothing happens when it has ended before. Raises KitError naming the processes that would not end.
    """
    supervisor = record.supervisor
    if not supervisor.alive():
        return
    members = _members(record)
    _signal(supervisor.pid, signal.SIGTERM)
    if not until(lambda: not supervisor.alive(), timeout_s):
        _signal(supervisor.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        for member in _alive(members):
            _signal(member.pid, signal.SIGKILL)
    if not until(lambda: not _alive(members), _KERNEL_TIMEOUT_S):
        left = ", ".join(f"{member.pid} ({host_processes.command_of(member.pid)})" for member in _alive(members))
        raise KitError(f"these processes of the rehearsal's world would not end: {left}")


def kill_launcher(pid: int) -> None:
    """End the program that made the namespaces, a child of this one, and with it whatever it has just started."""
    _signal(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def reap(pid: int) -> None:
    """Take the ended launcher from the kernel, when it was a child of this program."""
    with contextlib.suppress(ChildProcessError):
        until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, _KERNEL_TIMEOUT_S)


def end_group(process: subprocess.Popen[str], grace_s: float = 5, gently: signal.Signals = signal.SIGTERM) -> None:
    """End whatever is left of the process group that this process leads: SIGTERM, then SIGKILL after `grace_s`."""
    for number in (gently, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if until(lambda: _group_ended(process), grace_s):
            return


def _members(record: WorldRecord) -> list[Identity]:
    """Who is in the world's namespaces now; never a process of the host's own, whatever the record says."""
    own = host_processes.namespaces_of(os.getpid())
    foreign = {kind: name for kind, name in record.namespaces.items() if own.get(kind) != name}
    found = map(host_processes.identity_of, host_processes.members_of(foreign))
    return [identity for identity in found if identity is not None]


def _alive(members: list[Identity]) -> list[Identity]:
    return [member for member in members if member.alive()]


def _group_ended(process: subprocess.Popen[str]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
