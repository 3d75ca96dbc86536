"""`llmd-oke adopt`: a stack file for a cluster that oci-hpc-oke made, and for a model that llm-d's guide deployed."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError
from llmd_bench.deployment import parse_short_form

from llmd_oke import catalogue
from llmd_oke.cli import console, init, options
from llmd_oke.cli.first_answers import MOST_GPUS, ClusterChoice, OciAccess, PlaceOptions, ServersOptions, first_answers
from llmd_oke.cli.options import with_option_groups
from llmd_oke.config import StackConfig
from llmd_oke.operations.first_stack import Adopted, FirstStack, Target
from llmd_oke.operations.guide_deployments import READ, GuideDeployment, catalogue_model, read_deployments
from llmd_oke.operations.terraform_states import TerraformCluster, read_cluster
from llmd_oke.values import require_project

USUAL_NAMESPACE = str(StackConfig.model_fields["namespace"].default)
OTHER_NAMESPACE = "llmd-oke"


@with_option_groups
def adopt(
    state: Annotated[
        Path,
        typer.Argument(
            help="State of oci-hpc-oke: terraform.tfstate, or the output of `terraform show -json`.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ],
    stack: options.Stack,
    servers: ServersOptions,
    pool: Annotated[str | None, typer.Option("--pool", help="Pool to serve on; the largest if left out.")] = None,
    objects: Annotated[
        Path | None,
        typer.Option("--objects", help=f"What the cluster serves by llm-d's guide: output of `{READ}`.", exists=True),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a stack file that is there.")] = False,
    project: options.Project = options.HERE,
    as_json: options.Json = False,
) -> None:
    """Write a stack file for a cluster that oci-hpc-oke made, so that a stack serves on it as it is.

    Identifier, pool, virtual functions and addresses of the API endpoint come from Terraform's state. The stack creates
    and changes nothing of cluster, nodes and network: these stay Terraform's. With --objects the stack gets the model
    and the servers that llm-d's guide deployed, in a namespace of its own beside them, and the steps by which clients
    change over are shown.
    """
    require_project(project)
    made = read_cluster(state)
    nodes = made.pool(pool)
    guide = _chosen(read_deployments(objects), servers) if objects else None
    own = _servers(servers, guide, nodes.shape, nodes.size)
    where = PlaceOptions(target=Target.OCI, cluster=ClusterChoice.EXISTING, cluster_id=made.identifier)
    access = OciAccess(None, None)
    answers = first_answers(where, own, stack, access, asks=False)
    namespace = OTHER_NAMESPACE if guide and guide.namespace == USUAL_NAMESPACE else None
    adopted = Adopted(nodes.name, nodes.size, made.has_virtual_functions, made.control_plane_cidrs, namespace)
    first = replace(answers.stack, adopted=adopted, nodes=nodes.size, purpose=f", pool {nodes.name} of {made.name}")
    written = init.write(replace(answers, stack=first), access, project, force=force, as_json=as_json)
    if not as_json:
        _show(made, written, guide)


def _chosen(found: list[GuideDeployment], servers: ServersOptions) -> GuideDeployment:
    """Return the guide's deployment to take over: the only one, or the one of `--model`.

    Raises:
        KitError: there are several, or none of that model.
    """
    fitting = [item for item in found if servers.model is None or catalogue_model(item.model) == servers.model]
    if len(fitting) != 1:
        names = ", ".join(f"{item.model} in {item.namespace}" for item in found)
        raise KitError(f"The guide serves {names}.", "--model says which of them the stack is to serve.")
    return fitting[0]


def _servers(servers: ServersOptions, guide: GuideDeployment | None, shape: str, nodes: int) -> ServersOptions:
    """Return the options with what the guide serves, and with all GPUs of the pool where nothing says how many."""
    if guide is not None:
        servers = replace(
            servers,
            model=servers.model or catalogue_model(guide.model),
            topology=servers.topology or (None if servers.load or servers.gpus else guide.topology),
        )
    known = catalogue.shape(shape)
    if known and not (servers.topology or servers.load or servers.gpus):
        servers = replace(servers, gpus=min(nodes * known.gpus, MOST_GPUS))
    return replace(servers, shape=shape)


def _show(made: TerraformCluster, written: FirstStack, guide: GuideDeployment | None) -> None:
    """Print what stays Terraform's and, with a guide's deployment, the steps of the change-over."""
    others = f"; not used: {', '.join(made.others)}" if made.others else ""
    console.show_line(f"stays Terraform's: cluster {made.name}, network and pools{others}")
    if not made.control_plane_cidrs:
        console.show_line("cluster.controlPlaneCidrs is open: the state doesn't have the API endpoint's subnet")
    if guide is None or written.adopted is None:
        return
    known = catalogue.shape(written.shape)
    free = (known.gpus if known else 0) * written.adopted.nodes - guide.gpus
    roles = parse_short_form(written.topology).values()
    wanted = written.copies * sum(
        role["replicas"] * role["tensorParallelSize"] * role.get("dataParallelSize", 1) for role in roles
    )
    for number, step in enumerate(guide.steps(written.name, free, wanted), 1):
        console.show_line(f"{number}. {step}")
