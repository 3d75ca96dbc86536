"""Interface of rehearsals for the kit's commands. The implementation is found by an entry point, since `llmd_oke`
doesn't import packages above it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from llmd_base.errors import KitError

from llmd_oke.cli.console import ChildExit
from llmd_oke.cli.loading import load_only

if TYPE_CHECKING:  # `check` loads no Pulumi CLI
    from llmd_base.progress import Progress

    from llmd_oke.operations.drift import Drift
    from llmd_oke.operations.previews import Preview


class Rehearsals(Protocol):
    """Protocol of what the kit's commands do with rehearsals of stacks on this machine (entry point
    `llmd_oke.rehearsals`). Each method raises a KitError if the stack's rehearsal is not up, except `preview`, which
    starts it.
    """

    def drift(self, project: Path, stack: str, progress: "Progress") -> "Sequence[Drift]":
        """Return the changes by hand in a rehearsed stack: those by other programs than Pulumi."""
        ...

    def preview(self, project: Path, stack: str, progress: "Progress") -> "Preview":
        """Return the preview of an update of a rehearsed stack."""
        ...

    def replace_nodes(
        self,
        project: Path,
        stack: str,
        names: Sequence[str],
        progress: "Progress",
        *,
        at_once: int,
        drain_limit_s: float | None,
        force: bool,
    ) -> None:
        """Replace nodes of a rehearsed stack, `at_once` at a time: those in `names`, or those whose settings have
        changed if it is empty. They are drained first, unless `drain_limit_s` is None; with `force`, pods that are left
        after the limit end with their node.
        """
        ...

    def forget_losses(self, project: Path, stack: str, progress: "Progress") -> Sequence[str]:
        """Remove from a rehearsed stack's state the resources that the simulated OCI no longer has; return lines of
        text on what is gone and what stays.
        """
        ...

    def run_inside(
        self,
        project: Path,
        stack: str,
        command: Sequence[str],
        reports: Path | None = None,
        *,
        time_scale: bool = True,
        measures: bool = True,
        interruptible: bool = False,
    ) -> int:
        """Run `llmd-oke COMMAND` inside a stack's rehearsal, with the rehearsed stack file; return its exit code. See
        `run_rehearsed` for the options.
        """
        ...


def rehearsals() -> Rehearsals:
    """Return the implementation of rehearsals in this installation.

    Raises:
        KitError: the installation has none, or they need an extra that isn't installed.
    """
    missing = KitError("--rehearse: this installation has no rehearsals.", "Install llmd-oke anew.")
    found: Rehearsals = load_only("llmd_oke.rehearsals", "--rehearse", missing)
    return found


def run_rehearsed(
    project: Path,
    stack: str,
    command: str,
    options: Mapping[str, object],
    reports: Path | None = None,
    *,
    time_scale: bool = True,
    measures: bool = True,
    interruptible: bool = False,
) -> NoReturn:
    """Run a command of `llmd-oke` inside a stack's rehearsal in place of this one, and end with its exit code.

    Args:
        project: folder of the project.
        stack: name of the stack.
        command: the command's words, such as `tune watch`.
        options: values of the command's options by name; flags for True, and nothing for None and False.
        reports: folder of the stack's reports.
        time_scale: whether the command is told the rehearsal's time scale.
        measures: whether the command gets the list of simulated parts, to label its figures.
        interruptible: whether the command ends by itself after Ctrl-C.

    Raises:
        ChildExit: the command ended.
        KitError: the stack's rehearsal is not up.
    """
    words = command.split()
    for name, value in options.items():
        if value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    status = rehearsals().run_inside(
        project, stack, words, reports, time_scale=time_scale, measures=measures, interruptible=interruptible
    )
    raise ChildExit(status)
