"""Planning: turns a stack's config into a Plan (placement, memory, rollout, advice), or reports all problems. Pure
Python without I/O to OCI or Kubernetes.
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
