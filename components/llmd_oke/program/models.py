"""Declaration of a plan's models: model cache, image pull, units (each a router and its servers), addresses and
autoscaling.
"""

from collections.abc import Mapping, Sequence

import pulumi
import yaml

from llmd_oke.catalogue.serving import leader_worker_sets, scaling
from llmd_oke.config.engine import ROLES, SettingValue, engine_settings
from llmd_oke.objects import after
from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.planning.cluster_plan import ModelCachePlan
from llmd_oke.planning.pools import awaited_nodes
from llmd_oke.program.access import ClusterIdentity
from llmd_oke.program.arguments import arguments, common_args
from llmd_oke.serving.adapters import AdapterNames, AdapterNamesArgs
from llmd_oke.serving.args import (
    EngineArgs,
    GatewayPodsArgs,
    ModelCacheMountArgs,
    RoleEngineArgs,
    ServersArgs,
    UnitArgs,
)
from llmd_oke.serving.front_door import FrontDoor, FrontDoorArgs, ModelEndpoint, ModelEndpointArgs
from llmd_oke.serving.image_pull import ImagePull, ImagePullArgs
from llmd_oke.serving.model_cache import (
    AdaptedModelArgs,
    AdapterArgs,
    CachePlaceArgs,
    ModelCache,
    ModelCacheArgs,
    ModelDraftArgs,
    adapters_name,
    mount,
)
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.picker_config import RouterArgs
from llmd_oke.serving.router import Router, service_name
from llmd_oke.serving.stack_envoy import FIRST_MODEL_PORT
from llmd_oke.serving.stack_front_door import StackFrontDoor
from llmd_oke.serving.units import (
    AggregatedUnit,
    ModelScaling,
    ModelScalingArgs,
    PrefillDecodeUnit,
    PrefillDecodeUnitArgs,
    ScaledServersArgs,
    server_spec,
)
from llmd_oke.serving.vllm import ServerSpec, draft_revision, revision, version

NAME = "model-cache"

ADDRESSES = {"FrontDoor": "front-door", "ModelEndpoint": "endpoint", "ModelRoute": "route"}
"""Components that declare a model's own Service, with the suffix of their resource names."""


def declare_units(
    plan: Plan,
    model: ModelPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    image: ImagePull,
    crds: Crds | None,
    opts: pulumi.ResourceOptions,
    keda: pulumi.Input[str] | None = None,
    groups: pulumi.Input[str] | None = None,
) -> list[pulumi.Resource]:
    """Declare everything that serves a model behind its address: units, autoscaling, routers and names of adapters;
    return the components. Units and routers don't depend on each other.

    `keda` and `groups` are the namespace of the models as outputs that resolve once the cluster has the definitions of
    ScaledObjects and LeaderWorkerSets, None if not needed.
    """
    inside = after(opts, namespace)
    prepared = after(inside, image, *([cache] if cache else []))
    declared: list[pulumi.Resource] = []
    turn, served = pulumi.ResourceOptions(), _served_already(model)
    for unit in model.units:
        name = unit_name(plan, model, unit)
        own: list[pulumi.Resource] = []
        needed = pulumi.ResourceOptions.merge(prepared, turn)
        servers = _unit(plan, model, unit, namespace, cache, needed, groups)
        own.append(servers)
        if keda is not None and (scaled := declare_scaling(model, unit, name, keda, after(inside, *own))):
            own.append(scaled)
        if model.routed:
            needed = pulumi.ResourceOptions.merge(after(opts, namespace, *([crds] if crds else [])), turn)
            own.append(Router(f"{name}-router", router_args(plan, model, unit), needed))
        if model.adapters:
            there = after(prepared, servers, *([crds] if crds else []))
            served_names = {adapter.name: adapter.served_name for adapter in model.adapters}
            args = arguments(AdapterNamesArgs, common_args(plan), unit=name, adapters=served_names)
            own.append(AdapterNames(f"{name}-adapters", args, there))
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
    """Declare a model's address: a front door of its own, a Service to the stack's front door (`door`), or, without
    routers, a Service to all servers.

    The front door depends on the units, because its update moves requests from the previous units to these; a Service
    to servers doesn't.
    """
    if not model.routed or door is not None:
        return ModelEndpoint(
            f"{model.name}-{ADDRESSES['ModelEndpoint']}",
            arguments(
                ModelEndpointArgs,
                common_args(plan),
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
            common_args(plan),
            model=model.name,
            routers=[service_name(unit_name(plan, model, unit)) for unit in model.units],
            holds_back=model.holds_back or None,
            session_headers=model.session_headers or None,
        ),
        pulumi.ResourceOptions.merge(after(opts, *units), taking_over(model, "FrontDoor")),
    )


