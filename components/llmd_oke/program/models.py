"""The models of a plan: their caches and images, units, routers and front doors, and what scales them."""

from collections.abc import Sequence

import pulumi

from llmd_oke.catalogue.serving import scaling
from llmd_oke.config.engine import engine_settings
from llmd_oke.objects import OverrideArgs, after
from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.planning.plan import ModelCachePlan
from llmd_oke.planning.pools import awaited_nodes
from llmd_oke.program.access import ClusterAccess
from llmd_oke.serving.args import (
    EngineArgs,
    GatewayPodsArgs,
    ModelCacheMountArgs,
    NodeTaintArgs,
    ServersArgs,
    TracingArgs,
    UnitArgs,
)
from llmd_oke.serving.front_door import FrontDoor, ModelEndpoint
from llmd_oke.serving.image_pull import ImagePull
from llmd_oke.serving.model_cache import ModelCache, ModelCacheArgs, mount
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.router import Router, RouterArgs, service_name
from llmd_oke.serving.stack_envoy import FIRST_MODEL_PORT
from llmd_oke.serving.stack_front_door import StackFrontDoor
from llmd_oke.serving.units import AggregatedUnit, ModelScaling, PrefillDecodeUnit, ScaledServersArgs, server_spec
from llmd_oke.serving.vllm import ServerSpec, revision, version

NAME = "model-cache"

ADDRESSES = {"FrontDoor": "front-door", "ModelEndpoint": "endpoint", "ModelRoute": "route"}
"""Components with a model's own Service, and what the names of their resources end in."""


def declare_units(
    plan: Plan,
    model: ModelPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    image: ImagePull,
    crds: Crds | None,
    opts: pulumi.ResourceOptions,
    keda: pulumi.Input[str] | None = None,
) -> list[pulumi.Resource]:
    """Everything that serves a model. Units and routers are declared side by side: each waits for its own pods only.

    `keda` is the models' namespace, known once ScaledObjects can be declared in it.
    """
    inside = after(opts, namespace)
    prepared = after(inside, image, *([cache] if cache else []))
    declared: list[pulumi.Resource] = []
    turn, served = pulumi.ResourceOptions(), _served_already(model)
    for unit in model.units:
        name = unit_name(plan, model, unit)
        own: list[pulumi.Resource] = []
        needed = pulumi.ResourceOptions.merge(prepared, turn)
        own.append(_unit(plan, model, unit, namespace, cache, needed))
        if keda is not None and (scaled := declare_scaling(model, unit, name, keda, after(inside, *own))):
            own.append(scaled)
        if model.routed:
            needed = pulumi.ResourceOptions.merge(after(opts, namespace, *([crds] if crds else [])), turn)
            own.append(Router(f"{name}-router", router_args(plan, model, unit), needed))
        declared += own
        turn = _next_unit_opts(served, own)
    return declared


def declare_address(
    plan: Plan,
    model: ModelPlan,
    opts: pulumi.ResourceOptions,
    units: Sequence[pulumi.Resource],
    door: StackFrontDoor | None = None,
) -> FrontDoor | ModelEndpoint:
    """Where requests go: to Envoys before the routers, those of the model or of the stack (`door`), or to all servers.
    Envoys come after the units, because they take requests from what served before; an endpoint without routers comes
    beside.
    """
    if not model.routed or door is not None:
        return ModelEndpoint(
            f"{model.name}-{ADDRESSES['ModelEndpoint']}",
            arguments(
                ModelEndpointArgs,
                plan,
                model=model.name,
                ready_timeout_s=max(role.create_timeout_s for role in model.units[0].roles),
                front_door={"version": door.version, "port": FIRST_MODEL_PORT + plan.models.index(model)}
                if model.routed and door is not None
                else None,
            ),
            pulumi.ResourceOptions.merge(opts, taking_over(model, "ModelEndpoint")),
        )
    return FrontDoor(
        f"{model.name}-{ADDRESSES['FrontDoor']}",
        arguments(
            FrontDoorArgs,
            plan,
            **release_args(plan),
            model=model.name,
            routers=[service_name(unit_name(plan, model, unit)) for unit in model.units],
        ),
        pulumi.ResourceOptions.merge(after(opts, *units), taking_over(model, "FrontDoor")),
    )


def taking_over(model: ModelPlan, component: str) -> pulumi.ResourceOptions:
    """The options of a component with the model's Service, which takes that of any other over."""
    others = {other: name for other, name in ADDRESSES.items() if other != component}
    aliases = [
        pulumi.Alias(name=f"{model.name}-{name}", type_=f"llmd-oke:index:{other}") for other, name in others.items()
    ]
    return pulumi.ResourceOptions(aliases=[*aliases])


def _served_already(model: ModelPlan) -> pulumi.Output[bool] | None:
    """Whether the model is served already, where its units change one by one; None where that doesn't matter.

    The stack's own outputs tell, which the update before this one has left.
    """
    if model.update_way != "one by one":
        return None
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    endpoints = pulumi.StackReference(f"{model.name}-before", name).get_output("endpoints")
    return endpoints.apply(lambda known: model.name in (known or {}))


