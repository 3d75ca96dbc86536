"""Placement, memory, rollout and advice that follow from a stack's config: a Plan, or all that is wrong. Pure
Python.
"""

from llmd_oke.planning.model_plan import (
    Memory,
    ModelPlan,
    PlacedNode,
    PlacedServer,
    PlannedPool,
    RolePlan,
    Rollout,
    UnitPlan,
)
from llmd_oke.planning.plan import Advice, Plan, advice_of_update, limits_sentence, merge_advice
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
    "advice_of_update",
    "limits_sentence",
    "merge_advice",
    "plan",
    "plan_object",
    "plan_stack_file",
]