def taking_over(model: ModelPlan, component: str) -> pulumi.ResourceOptions:
    """Return the options by which a component that declares a model's Service adopts the Service from the component
    that declared it in earlier updates.
    """
    others = {other: name for other, name in ADDRESSES.items() if other != component}
    aliases = [
        pulumi.Alias(name=f"{model.name}-{name}", type_=f"llmd-oke:index:{other}") for other, name in others.items()
    ]
    return pulumi.ResourceOptions(aliases=[*aliases])


def _served_already(model: ModelPlan) -> pulumi.Output[bool] | None:
    """Return an output that is true if the model was deployed before this update, according to the stack's outputs of
    the previous update; None unless the model's units are updated one by one.
    """
    if model.update_way != "one by one":
        return None
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    endpoints = pulumi.StackReference(f"{model.name}-before", name).get_output("endpoints")
    return endpoints.apply(lambda known: model.name in (known or {}))


def _next_unit_opts(served: pulumi.Output[bool] | None, unit: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
    """Return the options of the next unit, which depends on this one if units are updated one by one and the model was
    deployed before.
    """
    if served is None:
        return pulumi.ResourceOptions()
    return pulumi.ResourceOptions(depends_on=served.apply(lambda before: unit if before else []))


def unit_name(plan: Plan, model: ModelPlan, unit: UnitPlan) -> str:
    """Return the name of a unit's objects; a unit is a model's servers with a router of their own. If updates deploy a
    new unit beside the old one, the name contains a digest of everything that can't change within a unit.
    """
    if model.update_way != "beside":
        return unit.name
    versions = {role.role: version(_server_spec(plan, model, role)) for role in unit.roles}
    spreads = {role.role: role.parallelism for role in unit.roles}
    return f"{unit.name}-{revision(unit.name, plan.router_release, versions, spreads)}"


def _server_spec(plan: Plan, model: ModelPlan, role: RolePlan) -> ServerSpec:
    own = unit_args(plan, model, "model-server")
    args: UnitArgs = {**own, "model_cache": model_cache_mount(plan, model, "claim")}
    return server_spec(args, role.role, role.parallelism)


def declare_image_pull(plan: Plan, namespace: ServingNamespace, opts: pulumi.ResourceOptions) -> ImagePull:
    """Declare the pull of the servers' image on the nodes, which doesn't wait for the model cache; servers depend on
    it.
    """
    return ImagePull(
        "image-pull",
        arguments(
            ImagePullArgs,
            common_args(plan),
            image=plan.release.vllm.image.pinned,
            nodes=sum(awaited_nodes(plan).values()),
        ),
        after(opts, namespace),
    )


def router_args(plan: Plan, model: ModelPlan, unit: UnitPlan) -> RouterArgs:
    """Return the arguments of the router of a unit (a router and its servers)."""
    disaggregated = model.topology.disaggregated
    return arguments(
        RouterArgs,
        common_args(plan),
        model,
        model.router,
        model=model.name,
        unit=unit_name(plan, model, unit),
        version=version(_server_spec(plan, model, unit.roles[0])) if disaggregated else None,
        disaggregated=disaggregated,
        replicas=model.router_replicas,
        priorities=model.priorities or None,
        reported={"model": model.model.repository, "block_size": model.block_size} if model.kv_events else None,
        config=yaml.safe_dump(own, sort_keys=False) if (own := model.router.config) is not None else None,
        gateway=_gateway_pods(plan, model),
        cache_salts=plan.front_door is not None and plan.front_door.cache_isolation == "client",
    )


def _gateway_pods(plan: Plan, model: ModelPlan) -> GatewayPodsArgs | None:
    """Return namespace and labels of the pods of a model's Gateway; None if the model isn't behind a Gateway."""
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
    groups: pulumi.Input[str] | None,
) -> pulumi.Resource:
    name = unit_name(plan, model, unit)
    common: UnitArgs = {
        **unit_args(plan, model, namespace.service_account),
        "namespace": groups if model.needs_group_controller and groups is not None else plan.namespace,
        "inference_pool": name,
        "model_cache": None if cache is None else model_cache_mount(plan, model, cache.claim),
    }
    prefill, decode, aggregated = unit.role("prefill"), unit.role("decode"), unit.role("aggregated")
    if prefill and decode:
        both: PrefillDecodeUnitArgs = {
            **common,
            "prefill": servers_args(prefill),
            "decode": servers_args(decode),
            "disaggregated_set": model.disaggregated_set or None,
        }
        return PrefillDecodeUnit(name, both, opts)
    assert aggregated is not None  # noqa: S101 - planning lets no other combination through
    return AggregatedUnit(name, {**common, "servers": servers_args(aggregated)}, opts)


