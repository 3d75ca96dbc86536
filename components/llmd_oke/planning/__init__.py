"""What a stack's config means: placement, memory, rollout, advice. Pure Python; gives a Plan or all that is wrong."""

from llmd_oke.planning.plan import (
    Advice,
    Memory,
    ModelPlan,
    PlacedNode,
    PlacedServer,
    Plan,
    PlannedPool,
    RolePlan,
    Rollout,
    UnitPlan,
    merge_advice,
)
from llmd_oke.planning.planner import plan, plan_object, plan_stack_file

__all__ = [
    "Advice",
    "Memory",
    "ModelPlan",
    "PlacedNode",
    "PlacedServer",
    "Plan",
    "PlannedPool",
    "RolePlan",
    "Rollout",
    "UnitPlan",
    "merge_advice",
    "plan",
    "plan_object",
    "plan_stack_file",
]