def _next_unit_opts(served: pulumi.Output[bool] | None, unit: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
    """What the next unit waits for: this one, where the model is served already and its units change one by one."""
    if served is None:
        return pulumi.ResourceOptions()
    return pulumi.ResourceOptions(depends_on=served.apply(lambda before: unit if before else []))


def unit_name(plan: Plan, model: ModelPlan, unit: UnitPlan) -> str:
    """The name of a unit's objects. Where another unit may come beside it has what can't change inside the unit."""
    if model.update_way != "beside":
        return unit.name
    versions = {role.role: version(_server_spec(plan, model, role)) for role in unit.roles}
    sizes = {role.role: role.tensor_parallel_size for role in unit.roles}
    return f"{unit.name}-{revision(unit.name, plan.router_release, versions, sizes)}"


def _server_spec(plan: Plan, model: ModelPlan, role: RolePlan) -> ServerSpec:
    return server_spec(unit_args(plan, model, "model-server"), role.role, role.tensor_parallel_size)


def declare_image_pull(plan: Plan, namespace: ServingNamespace, opts: pulumi.ResourceOptions) -> ImagePull:
    """The image of all servers, on the nodes before them; beside whatever fills the model cache."""
    return ImagePull(
        "image-pull",
        {
            "namespace": plan.namespace,
            "image": plan.release.vllm.image.pinned,
            "shape": plan.pools[0].shape.name,
            "nodes": sum(awaited_nodes(plan).values()),
            "node_taints": node_taints(plan),
        },
        after(opts, namespace),
    )


def router_args(plan: Plan, model: ModelPlan, unit: UnitPlan) -> RouterArgs:
    """The arguments of a unit's router."""
    disaggregated = model.topology.disaggregated
    return {
        "release": plan.release.name,
        "override": override_args(plan),
        "namespace": plan.namespace,
        "model": model.name,
        "unit": unit_name(plan, model, unit),
        "version": version(_server_spec(plan, model, unit.roles[0])) if disaggregated else None,
        "disaggregated": disaggregated,
        "profile": model.profile,
        "decider": model.router.decider,
        "non_cached_tokens": model.router.non_cached_tokens,
        "peak_prefill_tokens_per_s": model.router.peak_prefill_tokens_per_s,
        "replicas": model.router_replicas,
        "control_plane_cidrs": None if plan.control_plane_cidrs is None else list(plan.control_plane_cidrs),
        "signed_in": plan.front_door is not None and plan.front_door.authentication is not None,
        "gateway": _gateway_pods(plan, model),
        "cache_salts": plan.front_door is not None and plan.front_door.cache_isolation == "client",
        "tracing": _tracing(plan),
    }


def _tracing(plan: Plan) -> TracingArgs | None:
    asked = plan.tracing
    return None if asked is None else {"endpoint": asked.endpoint, "sampled_share": asked.sampled_share}


def _gateway_pods(plan: Plan, model: ModelPlan) -> GatewayPodsArgs | None:
    """The pods of the Gateway that a model is behind; None where it is behind none."""
    gateway = plan.gateway
    if gateway is None or not model.behind_gateway:
        return None
    return {"namespace": gateway.service_namespace, "labels": gateway.pod_labels}


def _unit(
    plan: Plan,
    model: ModelPlan,
    unit: UnitPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Resource:
    name = unit_name(plan, model, unit)
    common: UnitArgs = {
        **unit_args(plan, model, namespace.service_account),
        "inference_pool": name,
        "model_cache": None if cache is None else model_cache_mount(plan, model, cache.claim),
    }
    prefill, decode, aggregated = unit.role("prefill"), unit.role("decode"), unit.role("aggregated")
    if prefill and decode:
        return PrefillDecodeUnit(
            name, {**common, "prefill": servers_args(prefill), "decode": servers_args(decode)}, opts
        )
    assert aggregated is not None  # noqa: S101 - planning lets no other combination through
    return AggregatedUnit(name, {**common, "servers": servers_args(aggregated)}, opts)


def unit_args(plan: Plan, model: ModelPlan, service_account: pulumi.Input[str]) -> UnitArgs:
    """What the units of a model have in common, but for a model cache."""
    return {
        "release": plan.release.name,
        "override": override_args(plan),
        "model": model.model.name,
        "shape": plan.pools[0].shape.name,
        "namespace": plan.namespace,
        "service_account": service_account,
        "model_label": model.name,
        "rdma": plan.rdma,
        "priority_class_prefix": plan.namespace,
        "engine": engine_args(model),
        "routed": model.routed,
        "signed_in": plan.front_door is not None and plan.front_door.authentication is not None,
        "gateway": _gateway_pods(plan, model),
        "control_plane_cidrs": None if plan.control_plane_cidrs is None else list(plan.control_plane_cidrs),
        "virtual_functions": plan.virtual_functions_owner,
        "node_taints": node_taints(plan),
        "tracing": _tracing(plan),
    }


def servers_args(role: RolePlan) -> ServersArgs:
    """The servers of one role."""
    return {
        "replicas": role.replicas,
        "tensor_parallel_size": role.tensor_parallel_size,
        "max_surge": role.rollout.max_surge,
        "max_unavailable": role.rollout.max_unavailable,
        "create_timeout_s": role.create_timeout_s,
        "update_timeout_s": role.update_timeout_s,
        "autoscaled": role.scaling is not None,
    }


def engine_args(model: ModelPlan) -> EngineArgs:
    """The vLLM settings of a model's servers; those without an argument of their own as text."""
    engine = model.engine
    named = EngineArgs.__annotations__
    further = {row.field: row for row in engine_settings().settings if row.field not in named}
    texts = {name: further[name].written(value) for name, value in engine.settings().items() if name in further}
    return {
        "max_model_len": model.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "block_size": model.block_size,
        "settings": texts or None,
        "extra_args": list(engine.extra_args),
        "env": dict(engine.env),
    }


def override_args(plan: Plan) -> OverrideArgs | None:
    """What the user put in place of the release's parts, where there is anything."""
    override = plan.override.replacements()
    return OverrideArgs(**override) if override else None


def keda_namespace(plan: Plan, access: ClusterAccess, namespace: pulumi.Resource) -> pulumi.Output[str] | None:
    """The namespace of the models once the cluster serves KEDA's definitions; None where nothing is scaled.

    Raises:
        KitError: (in the output) they aren't there in time; says how KEDA is installed.
    """
    if all(model.scaling is None for model in plan.models):
        return None
    facts = scaling()
    return access.name_once_served(plan.namespace, facts.names, facts.established_timeout_s, facts.remedy, namespace)


def declare_scaling(
    model: ModelPlan, unit: UnitPlan, name: str, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> ModelScaling | None:
    """What scales the servers of a unit, whose objects have that name; None where their number stays."""
    servers: dict[str, ScaledServersArgs] = {}
    for role in unit.roles:
        if role.scaling:
            thresholds = role.scaling.thresholds()
            servers[role.role] = {
                "min_replicas": role.scaling.min_replicas,
                "max_replicas": role.scaling.max_replicas,
                "share": role.replicas,
                "requests": thresholds.get("requests"),
                "prompt_tokens_per_s": thresholds.get("prompt_tokens_per_s"),
                "kv_cache_usage": thresholds.get("kv_cache_usage"),
            }
    if model.scaling is None or not servers:
        return None
    return ModelScaling(
        f"{name}-scaling",
        {
            "namespace": namespace,
            "unit": name,
            "servers": servers,
            "prometheus": model.scaling.prometheus,
            "scale_up_window_s": model.scaling.scale_up_window_s,
            "scale_down_window_s": model.scaling.scale_down_window_s,
        },
        opts,
    )


def declare_model_cache(
    plan: Plan,
    namespace: ServingNamespace,
    source_url: pulumi.Input[str] | None,
    opts: pulumi.ResourceOptions,
    created_handle: pulumi.Input[str] | None = None,
) -> ModelCache | None:
    """The model cache of a plan, or None where servers keep weights in their pods.

    `created_handle` is what the storage driver knows a file system by that this stack or its cluster stack created.
    """
    cache = plan.model_cache
    if cache is None:
        return None
    from_bucket = cache.prewarm is not None and cache.prewarm.source == "object-storage"
    args: ModelCacheArgs = {
        **model_cache_args(plan, cache, namespace.service_account),
        "source_url": source_url if from_bucket else None,
        "volume_handle": cache.handle or created_handle,
    }
    return ModelCache(NAME, args, after(opts, namespace))


def model_cache_args(plan: Plan, cache: ModelCachePlan, service_account: pulumi.Input[str]) -> ModelCacheArgs:
    """The arguments that follow from the plan alone."""
    prewarm = cache.prewarm
    models = sorted({model.model.name for model in plan.models})
    return {
        "namespace": plan.namespace,
        "service_account": service_account,
        "kind": cache.kind,
        "shape": plan.pools[0].shape.name,
        "nodes": sum(awaited_nodes(plan).values()),
        "models": [*models],
        "volume_name": f"{plan.namespace}-{NAME}",
        "timeout_s": cache.timeout_s,
        "node_taints": node_taints(plan),
        "path": cache.path,
        "capacity_gib": cache.capacity_gib,
        "prewarm": prewarm and {"source": prewarm.source, "connections": prewarm.connections},
        "revisions": prewarm and dict(prewarm.revisions),
    }


def model_cache_mount(plan: Plan, model: ModelPlan, claim: pulumi.Input[str]) -> ModelCacheMountArgs | None:
    """Where the servers of a model find the cache; `claim` is that of a shared volume. None without a cache."""
    if plan.model_cache is None:
        return None
    return mount(model_cache_args(plan, plan.model_cache, ""), model.model.name, claim)


def node_taints(plan: Plan) -> list[NodeTaintArgs]:
    """Each taint of the stack file's GPU pools once; the pods of all models tolerate those of all pools."""
    return [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in plan.taints]
