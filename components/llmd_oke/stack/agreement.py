"""Whether a serving stack's pods tolerate the GPU nodes that another stack made."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pulumi

from llmd_oke.config.node_pools import Taint
from llmd_oke.errors import Problem, Refused
from llmd_oke.planning import Plan

PoolOutputs = Mapping[str, Mapping[str, Any]]
"""What the stack of the cluster layer says of its GPU pools, by their names."""

REPELLING = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep pods from a node; `PreferNoSchedule` only ranks it last."""


def taint_outputs(taints: Sequence[Taint]) -> list[dict[str, str]]:
    """The taints of a pool as the stack's outputs have them."""
    return [taint.model_dump() for taint in taints]


def agreed(plan: Plan, cluster_id: str, pools: PoolOutputs | None) -> str:
    """The cluster's OCID, once the serving stack agrees with the stack that made the cluster.

    Raises:
        RunError: pods would be kept from nodes by taints that the serving stack doesn't know.
    """
    if problems := list(unknown_taints(plan, pools or {})):
        raise pulumi.RunError(str(Refused(problems)))
    return cluster_id


def unknown_taints(plan: Plan, pools: PoolOutputs) -> Iterator[Problem]:
    """Taints of pools of the same name that keep pods away and that the serving stack doesn't say; its pods tolerate
    those of all its pools.
    """
    said = taint_outputs([taint for pool in plan.config.gpu_pools for taint in pool.taints])
    for i, pool in enumerate(plan.config.gpu_pools):
        made = [taint for taint in pools.get(pool.name, {}).get("taints", ()) if taint["effect"] in REPELLING]
        missing = [taint for taint in made if dict(taint) not in said]
        if missing:
            texts, own = _texts(missing), _texts(taint_outputs(pool.taints)) or None
            why = f"{plan.config.cluster_stack} gives the nodes {texts}, and pods that don't tolerate it find no node"
            yield Problem(f"gpuPools[{i}].taints", own, f"also {texts}, as the stack of the cluster has it", why)


def _texts(taints: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints)
