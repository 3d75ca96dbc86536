"""`llmd-oke up` and `llmd-oke destroy`: the real Pulumi CLI, with a look at what it would do before it does it."""

from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import pulumi_cli

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AllowReplace = Annotated[
    bool, typer.Option("--allow-replace", help="Let the update replace or delete clusters, networks and pools.")
]


def up(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: Yes = False,
    allow_replace: AllowReplace = False,
    benchmark: Annotated[
        bool, typer.Option(help="Show the smoke benchmark's result, or run it if it is the client's.")
    ] = True,
) -> None:
    """Check the stack file, preview, update the stack for real with the Pulumi CLI, and show its smoke benchmark.

    A preview that would replace or delete a cluster, a network or a pool is refused, with the input that causes it.
    """
    plan = planning.plan_stack_file(project, stack)
    for advice in plan.advice:
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    pulumi = pulumi_cli(project, stack)
    status = updates.update(pulumi, plan, console.progress(), typer.confirm, yes=yes, allow_replace=allow_replace)
    if benchmark:
        smoke.after_update(stack, project, plan, failed=bool(status))
    if status:
        raise typer.Exit(status)


def destroy(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: Yes = False,
    unprotect: options.Unprotect = False,
) -> None:
    """Destroy a stack for real. Where clusters or pools are protected it is refused without --unprotect."""
    pulumi = pulumi_cli(project, stack)
    if status := updates.destroy(pulumi, console.progress(), yes=yes, unprotect=unprotect):
        raise typer.Exit(status)
