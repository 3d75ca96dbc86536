"""`llmd-oke pipeline`: what continuous integration calls, for real or against the rehearsal."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.catalogue.limits import pipeline_limits
from llmd_oke.cli import console, options, tunnel, up
from llmd_oke.cli import drift as by_hand
from llmd_oke.config import stacks
from llmd_oke.errors import KitError
from llmd_oke.operations import drift as changes_by_hand
from llmd_oke.operations.previews import Preview, of_document
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.operations.refreshing import reading_first
from llmd_oke.operations.summary import drifted, summarise

app = typer.Typer(help="Preview and deploy a stack as continuous integration does.", no_args_is_help=True)

Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Against the rehearsal on this machine.", envvar="LLMD_OKE_REHEARSE")
]
Summary = Annotated[
    Path | None,
    typer.Option("--summary", help="File for the Markdown summary; standard output if left out.", dir_okay=False),
]


@app.command()
def preview(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    allow_replace: options.AllowReplace = False,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Preview an update and write a Markdown summary. Ends with 1 where the update would be refused."""
    _require_listed(project, stack)
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    pulumi = None if rehearse else reading_first(pulumi_cli(project, stack), plan)
    with up.way(project, stack, through_tunnel) if pulumi else nullcontext():
        changed = changes_by_hand.look(pulumi, console.progress()) if pulumi else []
        found = pulumi.preview() if pulumi else _rehearsed(project, stack)
    changed += changes_by_hand.found_in_preview(found.changes, changed)
    judged = summarise(stack, plan, found, by_hand=changed, allow_replace=allow_replace)
    _write(judged.markdown, summary)
    if judged.refusals:
        raise typer.Exit(1)


@app.command()
def drift(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    summary: Summary = None,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Look for changes by hand and write a Markdown summary. Ends as `llmd-oke drift` does: 3 where there are some."""
    _require_listed(project, stack)
    found = by_hand.look(project, stack, rehearse=rehearse, through_tunnel=through_tunnel)
    _write(drifted(stack, found), summary)
    if found:
        raise typer.Exit(by_hand.DRIFTED)


@app.command()
def deploy(
    stack: options.Stack,
    project: options.Project = options.HERE,
    rehearse: Rehearse = False,
    allow_replace: options.AllowReplace = False,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Update a stack without questions, then run the smoke benchmark, which decides how this ends."""
    _require_listed(project, stack)
    if not rehearse:
        up.up(stack, project, yes=True, allow_replace=allow_replace, benchmark=True, through_tunnel=through_tunnel)
        return
    argv = [sys.executable, "-m", "llmd_oke", "rehearse", "--stack", stack, "--project", str(project)]
    os.execv(argv[0], argv)  # noqa: S606 - in place of this process, so that signals reach it


@app.command()
def limit(
    stack: options.Stack,
    project: options.Project = options.HERE,
    own_runner: Annotated[
        bool, typer.Option("--own-runner", help="The job runs on a runner of one's own, not on one that GitHub hosts.")
    ] = False,
) -> None:
    """Print the minutes that a job may take which updates this stack: the kit's own limits, at most GitHub's.

    What they are made of, and whether GitHub's is less, goes to standard error.
    """
    from llmd_oke.cli.time_limit import time_limit  # noqa: PLC0415 - loads the program, which is slow

    _require_listed(project, stack)
    found = time_limit(project, stack, planning.plan_stack_file(project, stack, nodes_pull=True))
    known = pipeline_limits()
    most = known.own_job_minutes if own_runner else known.hosted_job_minutes
    for line in found.lines():
        console.errors().print(line, markup=False, soft_wrap=True)
    console.errors().print(f"An update of {stack} may take {found.minutes} minutes.", markup=False, soft_wrap=True)
    if found.minutes > most:
        longer = "" if own_runner else f", on a runner of one's own (LLMD_OKE_RUNNER) after {known.own_job_minutes}"
        told = f"GitHub ends the job after {most}{longer}; the next one goes on where it ended."
        console.errors().print(told, markup=False, soft_wrap=True)
    typer.echo(min(found.minutes, most))


def _write(markdown: str, summary: Path | None) -> None:
    if summary is None:
        typer.echo(markdown, nl=False)
        return
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(markdown)
    console.errors().print(f"summary  {summary}", markup=False, soft_wrap=True)


def _require_listed(project: Path, stack: str) -> None:
    """A pipeline deploys the stacks that have a file, by the names of these files.

    Approval and locks go by the name, and `organization/project/stack` would be another name of the same.

    Raises:
        KitError: it is none of them.
    """
    known = stacks(project)
    if stack not in known:
        raise KitError(f"{stack!r} is no name of a stack file.", f"Stacks here: {', '.join(known) or 'none'}.")


def _rehearsed(project: Path, stack: str) -> Preview:
    from llmd_oke.rehearsal import rehearsal  # noqa: PLC0415 - needs what only rehearsals install

    progress = console.progress()
    prepared = rehearsal.prepare(project, stack, rehearsal.running_settings(project, stack), progress)
    return of_document(rehearsal.run_engine(prepared, "preview", progress))
