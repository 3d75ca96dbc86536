"""What packages above the kit add to its commands, found by entry points: the kit imports none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmd_pods.errors import KitError

from llmd_oke.cli.loading import load

if TYPE_CHECKING:  # `check` loads no Pulumi CLI
    from llmd_pods.errors import Problem
    from llmd_pods.progress import Progress

    from llmd_oke.operations.drift import Drift
    from llmd_oke.operations.previews import Preview
    from llmd_oke.operations.pulumi_cli import PulumiCli
    from llmd_oke.planning import Plan


class Rehearsals(Protocol):
    """Stacks as they are rehearsed on this machine (`llmd_oke.rehearsals`). Each method raises a KitError where the
    stack's rehearsal is not up, but for `preview`, which starts it.
    """

    def drift(self, project: Path, stack: str, progress: "Progress") -> "Sequence[Drift]":
        """What was changed by hand in a rehearsed stack."""
        ...

    def preview(self, project: Path, stack: str, progress: "Progress") -> "Preview":
        """What an update of a rehearsed stack would do."""
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
        """Runs `llmd-oke COMMAND` inside a stack's rehearsal, with the stack file as it is rehearsed; gives its exit
        code. A command that measures is told what is not real. An interruptible one ends by itself after Ctrl-C.
        """
        ...


@dataclass(frozen=True)
class UpdateBenchmark:
    """What the smoke benchmark of an update said: the summary of each model, the passports' files, why the update is
    not as good as it has to be, and why there is no benchmark where it could not be run or read.
    """

    summaries: Sequence[Mapping[str, Any]] = ()
    passports: Sequence[Path] = ()
    failure: KitError | None = None
    error: KitError | None = None


class Benchmarks(Protocol):
    """The smoke benchmark that belongs to an update (`llmd_oke.benchmarks`)."""

    def after_update(self, pulumi: "PulumiCli", plan: "Plan", *, failed: bool, as_json: bool) -> UpdateBenchmark:
        """Shows the benchmark of an update, or runs it where it belongs to the client; `as_json` leaves the tables
        out. After a failed update it is the benchmark only if that is what failed.
        """
        ...


class Forecasts(Protocol):
    """Latency figures that forecasts go by (`llmd_oke.forecasts`)."""

    def differences(self, plan: "Plan") -> Mapping[str, Sequence[str]]:
        """By model, how its servers differ from those that the kit's latency figures were measured of."""
        ...

    def problems(self) -> "Sequence[Problem]":
        """All that is wrong with the latency figures of the open project's own `values/`."""
        ...


def rehearsals() -> Rehearsals:
    """The rehearsals of this installation.

    Raises:
        KitError: it has none, or they need an extra.
    """
    return _extension("llmd_oke.rehearsals", "--rehearse")


def benchmarks() -> Benchmarks:
    """The smoke benchmark of this installation.

    Raises:
        KitError: it has none.
    """
    return _extension("llmd_oke.benchmarks", "--benchmark")


def forecasts() -> Forecasts:
    """The latency figures of this installation.

    Raises:
        KitError: it has none.
    """
    return _extension("llmd_oke.forecasts", "The forecast")


def _extension(group: str, what: str) -> Any:
    entry = next(iter(entry_points(group=group)), None)
    if entry is None:
        raise KitError(f"{what}: this installation has no {group}.", "Install llmd-oke anew.")
    return load(entry, what)