def unit_args(plan: Plan, model: ModelPlan, service_account: pulumi.Input[str]) -> UnitArgs:
    """Return the arguments that all units of a model share (a unit is a router and its servers), without model cache
    and InferencePool.
    """
    return arguments(
        UnitArgs,
        common_args(plan),
        model,
        service_account=service_account,
        model=model.model.name,
        model_label=model.name,
        virtual_functions=plan.virtual_functions_owner,
        priority_class_prefix=plan.namespace,
        inference_pool=None,
        engine=engine_args(model),
        kv_events=model.kv_events or None,
        keeps_to_pools=(model.over_nodes and plan.keeps_to_pools) or None,
        gateway=_gateway_pods(plan, model),
        model_cache=None,
    )


def servers_args(role: RolePlan) -> ServersArgs:
    """Return the arguments of the servers of one role."""
    return arguments(ServersArgs, role, role.rollout, role.parallelism)


def engine_args(model: ModelPlan) -> EngineArgs:
    """Return the vLLM settings of a model's servers; settings without an argument of their own are
    texts in `settings`.
    """
    roles: dict[str, RoleEngineArgs] = {
        role: {"settings": _texts(own.settings()), "extra_args": [*own.extra_args], "env": own.env}
        for role, own in model.engine.roles().items()
    }
    others = {name: value for name, value in model.engine.settings().items() if name not in EngineArgs.__annotations__}
    given = {**dict.fromkeys(ROLES), **roles}
    asked = model.engine.speculation
    drafts = None if asked is None else asked.model_copy(update={"accepted_share": None})  # servers don't depend on it
    return arguments(EngineArgs, model.engine, settings=_texts(others) or None, speculation=drafts, **given)


