"""From a plan to the acceptance of a pool's nodes, for updates and for the command alike."""

from dataclasses import asdict
from typing import cast

import pulumi

from llmd_oke.planning.plan import PoolAcceptance
from llmd_oke.serving.acceptance import AcceptedPoolArgs, NodeLimitsArgs


def accepted_pool(accepted: PoolAcceptance, pool_id: pulumi.Input[str]) -> AcceptedPoolArgs:
    """The arguments of a pool."""
    pool = accepted.pool
    return {
        "name": pool.name,
        "shape": pool.shape,
        "pool_id": pool_id,
        "nodes": pool.size,
        "needed": accepted.needed,
        "on_failure": accepted.on_failure,
        "checks": list(accepted.checks),
        "limits": cast("NodeLimitsArgs", asdict(accepted.limits)),
        "limit_s": accepted.limit_s,
        "disk_folder": accepted.disk_folder,
        "node_taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in pool.taints],
    }
