"""From a plan to what scales its servers."""

import pulumi

from llmd_oke.catalogue.scaling import scaling
from llmd_oke.operators.definitions import when_established
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.serving.autoscaling import ModelScaling, ModelScalingArgs, ScaledServersArgs
from llmd_oke.stack.access import ClusterAccess


def keda_namespace(plan: Plan, access: ClusterAccess, after: pulumi.Resource) -> pulumi.Output[str] | None:
    """The namespace of the models once the cluster serves KEDA's definitions; None where nothing is scaled.

    Raises:
        KitError: (in the output) they aren't there in time; says how KEDA is installed.
    """
    if all(model.scaling is None for model in plan.models):
        return None
    facts = scaling()
    served = when_established(
        facts.names,
        facts.established_timeout_s,
        access.kubeconfig,
        access.context,
        after=after,
        remedy=facts.remedy,
    )
    return served.apply(lambda _: plan.namespace)


def declare_scaling(
    model: ModelPlan, unit: UnitPlan, name: str, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> ModelScaling | None:
    """What scales the servers of a unit, whose objects have that name; None where their number stays."""
    scaled = {role.role: _servers(role) for role in unit.roles if role.scaling}
    if model.scaling is None or not scaled:
        return None
    args: ModelScalingArgs = {"namespace": namespace, "unit": name, "servers": dict(scaled)}
    if model.scaling.prometheus is not None:
        args["prometheus"] = model.scaling.prometheus
    if model.scaling.scale_up_window_s is not None:
        args["scale_up_window_s"] = model.scaling.scale_up_window_s
    if model.scaling.scale_down_window_s is not None:
        args["scale_down_window_s"] = model.scaling.scale_down_window_s
    return ModelScaling(f"{name}-scaling", args, opts)


def _servers(role: RolePlan) -> ScaledServersArgs:
    assert role.scaling  # noqa: S101 - only scaled roles come here
    limits: ScaledServersArgs = {
        "min_replicas": role.scaling.min_replicas,
        "max_replicas": role.scaling.max_replicas,
    }
    thresholds = role.scaling.thresholds()
    for name in ("requests", "prompt_tokens_per_s", "kv_cache_usage"):
        if name in thresholds:
            limits[name] = thresholds[name]
    return limits
