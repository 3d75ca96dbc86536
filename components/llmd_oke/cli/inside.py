"""Running one of our own commands where a rehearsed stack can be reached."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llmd_oke.cli import console
from llmd_oke.errors import KitError
from llmd_oke.rehearsal import rehearsal
from llmd_oke.rehearsal.plugins import PluginChoice
from llmd_oke.rehearsal.project_copy import DEPLOYED
from llmd_oke.rehearsal.simulated import SIMULATED, SIMULATED_PLUGIN


def run_inside(
    project: Path,
    stack: str,
    command: Sequence[str],
    reports: Path | None = None,
    *,
    measures: bool = True,
    interruptible: bool = False,
) -> int:
    """Runs `llmd-oke COMMAND` inside a stack's rehearsal, with the stack file as it is rehearsed; gives its exit code.

    A command that measures is told what is not real. An interruptible one ends by itself after Ctrl-C.

    Raises:
        KitError: the stack isn't rehearsed, or its rehearsal isn't up.
    """
    copy = rehearsal.rehearsal_folder(project, stack) / DEPLOYED
    if not copy.is_dir():
        raise KitError(f"{stack} is not rehearsed here.", f"Rehearse it: scripts/rehearse --stack {stack}")
    own = ["--stack", stack, "--project", str(copy), "--reports", str((reports or project / "reports").resolve())]
    real = rehearsal.running_settings(project, stack).plugin is PluginChoice.REAL
    parts = (*SIMULATED, *([] if real else [SIMULATED_PLUGIN]))
    simulated = [word for part in parts for word in ("--simulated", part) if measures]
    argv = [sys.executable, "-m", "llmd_oke", *command, *own, *simulated]
    environment = console.inherited_environment()
    return rehearsal.run_command(project, stack, argv, env=environment, interruptible=interruptible)
