"""From a plan to components: the one place that turns config into component arguments."""

import pulumi
import pulumi_kubernetes as k8s

from llmd_oke import config, planning
from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router


def program() -> None:
    """The Pulumi program: plans the stack's config, declares all of it and exports the outputs.

    Raises:
        Refused: the config can't be deployed.
    """
    settings = pulumi.Config("llmd-oke")
    plan = planning.plan(config.validate(settings.require_object("stack")))
    for advice in plan.advice:
        pulumi.log.info(f"{advice.path}: {advice.text}")
    endpoints = deploy(plan, settings.get_secret("huggingFaceToken"))
    pulumi.export("namespace", plan.namespace)
    pulumi.export("endpoints", endpoints)
    pulumi.export("topologies", {model.name: str(model.topology) for model in plan.models})


def deploy(plan: Plan, hugging_face_token: pulumi.Input[str] | None = None) -> dict[str, pulumi.Output[str]]:
    """Declares everything of a plan; the answer is each model's URL inside the cluster."""
    opts = pulumi.ResourceOptions(provider=cluster_provider(plan, "cluster"))
    crds = _crds(plan)
    namespace = ServingNamespace("serving", _namespace(plan, hugging_face_token), opts)
    return {model.name: _model(plan, model, namespace, crds, opts) for model in plan.models}


def cluster_provider(plan: Plan, name: str, *, upsert: bool = False) -> k8s.Provider:
    """The provider of the plan's cluster.

    Its identity is the cluster's, so that a changed kubeconfig (a tunnel, CI) replaces nothing.
    """
    cluster = plan.cluster
    return k8s.Provider(
        name,
        cluster_identifier=cluster.identifier,
        context=cluster.kubeconfig_context,
        upsert_existing_objects=upsert or None,
    )


def _crds(plan: Plan) -> Crds:
    """Definitions outlive the stack, so that they are taken over where they are there already."""
    provider = cluster_provider(plan, "definitions", upsert=True)
    return Crds("crds", {"release": plan.release.name}, pulumi.ResourceOptions(provider=provider))


def _namespace(plan: Plan, hugging_face_token: pulumi.Input[str] | None) -> ServingNamespaceArgs:
    sizes = {role.tensor_parallel_size for model in plan.models for unit in model.units for role in unit.roles}
    args: ServingNamespaceArgs = {"namespace": plan.namespace, "tensor_parallel_sizes": sorted(sizes)}
    if hugging_face_token is not None:
        args["hugging_face_token"] = hugging_face_token
    return args


def _model(
    plan: Plan, model: ModelPlan, namespace: ServingNamespace, crds: Crds, opts: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    """Units, routers and endpoint are declared side by side: each waits for its own pods only."""
    routed = model.router.mode == "standalone"
    inside = _after(opts, namespace)
    for unit in model.units:
        _unit(plan, model, unit, namespace, inside)
        if routed:
            _router(plan, model, unit, _after(opts, namespace, crds))
    args: ModelEndpointArgs = {
        "namespace": plan.namespace,
        "model": model.name,
        "routed": routed,
        "ready_timeout_s": max(role.create_timeout_s for role in model.units[0].roles),
    }
    return ModelEndpoint(f"{model.name}-endpoint", args, inside).url


def _after(opts: pulumi.ResourceOptions, *needed: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(needed)))


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
    plan: Plan, model: ModelPlan, unit: UnitPlan, namespace: ServingNamespace, opts: pulumi.ResourceOptions
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
