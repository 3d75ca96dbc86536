"""The kit's commands for rehearsed stacks, such as `llmd-oke status --rehearse`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke.cli import console
from llmd_oke.cli.rehearsals import Rehearsals
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.previews import Preview, of_document

from llmd_rehearsal import engine_operations, rehearsal
from llmd_rehearsal.cluster_plan import PROGRAMS, SIMULATED_NODES, SIMULATED_PLUGIN, simulated_servers
from llmd_rehearsal.engine_project import DEPLOYED
from llmd_rehearsal.local_cluster import command_line
from llmd_rehearsal.rehearsal import Prepared
from llmd_rehearsal.rehearsal_settings import PluginChoice, running_settings
from llmd_rehearsal.running_rehearsals import cluster_record, phase, rehearsal_folder, run_command

_ASK_PROMETHEUS = frozenset(("status", "doctor", "support"))
"""Sub-commands of `llmd-oke` that have the option `--prometheus`."""


def run_inside(
    project: Path,
    stack: str,
    command: Sequence[str],
    reports: Path | None = None,
    *,
    time_scale: bool = True,
    measures: bool = True,
    interruptible: bool = False,
) -> int:
    """Run `llmd-oke COMMAND` inside a stack's rehearsal, on the rehearsal's copy of the stack file, and return the exit
    code.

    With `time_scale`, the command gets the rehearsal's time scale: wall seconds that simulated servers take for one
    second of work on real hardware. With `measures`, it gets options with the names of the rehearsal's simulated parts,
    and writes these names into its results. `status` gets the versions of the running programs. Commands with
    `--prometheus` get the URL of the rehearsal's Prometheus, because the API server's proxy reaches only pods. With
    `interruptible`, Ctrl-C is left to the command, which ends by itself.

    Raises:
        KitError: the stack isn't rehearsed, or its rehearsal isn't up.
    """
    copy = rehearsal_folder(project, stack) / DEPLOYED
    if not copy.is_dir():
        begin = command_line(project, f"--stack {stack}")
        raise KitError(f"{stack} is not rehearsed here.", f"Rehearse it: {begin}")
    options = ["--stack", stack, "--project", str(copy), "--reports", str((reports or project / "reports").resolve())]
    running = running_settings(project, stack)
    has_plugin = running.plugin is PluginChoice.REAL
    parts = (SIMULATED_NODES, simulated_servers(running.vllm), *([] if has_plugin else [SIMULATED_PLUGIN]))
    simulated = [word for part in parts for word in ("--simulated", part) if measures]
    from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL  # noqa: PLC0415 - it loads lightkube

    record = cluster_record(project, stack)
    versions = record.facts.get(PROGRAMS, "").split() if record else []
    ran = [word for version in versions for word in ("--ran", version)]
    asked = command[0] in _ASK_PROMETHEUS and "--prometheus" not in command
    prometheus = ["--prometheus", PROMETHEUS_URL] if asked and record and "prometheus" in record.processes else []
    argv = [
        sys.executable,
        "-m",
        "llmd_oke",
        *command,
        *options,
        *(["--time-scale", str(running.time_scale or 1.0)] if time_scale else []),
        *simulated,
        *(ran if command[0] == "status" else []),
        *prometheus,
    ]
    environment = console.inherited_environment()
    return run_command(project, stack, argv, env=environment, interruptible=interruptible)


class LocalRehearsals:
    """Operations of `llmd-oke`'s commands on rehearsed stacks, by which the kit's command line reaches this package
    (`llmd_oke.cli.rehearsals.Rehearsals`).
    """

    run_inside = staticmethod(run_inside)

    def drift(self, project: Path, stack: str, progress: Progress) -> Sequence[Drift]:
        """Return the changes that were made by hand to a rehearsed stack's resources.

        Raises:
            KitError: the stack's rehearsal isn't up, or the drift can't be determined.
        """
        prepared = _running(project, stack, progress)
        progress.step("looking for changes by hand; nothing is changed")
        return [Drift(**change) for change in engine_operations.run_engine(prepared, "drift", progress)["drift"]]

    def preview(self, project: Path, stack: str, progress: Progress) -> Preview:
        """Return the changes that an update of a rehearsed stack would make. Starts the rehearsal if it isn't up.

        Raises:
            KitError: the preview failed; the message has the engine's reason.
        """
        prepared = rehearsal.prepare(project, stack, running_settings(project, stack), progress)
        return of_document(engine_operations.run_engine(prepared, "preview", progress))

    def replace_nodes(
        self,
        project: Path,
        stack: str,
        names: Sequence[str],
        progress: Progress,
        *,
        at_once: int,
        drain_limit_s: float | None,
        force: bool,
    ) -> None:
        """Replace nodes of a rehearsed stack by new instances; drain each node first, unless `drain_limit_s` is None.

        Raises:
            KitError: the stack's rehearsal isn't up, or a node can't be replaced.
        """
        prepared = _running(project, stack, progress)
        progress.step("launching nodes of the rehearsed stack anew")
        limit = ["--drain-limit", str(drain_limit_s)] if drain_limit_s is not None else []
        more = ["--at-once", str(at_once), *limit, *["--force"] * force]
        engine_operations.run_engine(prepared, "replace", progress, targets=names, more=more)

    def forget_losses(self, project: Path, stack: str, progress: Progress) -> Sequence[str]:
        """Remove from a rehearsed stack's Pulumi state the resources that the stand-in for OCI no longer has; return a
        sentence on each removed resource, and on each lost resource that was kept.

        Raises:
            KitError: the stack's rehearsal isn't up, or the state can't be changed.
        """
        prepared = _running(project, stack, progress)
        return list(engine_operations.run_engine(prepared, "forget", progress)["outputs"]["losses"])


def _running(project: Path, stack: str, progress: Progress) -> Prepared:
    if phase(project, stack) != "ready":
        begin = command_line(project, f"--stack {stack}")
        raise KitError(f"The rehearsal of {stack} is not up.", f"Rehearse it: {begin}")
    return rehearsal.prepare(project, stack, running_settings(project, stack), progress)


rehearsals: Rehearsals = LocalRehearsals()
