"""`llmd-oke drift`: what somebody has changed by hand, in OCI and in the cluster."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from llmd_oke.cli import console, options, tunnel
from llmd_oke.cli.extensions import rehearsals
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
    changes = changes_by_hand(project, stack, rehearse=rehearse, through_tunnel=through_tunnel)
    if as_json:
        typer.echo(json.dumps({"stack": stack, "drift": [asdict(change) for change in changes]}, indent=2))
        raise typer.Exit(DRIFTED if changes else 0)
    for change in changes:
        console.output().print(str(change), markup=False, soft_wrap=True)
    if not changes:
        console.output().print("Nothing was changed by hand.")
    raise typer.Exit(DRIFTED if changes else 0)


def changes_by_hand(project: Path, stack: str, *, rehearse: bool, through_tunnel: bool) -> Sequence[Drift]:
    """What was changed by hand in a stack, or in its rehearsal.

    Raises:
        KitError: the state, OCI or the cluster can't be read, or the rehearsal isn't up.
    """
    if rehearse:
        return rehearsals().drift(project, stack, console.progress())
    pulumi = pulumi_cli(project, stack, aside=True)
    with tunnel.api_server_access(project, stack, through_tunnel):
        return operation.everywhere(pulumi, console.progress())
