"""Whether an operation has to read first what OCI has: where the stack's state is known to be wrong."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llmd_oke.catalogue.operators import cluster_autoscaler
from llmd_oke.config import CreateCluster
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan
from llmd_oke.planning.node_scaling import autoscaled_pools

Resource = Mapping[str, Any]
"""A resource of a stack's state, as `pulumi stack export` tells it."""

ADD_ON = "oci:ContainerEngine/addon:Addon"

_TAKEN_BACK = (ADD_ON, "oci:ContainerEngine/cluster:Cluster", "oci:ContainerEngine/nodePool:NodePool")
"""What OCI's plug-in deletes again where its creation failed (terraform-provider-oci, `Create` of these resources)."""


def reading_first(pulumi: PulumiCli, plan: Plan) -> PulumiCli:
    """The CLI, with a refresh where the state is wrong: the cluster autoscaler changes pools, or did until this update,
    so that a pool that goes back to a fixed size could look as if it had it already; or something is gone again whose
    creation failed.

    Raises:
        KitError: the stack's state can't be read.
    """
    return replace(pulumi, refresh=bool(autoscaled_pools(plan.config)) or _is_wrong(pulumi, plan))


def is_taken_back(resource: Resource) -> bool:
    """Whether OCI may have no such thing any longer: its creation failed, after which the plug-in deletes it.

    The state has its id all the same, so that each update would fail, for want of something to update. One that failed
    later is there still; the next update goes on with it, and a refresh would forget that there was something to do.
    """
    state: Mapping[str, Any] = resource.get("outputs") or {}
    is_unwell = bool(resource.get("initErrors")) and state.get("state") not in _THERE
    return resource["type"] in _TAKEN_BACK and is_unwell


_THERE = ("ACTIVE", "NEEDS_ATTENTION", "UPDATING")
"""States that the state can have of something whose creation went well (OCI API, lifecycle states)."""


def _is_wrong(pulumi: PulumiCli, plan: Plan) -> bool:
    if not isinstance(plan.cluster, CreateCluster) or plan.layer == "serving":
        return False
    resources = pulumi.resources()
    return _has_autoscaler(resources) or any(is_taken_back(resource) for resource in resources)


def _has_autoscaler(resources: Iterable[Resource]) -> bool:
    name = cluster_autoscaler().name
    return any(resource["type"] == ADD_ON and resource["inputs"]["addonName"] == name for resource in resources)
