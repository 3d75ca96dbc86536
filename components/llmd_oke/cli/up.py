"""`llmd-oke up`: the real `pulumi up`, then the smoke benchmark."""

import shutil
import subprocess
from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, smoke
from llmd_oke.errors import KitError


def up(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the update.")] = False,
    benchmark: Annotated[bool, typer.Option(help="Run the smoke benchmark after the update.")] = True,
) -> None:
    """Check the stack file, update the stack for real with the Pulumi CLI, then run the smoke benchmark."""
    plan = planning.plan_stack_file(project, stack)
    for advice in plan.advice:
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    pulumi = shutil.which("pulumi")
    if pulumi is None:
        raise KitError("`pulumi` is not on PATH.", "Install the Pulumi CLI: https://www.pulumi.com/docs/install/")
    command = [pulumi, "up", "--stack", stack, "--cwd", str(project), *(["--yes"] if yes else [])]
    if status := subprocess.run(command, check=False).returncode:
        raise typer.Exit(status)
    if benchmark:
        smoke.smoke(stack, project)