def _texts(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Return settings of `values/vllm/engine-settings.yaml` as text, by field."""
    rows = (row for row in engine_settings().settings if row.field in settings)
    return {row.field: row.written(settings[row.field]) for row in rows}


def keda_namespace(plan: Plan, access: ClusterIdentity, namespace: pulumi.Resource) -> pulumi.Output[str] | None:
    """Return the namespace of the models as an output that resolves once the cluster has KEDA's custom resource
    definitions; None if no model is scaled.

    Raises:
        KitError: (when the output resolves) a definition is missing after the limit; the remedy says how to install
            KEDA.
    """
    if all(model.scaling is None for model in plan.models):
        return None
    return access.name_once_served(plan.namespace, scaling(), namespace)


def groups_namespace(plan: Plan, access: ClusterIdentity, namespace: pulumi.Resource) -> pulumi.Output[str] | None:
    """Return the namespace of the models as an output that resolves once the cluster has the definition of
    LeaderWorkerSets, and of DisaggregatedSets if a model has them, and the controller's webhooks answer; None if no
    server's pods are made by that controller.

    Raises:
        KitError: (when the output resolves) the definition is missing, or webhooks don't answer, after the limit; the
            remedy says how to install the controller, or what to look at.
    """
    if not plan.needs_group_controller:
        return None
    facts = leader_worker_sets()
    if any(model.disaggregated_set for model in plan.models):
        facts = facts.model_copy(update={"names": (*facts.names, facts.disaggregated_set)})
    return access.name_once_served(plan.namespace, facts, namespace)


def declare_scaling(
    model: ModelPlan, unit: UnitPlan, name: str, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> ModelScaling | None:
    """Declare the autoscaling of a unit's servers; `name` is that of the unit's objects. Return None
    if the number of servers is fixed.
    """
    if model.scaling is None:
        return None
    none = dict.fromkeys(scaling().queries)
    servers = {
        role.role: arguments(ScaledServersArgs, role.scaling, none, share=role.replicas)
        for role in unit.roles
        if role.scaling
    }
    args = arguments(ModelScalingArgs, model.scaling, namespace=namespace, unit=name, servers=servers)
    return ModelScaling(f"{name}-scaling", args, opts)


def declare_model_cache(
    plan: Plan,
    namespace: ServingNamespace,
    source_url: pulumi.Input[str] | None,
    opts: pulumi.ResourceOptions,
    created_handle: pulumi.Input[str] | None = None,
) -> ModelCache | None:
    """Declare the model cache of a plan; return None if servers keep weights in their pods.

    `created_handle` is the CSI volume handle of the file system that this stack or its cluster stack created; None
    without one.
    """
    cache = plan.model_cache
    if cache is None:
        return None
    from_bucket = cache.prewarm is not None and cache.prewarm.source == "object-storage"
    args = model_cache_args(plan, cache, namespace.service_account, source_url if from_bucket else None, created_handle)
    return ModelCache(NAME, args, after(opts, namespace))


def model_cache_args(
    plan: Plan,
    cache: ModelCachePlan,
    service_account: pulumi.Input[str],
    source_url: pulumi.Input[str] | None = None,
    created_handle: pulumi.Input[str] | None = None,
) -> ModelCacheArgs:
    """Return the arguments of the model cache, for `declare_model_cache`."""
    return arguments(
        ModelCacheArgs,
        common_args(plan),
        cache,
        service_account=service_account,
        nodes=sum(awaited_nodes(plan).values()),
        models=sorted({model.model.name for model in plan.models}),
        adapted_models=[_adapted_model(model) for model in plan.models if model.engine.adapters] or None,
        drafts=_drafts(plan, cache) or None,
        volume_handle=cache.volume_handle or created_handle,
        volume_name=f"{plan.namespace}-{NAME}",
        source_url=source_url,
    )


def _drafts(plan: Plan, cache: ModelCachePlan) -> list[ModelDraftArgs]:
    """Return the repositories of drafts that pre-warming brings, each once for a model."""
    source = cache.prewarm.source if cache.prewarm else None
    drafts = ((model.model.name, draft) for model in plan.models if (draft := model.settings.draft))
    places = {
        (name, repository, draft_revision(draft, source))
        for name, draft in drafts
        if (repository := draft.draft.repository)
    }
    return [
        ModelDraftArgs(model=name, repository=place, revision=commit) for name, place, commit in sorted(places, key=str)
    ]


def _adapted_model(model: ModelPlan) -> AdaptedModelArgs:
    """Return the model cache's arguments for a model with adapters."""
    adapters = [arguments(AdapterArgs, adapter, served_name=adapter.served_name) for adapter in model.adapters]
    return arguments(AdaptedModelArgs, model, model.engine.adapters, model=model.model.name, adapters=adapters)


def model_cache_mount(plan: Plan, model: ModelPlan, claim: pulumi.Input[str]) -> ModelCacheMountArgs | None:
    """Return how the servers of a model mount the model cache; `claim` is the PersistentVolumeClaim of a shared volume.
    None without a model cache.
    """
    if (cache := plan.model_cache) is None:
        return None
    args = arguments(CachePlaceArgs, cache, drafts=_drafts(plan, cache) or None)
    place = mount(args, model.model.name, claim)
    if model.engine.adapters is not None:
        place["adapters"] = adapters_name(model.name)
    return place
