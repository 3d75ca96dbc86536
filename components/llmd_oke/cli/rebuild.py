"""`llmd-oke rebuild`: deployment of a stack whose cluster or pools were lost, from its stack file and its state."""

import json
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import typer

from llmd_oke import planning
from llmd_oke.cli import console, options, recover, state, tunnel
from llmd_oke.cli import up as updating
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.config import ExistingCluster, load
from llmd_oke.operations import rebuild as operation
from llmd_oke.operations import recovery
from llmd_oke.operations.backend import require_passphrase
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli, run_to_end
from llmd_oke.operations.rebuild import Losses
from llmd_oke.operations.state_archives import secrets_provider
from llmd_oke.planning import Plan


def rebuild(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    rehearse: options.Rehearse = False,
    through_tunnel: tunnel.OfCommand = False,
    archive: state.Archive = None,
    as_json: options.Json = False,
) -> None:
    """Deploy a stack again whose cluster, pools or other resources of OCI were deleted by others.

    OCI is asked for every resource of the state. What is gone, and every object of a lost cluster, is taken out of the
    state, without a request to the cluster; then the stack is updated as by `llmd-oke up`, which leaves the network,
    rights, file systems and addresses that are still there as they are, and ends with the benchmark. The minutes that
    it took are shown. Stacks that serve on another's cluster are rebuilt after it.
    """
    began_s = time.monotonic()
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    if rehearse:
        _rebuild_rehearsed(project, stack)
        _show_minutes(began_s)
        return
    pulumi = pulumi_cli(project, stack, aside=as_json)
    losses = _find_losses(pulumi, plan)
    for line in losses.lines():
        (console.tell if as_json else console.show_line)(line)
    result: dict[str, Any] = {"stack": stack, "losses": list(losses.lines())}
    if losses:
        console.confirm("Rebuild it?", yes=yes, as_json=as_json)
        saved = state.save(pulumi, archive)[1]
        console.progress().step(f"the state of before: {saved}")
        operation.forget_losses(pulumi, losses, console.progress())
        if not as_json:
            updating.up(stack, project, yes=True, through_tunnel=through_tunnel)
            _show_minutes(began_s)
            console.show_line(
                f"Load balancers and volumes that the lost cluster left: llmd-oke recover --stack {stack}"
            )
            return
        printed = StringIO()
        with redirect_stdout(printed), suppress(typer.Exit):  # the document says too whether it failed
            updating.up(stack, project, yes=True, through_tunnel=through_tunnel, as_json=True)
        update = json.loads(printed.getvalue())
        result |= {"archive": str(saved), "update": update, "minutes": _minutes(began_s)}
    elif not as_json:
        text = "OCI has everything that the stack's state has: nothing is to be rebuilt. A rebuild that was interrupted"
        console.show_line(f"{text} goes on by llmd-oke up --stack {stack}.")
        return
    console.show_json(result)
    raise typer.Exit(int("error" in result.get("update", {})))


def _find_losses(pulumi: PulumiCli, plan: Plan) -> Losses:
    """Settle what a killed engine had begun, and return what the stack has lost."""
    project, stack, progress = pulumi.project, pulumi.stack, console.progress()
    client = recover.client_for(project, stack)
    require_passphrase(secrets_provider(pulumi.export()), updating.terminal(), new=False)
    recovery.recover(pulumi, progress, client)
    if created := load(project, stack).created_cluster:
        return operation.find_losses(pulumi, client, created.compartment_id, progress)
    if isinstance(plan.cluster, ExistingCluster):
        identifier = plan.cluster.identifier
    else:
        identifier = pulumi.output("cluster_id", plan.cluster_stack).strip()
    return operation.find_lost_objects(pulumi, client, identifier, progress)


def _rebuild_rehearsed(project: Path, stack: str) -> None:
    """Rebuild a rehearsed stack, whose update is a further rehearsal.

    Raises:
        ChildExit: the rehearsal failed.
    """
    for line in rehearsals().forget_losses(project, stack, console.progress()):
        console.show_line(line)
    argv = [sys.executable, "-m", "llmd_oke", "rehearse", "--stack", stack, "--project", str(project)]
    status, _, _ = run_to_end(lambda: subprocess.Popen(argv, text=True))
    if status:
        raise console.ChildExit(status)


def _minutes(began_s: float) -> float:
    return round((time.monotonic() - began_s) / 60, 1)


def _show_minutes(began_s: float) -> None:
    console.output().print(f"rebuilt in {_minutes(began_s)} minutes")
