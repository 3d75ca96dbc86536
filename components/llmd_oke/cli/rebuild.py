"""`llmd-oke rebuild`: a stack whose cluster or pools are gone, made anew from its stack file and its state."""

import subprocess
import sys
import time

from llmd_oke import planning
from llmd_oke.cli import console, options, recover, state, tunnel
from llmd_oke.cli import up as updating
from llmd_oke.cli.rehearsals import rehearsals
from llmd_oke.config import ExistingCluster, load
from llmd_oke.operations import rebuild as operation
from llmd_oke.operations import recovery
from llmd_oke.operations.backend import require_passphrase
from llmd_oke.operations.pulumi_cli import PulumiCli, pulumi_cli, run_to_end
from llmd_oke.operations.state_archives import secrets_provider
from llmd_oke.planning import Plan


def rebuild(
    stack: options.Stack,
    project: options.Project = options.HERE,
    yes: options.Yes = False,
    rehearse: options.Rehearse = False,
    through_tunnel: tunnel.OfCommand = False,
    archive: state.Archive = None,
) -> None:
    """Make a stack anew whose cluster, pools or other resources of OCI were deleted behind its back.

    OCI is asked for every resource of the state. What is gone, and every object of a lost cluster, is taken out of the
    state, without a request to the cluster; then the stack is updated as by `llmd-oke up`, which leaves the network,
    rights, file systems and addresses that are still there as they are, and ends with the benchmark. The minutes that
    it took are shown. Stacks that serve on another's cluster are rebuilt after it.
    """
    began_s = time.monotonic()
    config = load(project, stack)
    plan = planning.plan_stack_file(project, stack, nodes_pull=True)
    if rehearse:
        for line in rehearsals().forget_losses(project, stack, console.progress()):
            console.output().print(line, markup=False, soft_wrap=True)
        argv = [sys.executable, "-m", "llmd_oke", "rehearse", "--stack", stack, "--project", str(project)]
        status, _, _ = run_to_end(lambda: subprocess.Popen(argv, text=True))
        if status:
            raise console.ChildExit(status)
        _show_minutes(began_s)
        return
    pulumi, client, progress = pulumi_cli(project, stack), recover.client_for(project, stack), console.progress()
    require_passphrase(secrets_provider(pulumi.export()), updating.terminal(), new=False)
    recovery.recover(pulumi, progress, client)
    if created := config.created_cluster:
        losses = operation.find_losses(pulumi, client, created.compartment_id, progress)
    else:
        identifier = _cluster_of_others(pulumi, plan)
        losses = operation.find_lost_objects(pulumi, client, identifier, progress)
    if not losses:
        text = "OCI has everything that the stack's state has: nothing is to be rebuilt. A rebuild that was interrupted"
        console.output().print(f"{text} goes on by llmd-oke up --stack {stack}.", markup=False, soft_wrap=True)
        return
    for line in losses.lines():
        console.output().print(line, markup=False, soft_wrap=True)
    state.confirm("Rebuild it?", yes=yes)
    progress.step(f"the state of before: {state.save(pulumi, archive)[1]}")
    operation.forget_losses(pulumi, losses, progress)
    updating.up(stack, project, yes=True, through_tunnel=through_tunnel)
    _show_minutes(began_s)
    console.output().print(
        f"Load balancers and volumes that the lost cluster left: llmd-oke recover --stack {stack}",
        markup=False,
        soft_wrap=True,
    )


def _cluster_of_others(pulumi: PulumiCli, plan: Plan) -> str:
    """Return the OCID of a cluster that the stack doesn't create: from the stack file, or of its `clusterStack`."""
    if isinstance(plan.cluster, ExistingCluster):
        return plan.cluster.identifier
    return pulumi.output("cluster_id", plan.cluster_stack).strip()


def _show_minutes(began_s: float) -> None:
    console.output().print(f"rebuilt in {(time.monotonic() - began_s) / 60:.1f} minutes")
