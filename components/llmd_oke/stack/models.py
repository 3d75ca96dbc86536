"""The models of a plan: units, routers and endpoints."""

import pulumi

from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
from llmd_oke.serving.model_cache import ModelCache
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router
from llmd_oke.stack.order import after
from llmd_oke.stack.storage import model_cache_mount


def declare_model(
    plan: Plan,
    model: ModelPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    crds: Crds | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Output[str]:
    """Units, routers and endpoint are declared side by side: each waits for its own pods only."""
    routed = model.router.mode == "standalone"
    inside = after(opts, namespace)
    for unit in model.units:
        _unit(plan, model, unit, namespace, cache, inside if cache is None else after(inside, cache))
        if routed:
            _router(plan, model, unit, after(opts, namespace, *([crds] if crds else [])))
    args: ModelEndpointArgs = {
        "namespace": plan.namespace,
        "model": model.name,
        "routed": routed,
        "ready_timeout_s": max(role.create_timeout_s for role in model.units[0].roles),
    }
    return ModelEndpoint(f"{model.name}-endpoint", args, inside).url


def _router(plan: Plan, model: ModelPlan, unit: UnitPlan, opts: pulumi.ResourceOptions) -> Router:
    return Router(
        f"{unit.name}-router",
        {
            "release": plan.release.name,
            "namespace": plan.namespace,
            "model": model.name,
            "unit": unit.name,
            "disaggregated": model.topology.disaggregated,
            "non_cached_tokens": model.router.non_cached_tokens,
        },
        opts,
    )


def _unit(
    plan: Plan,
    model: ModelPlan,
    unit: UnitPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Resource:
    common: UnitArgs = {
        "release": plan.release.name,
        "model": model.model.name,
        "shape": plan.pools[0].shape.name,
        "namespace": plan.namespace,
        "service_account": namespace.service_account,
        "model_label": model.name,
        "rdma": plan.rdma,
        "priority_class_prefix": plan.namespace,
        "engine": engine_args(model),
    }
    if cache is not None:
        common["model_cache"] = model_cache_mount(plan, model, cache)
    prefill, decode, aggregated = unit.role("prefill"), unit.role("decode"), unit.role("aggregated")
    if prefill and decode:
        return PrefillDecodeUnit(unit.name, {**common, "prefill": _servers(prefill), "decode": _servers(decode)}, opts)
    assert aggregated is not None  # noqa: S101 - planning lets no other combination through
    return AggregatedUnit(unit.name, {**common, "servers": _servers(aggregated)}, opts)


def _servers(role: RolePlan) -> ServersArgs:
    return {
        "replicas": role.replicas,
        "tensor_parallel_size": role.tensor_parallel_size,
        "max_surge": role.rollout.max_surge,
        "max_unavailable": role.rollout.max_unavailable,
        "create_timeout_s": role.create_timeout_s,
        "update_timeout_s": role.update_timeout_s,
    }


def engine_args(model: ModelPlan) -> EngineArgs:
    """The vLLM settings of a model's servers."""
    engine = model.engine
    return {
        "max_model_len": model.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "block_size": engine.block_size,
        "extra_args": list(engine.extra_args),
        "env": dict(engine.env),
    }
