"""`llmd-oke up` and `llmd-oke destroy`: the real Pulumi CLI, with a look at what it would do before it does it."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, recover, smoke, tunnel
from llmd_oke.cli.account import Account, ended
from llmd_oke.cli.smoke import Benchmarked
from llmd_oke.errors import KitError
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.operations.refreshing import reading_first
from llmd_oke.planning import Plan


def up(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    allow_replace: options.AllowReplace = False,
    benchmark: Annotated[
        bool, typer.Option(help="Show the smoke benchmark's result, or run it if it is the client's.")
    ] = True,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Check the stack file, preview, update the stack for real with the Pulumi CLI, and show its smoke benchmark.

    A preview that would replace or delete a cluster, a network or a pool is refused, with the input that causes it.
    """
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    for advice in plan.advice:
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    if not benchmark:
        _refuse_unevaluated(plan)
    pulumi = reading_first(pulumi_cli(project, stack, aside=as_json), plan)
    account = Account(pulumi, yes=yes) if as_json else None
    with way(project, stack, through_tunnel):
        status = updates.update(
            pulumi,
            plan,
            console.progress(),
            typer.confirm,
            yes=yes,
            allow_replace=allow_replace,
            client=recover.client_for(project, stack),
        )
        found = Benchmarked()
        if benchmark:
            found = smoke.after_update(pulumi, plan, failed=bool(status), as_json=as_json)
    _end(status, ended("up", status) or found.failure, account, found)


def _refuse_unevaluated(plan: Plan) -> None:
    """Without its benchmark, a client's update would evaluate nothing.

    Raises:
        KitError: something changes answers, and this command is what evaluates them.
    """
    change = next((change for model in plan.models for change in model.answer_changes), None)
    if change and plan.smoke.where == "client":
        raise KitError(
            f"{change.what} changes answers ({change.path}), and with smoke.where: client this command evaluates them.",
            "Leave --no-benchmark out, or let the cluster evaluate (smoke.where: cluster).",
        )


def destroy(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    unprotect: options.Unprotect = False,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Destroy a stack for real. Where clusters or pools are protected it is refused without --unprotect."""
    pulumi = pulumi_cli(project, stack, aside=as_json)
    account = Account(pulumi, yes=yes) if as_json else None
    with way(project, stack, through_tunnel):
        client = recover.client_for(project, stack)
        status = updates.destroy(pulumi, console.progress(), yes=yes, unprotect=unprotect, client=client)
    _end(status, ended("destroy", status), account, Benchmarked())


nodes = typer.Typer(no_args_is_help=True, help="Nodes that a stack launches by itself.")


@nodes.callback()
def _nodes() -> None:
    """Nodes that a stack launches by itself."""


@nodes.command()
def replace(
    stack: options.Stack,
    names: Annotated[list[str] | None, typer.Argument(help="Nodes, such as mi300x-3.", show_default=False)] = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 1,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    through_tunnel: tunnel.OfCommand = False,
) -> None:
    """Launch nodes of `compute-cluster-instances` anew; without names those that the stack file has changed since.

    One after the other; interrupted, the next run goes on with those that are left.
    """
    pulumi = pulumi_cli(project, stack)
    with way(project, stack, through_tunnel):
        chosen = tuple(names or ())
        status = updates.replace_nodes(pulumi, console.progress(), typer.confirm, chosen, at_once=at_once, yes=yes)
    if status:
        raise typer.Exit(status)


def way(project: Path, stack: str, through_tunnel: bool) -> AbstractContextManager[None]:
    """The way to the API server: as the stack has it, or through a tunnel of this command's own."""
    if through_tunnel:
        return tunnel.during(project, stack, console.progress())
    tunnel.remind(project, stack, console.progress())
    return nullcontext()


def _end(status: int, error: KitError | None, account: Account | None, found: Benchmarked) -> None:
    """Prints the account where one is wanted, and ends with the exit code that belongs to it."""
    if account:
        typer.echo(json.dumps(account.document(found, error), indent=2))
    if error:
        raise typer.Exit(status or 1)
