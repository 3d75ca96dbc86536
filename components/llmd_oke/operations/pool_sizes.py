"""Whether an update has to read first how many nodes the pools of a stack have."""

from dataclasses import replace
from typing import Any

from llmd_oke.catalogue.operators import cluster_autoscaler
from llmd_oke.config import CreateCluster
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan
from llmd_oke.planning.node_scaling import autoscaled_pools

ADD_ON = "oci:ContainerEngine/addon:Addon"


def reading_sizes(pulumi: PulumiCli, plan: Plan) -> PulumiCli:
    """The CLI, with a refresh where the cluster autoscaler changes pools, or did until this update: the state's sizes
    are old then, and a pool that goes back to a fixed size could look as if it had it already.

    Raises:
        KitError: the stack's state can't be read.
    """
    return replace(pulumi, refresh=bool(autoscaled_pools(plan.config)) or _was_autoscaled(pulumi, plan))


def _was_autoscaled(pulumi: PulumiCli, plan: Plan) -> bool:
    if not isinstance(plan.cluster, CreateCluster) or plan.layer == "serving":
        return False
    return any(_is_autoscaler(resource) for resource in pulumi.resources())


def _is_autoscaler(resource: dict[str, Any]) -> bool:
    return resource.get("type") == ADD_ON and resource["inputs"]["addonName"] == cluster_autoscaler().name
