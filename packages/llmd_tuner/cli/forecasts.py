"""What the tuner tells `llmd-oke check`: whether forecasts of a stack go by servers like its own."""

from collections.abc import Mapping, Sequence

from llmd_oke.planning import Plan
from llmd_oke.planning.conditions import planned_conditions
from llmd_pods.errors import Problem

from llmd_tuner.figures import latency_figures, project_problems


def differences(plan: Plan) -> Mapping[str, Sequence[str]]:
    """By model, how its servers differ from those that the kit's latency figures were measured of."""
    by_model: dict[str, list[str]] = {}
    for model in plan.models:
        figures = latency_figures(model.model.name, plan.pools[0].shape.gpu.product) if plan.pools else None
        if figures is not None:
            by_model[model.name] = figures.differences(planned_conditions(plan, model))
    return {name: texts for name, texts in by_model.items() if texts}


def problems() -> Sequence[Problem]:
    """All that is wrong with the latency figures of the open project's own `values/`."""
    return project_problems()
