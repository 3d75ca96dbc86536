"""The taints that a stack's GPU pools have beside those of their shapes."""

from llmd_oke.planning import Plan
from llmd_oke.serving.args import NodeTaintArgs


def node_taints(plan: Plan) -> list[NodeTaintArgs]:
    """Each taint of the stack file's GPU pools once; the pods of all models tolerate those of all pools."""
    written = [(taint.key, taint.value, taint.effect) for pool in plan.config.gpu_pools for taint in pool.taints]
    return [{"key": key, "value": value, "effect": effect} for key, value, effect in dict.fromkeys(written)]
