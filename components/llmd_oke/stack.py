"""From a plan to components: the one place that turns config into component arguments."""

from dataclasses import replace
from typing import Any

import pulumi

from llmd_oke import config, planning
from llmd_oke.config import CreateCluster
from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
from llmd_oke.serving.model_cache import ModelCache
from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router
from llmd_oke.stack_access import ClusterAccess, existing
from llmd_oke.stack_storage import declare_model_cache, model_cache_mount


def program() -> None:
    """The Pulumi program: plans the stack's config, declares all of it and exports the outputs.

    Raises:
        Refused: the config can't be deployed.
    """
    settings = pulumi.Config("llmd-oke")
    plan = planning.plan(config.validate(settings.require_object("stack")))
    for advice in plan.advice:
        pulumi.log.info(f"{advice.path}: {advice.text}")
    for name, value in deploy(plan, settings).items():
        pulumi.export(name, value)


def deploy(plan: Plan, settings: pulumi.Config) -> dict[str, Any]:
    """Declares what the stack's layer has of a plan; the answer is the stack's outputs.

    `settings` are the stack's keys beside the stack file's object: `huggingFaceToken` and `modelSourceUrl` (secrets),
    `apiServer`, the address of a created cluster's API server at the end of a tunnel, and `allowReplace`, true to take
    the protection of cluster, network and pools away, so that the update after this one may replace them.
    """
    outputs: dict[str, Any] = {}
    if isinstance(plan.cluster, CreateCluster):
        protected = plan.cluster.protect and not settings.get_bool("allowReplace")
        cluster = plan.cluster.model_copy(update={"protect": protected})
        access, outputs = _create(plan, cluster, settings.get("apiServer"))
    else:
        access = existing(plan)
    crds = _crds(plan, access) if plan.layer != "serving" else None
    if plan.layer == "cluster":
        return outputs
    return {**outputs, **_serve(plan, settings, access, crds)}


def _create(plan: Plan, cluster: CreateCluster, api_server: str | None) -> tuple[ClusterAccess, dict[str, Any]]:
    """OCI's packages are loaded only where a cluster is created."""
    from llmd_oke.stack_cluster import create_cluster  # noqa: PLC0415
    from llmd_oke.stack_operators import declare_operators  # noqa: PLC0415

    made = create_cluster(plan, cluster, api_server)
    access = ClusterAccess(
        identifier=made.oke.cluster_id,
        kubeconfig=made.oke.kubeconfig,
        created=made.oke.created,
        model_cache_handle=made.storage.volume_handle if made.storage else None,
    )
    gates = declare_operators(plan, made, access.options(access.provider("operators")))
    return replace(access, ready=(*made.nodes, *gates)), made.outputs(cluster.region)


def _serve(plan: Plan, settings: pulumi.Config, access: ClusterAccess, crds: Crds | None) -> dict[str, Any]:
    inside = _after(access.options(access.provider("cluster")), *access.ready)
    namespace = ServingNamespace("serving", _namespace(plan, settings.get_secret("huggingFaceToken")), inside)
    source_url = settings.get_secret("modelSourceUrl")
    cache = declare_model_cache(plan, namespace, source_url, inside, access.model_cache_handle)
    return {
        "namespace": plan.namespace,
        "endpoints": {model.name: _model(plan, model, namespace, cache, crds, inside) for model in plan.models},
        "topologies": {model.name: str(model.topology) for model in plan.models},
    }


def _crds(plan: Plan, access: ClusterAccess) -> Crds:
    """Definitions outlive the stack, so that they are taken over where they are there already."""
    provider = access.provider("definitions", upsert=True)
    opts = _after(pulumi.ResourceOptions(provider=provider), *access.ready)
    return Crds("crds", {"release": plan.release.name}, opts)


def _namespace(plan: Plan, hugging_face_token: pulumi.Input[str] | None) -> ServingNamespaceArgs:
    sizes = {role.tensor_parallel_size for model in plan.models for unit in model.units for role in unit.roles}
    args: ServingNamespaceArgs = {"namespace": plan.namespace, "tensor_parallel_sizes": sorted(sizes)}
    if hugging_face_token is not None:
        args["hugging_face_token"] = hugging_face_token
    return args


def _model(
    plan: Plan,
    model: ModelPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    crds: Crds | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Output[str]:
    """Units, routers and endpoint are declared side by side: each waits for its own pods only."""
    routed = model.router.mode == "standalone"
    inside = _after(opts, namespace)
    for unit in model.units:
        _unit(plan, model, unit, namespace, cache, inside if cache is None else _after(inside, cache))
        if routed:
            _router(plan, model, unit, _after(opts, namespace, *([crds] if crds else [])))
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
