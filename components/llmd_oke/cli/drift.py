"""`llmd-oke drift`: what somebody has changed by hand, in OCI and in the cluster."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from llmd_oke.cli import console, options, tunnel, up
from llmd_oke.errors import KitError
from llmd_oke.operations import drift as operation
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.pulumi_cli import pulumi_cli

DRIFTED = 3
"""Exit code where something was changed by hand: 1 is an error, and 2 a command line that can't be understood."""


def drift(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: options.Rehearse = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Show what somebody has changed by hand in what the stack has deployed, in OCI and in its cluster.

    Nothing is changed, the stack's state neither. Ends with 0 where all is as the last update left it, with 3 where
    something is not, and with 1 where it can't be seen.
    """
    found = look(project, stack, rehearse=rehearse, through_tunnel=through_tunnel)
    if as_json:
        typer.echo(json.dumps({"stack": stack, "drift": [asdict(each) for each in found]}, indent=2))
        raise typer.Exit(DRIFTED if found else 0)
    for each in found:
        console.output().print(str(each), markup=False, soft_wrap=True)
    if not found:
        console.output().print("Nothing was changed by hand.")
    raise typer.Exit(DRIFTED if found else 0)


def look(project: Path, stack: str, *, rehearse: bool, through_tunnel: bool) -> Sequence[Drift]:
    """What was changed by hand in a stack, or in its rehearsal.

    Raises:
        KitError: the state, OCI or the cluster can't be read, or the rehearsal isn't up.
    """
    if rehearse:
        return _rehearsed(project, stack)
    pulumi = pulumi_cli(project, stack, aside=True)
    with up.way(project, stack, through_tunnel):
        return operation.everywhere(pulumi, console.progress())


def _rehearsed(project: Path, stack: str) -> Sequence[Drift]:
    from llmd_oke.rehearsal import rehearsal  # noqa: PLC0415 - needs what only rehearsals install

    if rehearsal.phase(project, stack) != "ready":
        raise KitError(f"The rehearsal of {stack} is not up.", f"Rehearse it: scripts/rehearse --stack {stack}")
    progress = console.progress()
    prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
    progress.step("looking for changes by hand; nothing is changed")
    return [Drift(**each) for each in rehearsal.run_engine(prepared, "drift", progress)["drift"]]
