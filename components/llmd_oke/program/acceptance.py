"""Arguments for the acceptance of a pool's nodes, which updates and the command `accept` share."""

import pulumi

from llmd_oke.planning.plan import PoolAcceptance
from llmd_oke.program.arguments import arguments
from llmd_oke.serving.acceptance import AcceptedPoolArgs


def accepted_pool(accepted: PoolAcceptance, pool_id: pulumi.Input[str]) -> AcceptedPoolArgs:
    """Return the acceptance arguments of a pool."""
    pool = accepted.pool
    return arguments(AcceptedPoolArgs, accepted, pool, pool_id=pool_id, nodes=pool.size, node_taints=pool.taints)
