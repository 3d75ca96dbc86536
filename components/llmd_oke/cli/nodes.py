"""`llmd-oke nodes`: replacement of a stack's GPU nodes, and other sizes of its pools."""

import sys
from contextlib import nullcontext
from typing import Annotated

import typer
from llmd_base.errors import KitError

from llmd_oke import planning
from llmd_oke.cli import console, options, recover, tunnel
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.operations.draining import Drain, drain_limit_s
from llmd_oke.operations.kubeconfig import cluster_client, cluster_kubeconfig
from llmd_oke.operations.nodes import ReplaceOptions, replace_nodes, scale_pool
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.planning import Plan

DRAIN_LIMIT_S = drain_limit_s()


app = typer.Typer(no_args_is_help=True, help="GPU nodes of a stack: another size, or launched anew.")


@app.command()
def replace(
    stack: options.Stack,
    names: Annotated[list[str] | None, typer.Argument(help="Nodes, such as mi300x-3.", show_default=False)] = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many at a time.")] = 1,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    drained: Annotated[
        bool, typer.Option("--drain/--no-drain", help="Cordon each node and evict its pods before it ends.")
    ] = True,
    drain_limit: Annotated[
        float,
        options.time_option(about="How long a node is drained", least_s=0, most_s=86_400, default_s=DRAIN_LIMIT_S),
    ] = DRAIN_LIMIT_S,
    force: Annotated[
        bool, typer.Option("--force", help="What disruption budgets keep on a node after --drain-limit ends with it.")
    ] = False,
    through_tunnel: tunnel.OfCommand = False,
    rehearse: options.Rehearse = False,
) -> None:
    """Replace GPU nodes one after the other, in every launch mode.

    Without names, replaces the nodes whose settings in the stack file have changed; in OKE's node pools, those with
    another version of Kubernetes or another image than their pool. If a node can't be drained in time, it is
    uncordoned, and the command ends. After an interruption the next run continues with the remaining nodes.
    """
    if rehearse:
        limit_s = drain_limit if drained else None
        rehearsals().replace_nodes(
            project, stack, names or (), console.progress(), at_once=at_once, drain_limit_s=limit_s, force=force
        )
        return
    plan = planning.plan_stack_file(project, stack)
    pulumi = pulumi_cli(project, stack)
    with (
        tunnel.api_server_access(project, stack, through_tunnel),
        cluster_kubeconfig(pulumi, plan) if drained else nullcontext(),
    ):
        drain = _drain(plan, drain_limit, force=force, asks=not yes) if drained else None
        how = ReplaceOptions(at_once, drain, recover.client_for(project, stack))
        status = replace_nodes(pulumi, console.progress(), typer.confirm, tuple(names or ()), how, yes=yes)
    if status:
        raise typer.Exit(status)


def _drain(plan: Plan, limit_s: float, *, force: bool, asks: bool) -> Drain | None:
    """Return the drain of nodes. None if the API server can't be reached and the user agrees to end nodes without
    draining.

    Raises:
        KitError: the API server can't be reached, and the user can't be asked or doesn't agree.
    """
    try:
        drain = Drain(cluster_client(plan.kubeconfig_context), console.progress(), limit_s, force=force)
        drain.require_cluster()
    except KitError as error:
        console.show_error(error)
        if asks and sys.stdin.isatty() and typer.confirm("End nodes with all that runs on them, without draining?"):
            return None
        remedy = "--tunnel, or KUBECONFIG, leads to it; --no-drain ends nodes with all that runs on them."
        raise KitError("Nodes can't be drained.", remedy) from error
    return drain


@app.command()
def scale(
    stack: options.Stack,
    pool: Annotated[str, typer.Argument(help="Pool of GPU nodes, such as mi300x.", show_default=False)],
    size: Annotated[int, typer.Argument(min=0, help="Number of nodes; 0 gives all of them back.", show_default=False)],
    project: options.Project = options.HERE,
    yes: options.Yes = False,
) -> None:
    """Change the size of a pool of GPU nodes without an update; with 0 the pool costs nothing and can't be used.

    The next `up` restores the size in the stack file, except for pools that the cluster autoscaler sizes.
    """
    plan = planning.plan_stack_file(project, stack)
    known = {item.name: item for item in plan.pools}
    if pool not in known:
        raise KitError(f"The stack has no pool {pool} of GPU nodes.", f"One of: {', '.join(known)}.")
    console.confirm(f"What runs on {pool} ends. Scale it to {size} nodes?", yes=yes)
    client = recover.client_for(project, stack)()
    scale_pool(pulumi_cli(project, stack), console.progress(), client, known[pool], size)
