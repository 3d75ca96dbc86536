"""What others have installed in a cluster before a stack comes: definitions without the operators behind them."""

from typing import Any

from llmd_oke.catalogue.artifacts import crd_manifests
from llmd_oke.catalogue.scaling import scaling
from llmd_oke.planning import Plan


def is_scaled(plan: Plan) -> bool:
    """Whether the stack has ScaledObjects."""
    return any(model.scaling is not None for model in plan.models)


def foreign_definitions(plan: Plan) -> list[dict[str, Any]]:
    """The definitions that a stack counts on and doesn't make: KEDA's, where something is scaled.

    Raises:
        KitError: a file of them can't be had.
    """
    return crd_manifests(scaling().definitions) if is_scaled(plan) else []
