"""Rehearsals that run on this machine: their folders and phases, commands inside, and their end."""

import re
import shutil
import signal
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from llmd_base.errors import KitError
from llmd_oke.operations.pulumi_cli import end_group
from llmd_oke.values import cache_folder

from llmd_rehearsal.cluster_spec import ClusterRecord
from llmd_rehearsal.local_cluster import LocalCluster

COMMAND_END_TIMEOUT_S = 60.0

_ENDED_BY_SIGNAL = 128
"""Number that shells add to the signal number for the exit code of a command that a signal ended."""

FOLDER = ".rehearsal"

_STACK_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
"""Pulumi's rule for stack names, without `.` and `..`."""


def rehearsal_folder(project: Path, stack: str) -> Path:
    """Return the folder of a stack's rehearsal.

    Raises:
        KitError: the name isn't a valid stack name. A path could lead out of the project, and `down` deletes files.
    """
    if not _STACK_NAME.fullmatch(stack):
        accepted = "A name has letters, digits, dots, hyphens and underscores, as in stacks/Pulumi.<name>.yaml."
        raise KitError(f"{stack!r} is no name of a stack.", accepted)
    return project / FOLDER / stack


def cluster_record(project: Path, stack: str) -> ClusterRecord | None:
    """Return the record of a stack's local cluster; None if there is none."""
    return LocalCluster(rehearsal_folder(project, stack)).status()


def phase(project: Path, stack: str) -> str:
    """Return the phase of a stack's local cluster: `ready`, `starting`, `stopping`, `failed`, or `gone` if there is
    none.
    """
    record = cluster_record(project, stack)
    return record.phase if record else "gone"


def restarts(project: Path, stack: str) -> dict[str, int]:
    """Return the restarted processes of a stack's local cluster by name, with the number of restarts."""
    record = cluster_record(project, stack)
    if record is None:
        return {}
    return {name: process.restarts for name, process in record.processes.items() if process.restarts}


def inside_environment(state: Path) -> dict[str, str]:
    """Return the environment variables of all commands in a local cluster, given its folder: kubeconfig and cache."""
    return {"KUBECONFIG": str(state / "kubeconfig.yaml"), "LLMD_OKE_CACHE": str(cache_folder())}


def command_environment(cluster: LocalCluster) -> dict[str, str]:
    """Return the environment variables of a user's commands in a local cluster: those of all commands, and PATH with
    the executables beside this Python, among them `llmd-oke`.
    """
    path = f"{sysconfig.get_path('scripts')}:{cluster.environment()['PATH']}"
    return {**inside_environment(cluster.folder.path), "PATH": path}


def run_command(
    project: Path,
    stack: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output: TextIO | None = None,
    interruptible: bool = False,
) -> int:
    """Run a command inside a stack's local cluster, with the caller's standard output, and return its exit code.

    The executables beside this Python, among them `llmd-oke`, are on the command's PATH. Ctrl-C ends the command; with
    `interruptible`, the command gets SIGINT and up to a minute to end, and counts as ended by SIGINT.

    Raises:
        KitError: the stack's local cluster isn't up.
    """
    cluster = LocalCluster(rehearsal_folder(project, stack))
    environment = {**command_environment(cluster), **(env or {})}
    with cluster.process_inside(argv, env=environment, folder=project, output=output) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not interruptible:
                raise
            end_group(process, COMMAND_END_TIMEOUT_S, signal.SIGINT)
            return _ENDED_BY_SIGNAL + signal.SIGINT


def down(project: Path, stack: str) -> bool:
    """End a stack's local cluster and delete its files except logs; return whether there were such files."""
    cluster = LocalCluster(rehearsal_folder(project, stack))
    if not cluster.folder.path.is_dir():
        return False
    cluster.stop()
    files = [
        path for path in cluster.folder.path.iterdir() if path not in {cluster.folder.logs, cluster.folder.lock_file}
    ]
    for path in files:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return bool(files)
