"""Rehearsals as the kit's commands meet them: found by an entry point, as the kit doesn't import what is above it."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmd_base.errors import KitError

from llmd_oke.cli.loading import load

if TYPE_CHECKING:  # `check` loads no Pulumi CLI
    from llmd_base.progress import Progress

    from llmd_oke.operations.drift import Drift
    from llmd_oke.operations.previews import Preview


class Rehearsals(Protocol):
    """Stacks as they are rehearsed on this machine (`llmd_oke.rehearsals`). Each method raises a KitError where the
    stack's rehearsal is not up, but for `preview`, which starts it.
    """

    def drift(self, project: Path, stack: str, progress: "Progress") -> "Sequence[Drift]":
        """Return what was changed by hand in a rehearsed stack."""
        ...

    def preview(self, project: Path, stack: str, progress: "Progress") -> "Preview":
        """Return what an update of a rehearsed stack would do."""
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
        """Launches nodes of a rehearsed stack anew, drained unless `drain_limit_s` is None."""
        ...

    def time_scale(self, project: Path, stack: str) -> float:
        """Wall seconds for a second of model time in a rehearsal."""
        ...

    def run_inside(
        self,
        project: Path,
        stack: str,
        command: Sequence[str],
        reports: Path | None = None,
        *,
        measures: bool = True,
        interruptible: bool = False,
    ) -> int:
        """Run `llmd-oke COMMAND` inside a stack's rehearsal, with the stack file as it is rehearsed; return its exit
        code. A command that measures is told what is not real. An interruptible one ends by itself after Ctrl-C.
        """
        ...


def rehearsals() -> Rehearsals:
    """The rehearsals of this installation.

    Raises:
        KitError: it has none, or they need an extra.
    """
    entry = next(iter(entry_points(group="llmd_oke.rehearsals")), None)
    if entry is None:
        raise KitError("--rehearse: this installation has no rehearsals.", "Install llmd-oke anew.")
    return load(entry, "--rehearse")
