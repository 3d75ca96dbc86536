"""Arguments for the acceptance test of a pool's nodes, which updates and the command `accept` share."""

import pulumi

from llmd_oke.planning.plan import PoolAcceptance
from llmd_oke.program.arguments import arguments
from llmd_oke.serving.acceptance import AcceptedPoolArgs


def accepted_pool(accepted: PoolAcceptance, pool_id: pulumi.Input[str]) -> AcceptedPoolArgs:
    """Return the arguments of the acceptance test of a pool's nodes, from its plan and the pool's OCID."""
    pool = accepted.pool
    return arguments(AcceptedPoolArgs, accepted, pool, pool_id=pool_id, nodes=pool.size, node_taints=pool.taints)
