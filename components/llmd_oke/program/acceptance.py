"""From a plan to the acceptance of a pool's nodes, for updates and for the command alike."""

import pulumi

from llmd_oke.planning.plan import PoolAcceptance
from llmd_oke.serving.acceptance import AcceptedPoolArgs, NodeLimitsArgs


def accepted_pool(accepted: PoolAcceptance, pool_id: pulumi.Input[str]) -> AcceptedPoolArgs:
    """The arguments of a pool."""
    pool = accepted.pool
    limits: NodeLimitsArgs = {
        "gpus": accepted.limits.gpus,
        "virtual_functions": accepted.limits.virtual_functions,
        "gid_index": accepted.limits.gid_index,
        "mtu_bytes": accepted.limits.mtu_bytes,
        "link_gb_per_s": accepted.limits.link_gb_per_s,
        "all_reduce_gb_per_s": accepted.limits.all_reduce_gb_per_s,
        "all_reduce_alone_gb_per_s": accepted.limits.all_reduce_alone_gb_per_s,
        "least_carried_share": accepted.limits.least_carried_share,
    }
    return {
        "name": pool.name,
        "shape": pool.shape,
        "pool_id": pool_id,
        "nodes": pool.size,
        "needed": accepted.needed,
        "on_failure": accepted.on_failure,
        "checks": list(accepted.checks),
        "limits": limits,
        "limit_s": accepted.limit_s,
        "node_taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in pool.taints],
    }
