"""The Gateway of a plan, the routes of its models, and the pods that ask their endpoint pickers."""

from collections.abc import Mapping, Sequence

import pulumi

from llmd_oke.config.front_door import LoadBalancer
from llmd_oke.config.gateway import CreatedGateway
from llmd_oke.objects import after
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.gateway import CLIENTS, CLUSTER
from llmd_oke.planning.plan import GatewayPlan
from llmd_oke.program.access import ClusterAccess
from llmd_oke.program.front_door import load_balancer_args
from llmd_oke.program.models import ADDRESSES, taking_over, unit_name
from llmd_oke.serving.gateway import (
    DEFINITIONS,
    ESTABLISHED_S,
    REMEDY,
    Gateway,
    GatewayListenerArgs,
    ModelRoute,
    ModelRouteArgs,
)


def declare_routes(
    plan: Plan,
    gateway: GatewayPlan,
    access: ClusterAccess,
    namespace: pulumi.Resource,
    opts: pulumi.ResourceOptions,
    units: Mapping[str, Sequence[pulumi.Resource]],
) -> dict[str, ModelRoute]:
    """The Gateway where the stack makes it, and after it and their units the routes of the models behind it.

    Raises:
        KitError: (in the outputs) the Gateway API isn't in the cluster; says how it is installed.
    """
    name = access.name_once_served(plan.namespace, DEFINITIONS, ESTABLISHED_S, REMEDY, namespace)
    made = _declare_gateway(gateway, name, access, opts)
    return {
        model.name: _declare_route(plan, gateway, model, name, after(opts, *made, *units[model.name]))
        for model in plan.models
        if model.behind_gateway
    }


def _declare_gateway(
    gateway: GatewayPlan,
    namespace: pulumi.Input[str],
    access: ClusterAccess,
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """The Gateway, where the stack makes it."""
    created = gateway.created
    if created is None:
        return []
    return [
        Gateway(
            gateway.name,
            {
                "namespace": namespace,
                "provider": gateway.provider.name,
                "gateway": gateway.name,
                "class_name": created.class_name,
                "listeners": _listeners(gateway, created),
                "load_balancer": load_balancer_args(created.exposure, LoadBalancer(), access),
            },
            opts,
        )
    ]


def _listeners(gateway: GatewayPlan, created: CreatedGateway) -> list[GatewayListenerArgs]:
    port = created.port or (80 if created.tls is None else 443)
    clients: GatewayListenerArgs = {
        "name": CLIENTS,
        "port": port,
        "host": created.host,
        "tls_secret": created.tls,
    }
    return [clients] if gateway.cluster_listener == CLIENTS else [clients, {"name": CLUSTER, "port": 80}]


def _declare_route(
    plan: Plan,
    gateway: GatewayPlan,
    model: ModelPlan,
    namespace: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> ModelRoute:
    """The way from the Gateway to a model."""
    return ModelRoute(
        f"{model.name}-{ADDRESSES['ModelRoute']}",
        route_args(plan, gateway, model, namespace),
        pulumi.ResourceOptions.merge(opts, taking_over(model, "ModelRoute")),
    )


def route_args(plan: Plan, gateway: GatewayPlan, model: ModelPlan, namespace: pulumi.Input[str]) -> ModelRouteArgs:
    """The arguments of a model's route."""
    route = model.router.route
    return {
        "namespace": namespace,
        "model": model.name,
        "units": [unit_name(plan, model, unit) for unit in model.units],
        "provider": gateway.provider.name,
        "gateway": gateway.name,
        "gateway_namespace": gateway.namespace,
        "service_host": gateway.service_host,
        "listener": gateway.listener,
        "cluster_listener": gateway.cluster_listener,
        "hosts": list(route.hosts) or None,
        "headers": dict(route.headers) or None,
        "path": route.path,
        "timeout_s": route.timeout_s,
    }
