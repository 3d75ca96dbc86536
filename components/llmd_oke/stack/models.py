"""The models of a plan: units, routers and front doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.operators.crds import Crds
from llmd_oke.planning import ModelPlan, Plan, RolePlan, UnitPlan
from llmd_oke.planning.gpu_stack import functions_made_by
from llmd_oke.planning.network import control_plane_cidrs
from llmd_oke.planning.node_scaling import awaited_nodes
from llmd_oke.planning.releases import router_of, used_override
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
from llmd_oke.serving.front_door import FrontDoor, FrontDoorArgs
from llmd_oke.serving.image_pull import ImagePull, ImagePullArgs
from llmd_oke.serving.lookup import OverrideArgs
from llmd_oke.serving.model_cache import ModelCache
from llmd_oke.serving.model_server import server_spec
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router, RouterArgs, service_name
from llmd_oke.serving.versions import revision, version
from llmd_oke.serving.vllm import ServerSpec
from llmd_oke.stack.order import after
from llmd_oke.stack.scaling import declare_scaling
from llmd_oke.stack.storage import model_cache_mount
from llmd_oke.stack.taints import node_taints


@dataclass(frozen=True)
class DeclaredModel:
    """A model's address inside the cluster, and everything that serves it."""

    url: pulumi.Output[str]
    resources: Sequence[pulumi.Resource]


def declare_model(
    plan: Plan,
    model: ModelPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    image: ImagePull,
    crds: Crds | None,
    opts: pulumi.ResourceOptions,
    keda: pulumi.Input[str] | None = None,
) -> DeclaredModel:
    """Units and routers are declared side by side: each waits for its own pods only. The front door comes after them,
    because it takes requests from what served before; an endpoint without routers comes beside.

    `keda` is the models' namespace, known once ScaledObjects can be declared in it.
    """
    routed = model.router.mode == "standalone"
    inside = after(opts, namespace)
    prepared = after(inside, image, *([cache] if cache else []))
    declared: list[pulumi.Resource] = []
    turn, served = pulumi.ResourceOptions(), _served_before(model)
    for unit in model.units:
        name = unit_name(plan, model, unit)
        own: list[pulumi.Resource] = []
        needed = pulumi.ResourceOptions.merge(prepared, turn)
        own.append(_unit(plan, model, unit, namespace, cache, needed))
        if keda is not None and (scaled := declare_scaling(model, unit, name, keda, after(inside, *own))):
            own.append(scaled)
        if routed:
            needed = pulumi.ResourceOptions.merge(after(opts, namespace, *([crds] if crds else [])), turn)
            own.append(Router(f"{name}-router", router_args(plan, model, unit), needed))
        declared += own
        turn = _next_turn(served, own)
    address = _front_door(plan, model, after(inside, *declared)) if routed else _endpoint(plan, model, inside)
    return DeclaredModel(address.url, [*declared, address])


def _served_before(model: ModelPlan) -> pulumi.Output[bool] | None:
    """Whether the model is served already, where its units change one by one; None where that doesn't matter.

    The stack's own outputs tell, which the update before this one has left.
    """
    if model.update_way != "one by one":
        return None
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    endpoints = pulumi.StackReference(f"{model.name}-before", name).get_output("endpoints")
    return endpoints.apply(lambda known: model.name in (known or {}))


def _next_turn(served: pulumi.Output[bool] | None, unit: Sequence[pulumi.Resource]) -> pulumi.ResourceOptions:
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
    return f"{unit.name}-{revision(unit.name, router_of(plan.config), versions, sizes)}"


def _server_spec(plan: Plan, model: ModelPlan, role: RolePlan) -> ServerSpec:
    return server_spec(unit_args(plan, model, "model-server"), role.role, role.tensor_parallel_size)


def declare_image_pull(plan: Plan, namespace: ServingNamespace, opts: pulumi.ResourceOptions) -> ImagePull:
    """The image of all servers, on the nodes before them; beside whatever fills the model cache."""
    args: ImagePullArgs = {
        "namespace": plan.namespace,
        "image": plan.release.vllm.image.pinned,
        "shape": plan.pools[0].shape.name,
        "nodes": sum(awaited_nodes(plan).values()),
    }
    if taints := node_taints(plan):
        args["node_taints"] = taints
    return ImagePull("image-pull", args, after(opts, namespace))


