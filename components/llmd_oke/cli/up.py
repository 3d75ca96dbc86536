"""`llmd-oke up` and `llmd-oke destroy`: the real Pulumi CLI, with a look at what it would do before it does it."""

import json
import sys
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
from llmd_oke.operations.nodes import scale_command, scale_pool, unready_pools
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli
from llmd_oke.operations.refreshing import reading_first
from llmd_oke.planning import Plan, merge_advice
from llmd_oke.planning.container_images import chart_archives


def up(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    allow_replace: options.AllowReplace = False,
    benchmark: Annotated[
        bool, typer.Option(help="Show the smoke benchmark's result, or run it if it is the client's.")
    ] = True,
    bound: Annotated[
        bool, typer.Option("--plan/--no-plan", help="Hold the update to the preview that was judged (a Pulumi plan).")
    ] = True,
    through_tunnel: tunnel.OfCommand = False,
    as_json: options.Json = False,
) -> None:
    """Check the stack file, preview, update the stack for real with the Pulumi CLI, and show its smoke benchmark.

    A preview that would replace or delete a cluster, a network or a pool is refused, with the input that causes it.
    """
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    for advice in merge_advice(plan.advice):
        console.errors().print(f"advice {advice.path}: {advice.text}", markup=False)
    if not benchmark:
        _refuse_unevaluated(plan)
    if charts := chart_archives(plan):
        from llmd_oke.operations.preflight_registries import refuse_other_archives  # noqa: PLC0415 - asks over HTTP

        refuse_other_archives(charts, console.progress())
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
            bound=bound,
        )
        found = Benchmarked()
        if benchmark:
            found = smoke.after_update(pulumi, plan, failed=bool(status), as_json=as_json)
        remedy = _offer_to_scale(pulumi, plan, project, asks=not (yes or as_json)) if status else ""
    _end(status, ended("up", status, remedy or "Standard error says why.") or found.failure, account, found)


def _offer_to_scale(pulumi: PulumiCli, plan: Plan, project: Path, *, asks: bool) -> str:
    """After an update that failed: what the nodes of pools cost whose gate nobody has passed, and the commands that
    give them back. On a terminal it asks, and does it. The answer is the remedy, empty where there are no such pools.
    """
    try:
        pools = unready_pools(pulumi.resources(), plan)
    except KitError:
        return ""
    commands: list[str] = []
    for pool in pools:
        cost = f"{pool.name}: nobody has passed its gate, and its {pool.size} nodes cost"
        told = f"{cost} {pool.price_usd_per_hour:,.0f} US dollars an hour (list price) as long as they stay"
        console.errors().print(told, markup=False, soft_wrap=True)
        if asks and sys.stdin.isatty() and typer.confirm(f"Scale {pool.name} to zero now?"):
            scale_pool(pulumi, console.progress(), recover.client_for(project, pulumi.stack)(), pool, 0)
        else:
            commands.append(scale_command(pool.name, pulumi.stack))
            console.errors().print(f"to give them back: {commands[-1]}", markup=False, soft_wrap=True)
    return f"Standard error says why. To stop paying for nodes meanwhile: {'; '.join(commands)}" if commands else ""


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