def _front_door(plan: Plan, model: ModelPlan, opts: pulumi.ResourceOptions) -> FrontDoor:
    args: FrontDoorArgs = {
        "namespace": plan.namespace,
        "release": plan.release.name,
        **_override(plan),
        "model": model.name,
        "routers": [service_name(unit_name(plan, model, unit)) for unit in model.units],
    }
    return FrontDoor(f"{model.name}-front-door", args, opts)


def _endpoint(plan: Plan, model: ModelPlan, opts: pulumi.ResourceOptions) -> ModelEndpoint:
    args: ModelEndpointArgs = {
        "namespace": plan.namespace,
        "model": model.name,
        "ready_timeout_s": max(role.create_timeout_s for role in model.units[0].roles),
    }
    return ModelEndpoint(f"{model.name}-endpoint", args, opts)


def router_args(plan: Plan, model: ModelPlan, unit: UnitPlan) -> RouterArgs:
    """The arguments of a unit's router."""
    args: RouterArgs = {
        "release": plan.release.name,
        **_override(plan),
        "namespace": plan.namespace,
        "model": model.name,
        "unit": unit_name(plan, model, unit),
        "disaggregated": model.topology.disaggregated,
        "profile": model.profile,
        "decider": model.router.decider,
        "non_cached_tokens": model.router.non_cached_tokens,
    }
    if model.topology.disaggregated:
        args["version"] = version(_server_spec(plan, model, unit.roles[0]))
    if (cidrs := control_plane_cidrs(plan.config)) is not None:
        args["control_plane_cidrs"] = cidrs
    return args


def _unit(
    plan: Plan,
    model: ModelPlan,
    unit: UnitPlan,
    namespace: ServingNamespace,
    cache: ModelCache | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Resource:
    common, name = unit_args(plan, model, namespace.service_account), unit_name(plan, model, unit)
    common["inference_pool"] = name
    if cache is not None:
        common["model_cache"] = model_cache_mount(plan, model, cache.claim)
    prefill, decode, aggregated = unit.role("prefill"), unit.role("decode"), unit.role("aggregated")
    if prefill and decode:
        return PrefillDecodeUnit(
            name, {**common, "prefill": servers_args(prefill), "decode": servers_args(decode)}, opts
        )
    assert aggregated is not None  # noqa: S101 - planning lets no other combination through
    return AggregatedUnit(name, {**common, "servers": servers_args(aggregated)}, opts)


def unit_args(plan: Plan, model: ModelPlan, service_account: pulumi.Input[str]) -> UnitArgs:
    """What the units of a model have in common, but for a model cache."""
    args: UnitArgs = {
        "release": plan.release.name,
        **_override(plan),
        "model": model.model.name,
        "shape": plan.pools[0].shape.name,
        "namespace": plan.namespace,
        "service_account": service_account,
        "model_label": model.name,
        "rdma": plan.rdma,
        "priority_class_prefix": plan.namespace,
        "engine": engine_args(model),
        "routed": model.router.mode == "standalone",
    }
    if (cidrs := control_plane_cidrs(plan.config)) is not None:
        args["control_plane_cidrs"] = cidrs
    if (maker := functions_made_by(plan.config)) is not None:
        args["virtual_functions"] = maker
    if taints := node_taints(plan):
        args["node_taints"] = taints
    return args


def servers_args(role: RolePlan) -> ServersArgs:
    """The servers of one role."""
    args: ServersArgs = {
        "replicas": role.replicas,
        "tensor_parallel_size": role.tensor_parallel_size,
        "max_surge": role.rollout.max_surge,
        "max_unavailable": role.rollout.max_unavailable,
        "create_timeout_s": role.create_timeout_s,
        "update_timeout_s": role.update_timeout_s,
    }
    if role.scaling:
        args["autoscaled"] = True
    return args


def engine_args(model: ModelPlan) -> EngineArgs:
    """The vLLM settings of a model's servers."""
    engine = model.engine
    return {
        "max_model_len": model.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "block_size": model.block_size,
        "extra_args": list(engine.extra_args),
        "env": dict(engine.env),
    }


class _WithOverride(TypedDict):
    override: NotRequired[OverrideArgs]


def _override(plan: Plan) -> _WithOverride:
    """What the user put in place of the release's parts, where there is anything."""
    said = used_override(plan.config).said()
    return {"override": OverrideArgs(**said)} if said else {}
