"""Declaration of the models' addresses: the stack's front door with its secrets, and a Gateway with its routes."""

from collections.abc import Mapping, Sequence

import pulumi

from llmd_oke.config.front_door import Exposure, LoadBalancer
from llmd_oke.config.gateway import CreatedGateway
from llmd_oke.objects import after
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.gateway import CLIENTS, CLUSTER
from llmd_oke.planning.plan import FrontDoorModel, FrontDoorPlan, GatewayPlan
from llmd_oke.program.access import ClusterIdentity
from llmd_oke.program.arguments import arguments, common_args
from llmd_oke.program.models import ADDRESSES, taking_over, unit_name
from llmd_oke.serving.gateway import (
    DEFINITIONS,
    Gateway,
    GatewayArgs,
    GatewayListenerArgs,
    ModelRoute,
    ModelRouteArgs,
)
from llmd_oke.serving.router import service_name
from llmd_oke.serving.stack_front_door import (
    NAME,
    FrontDoorLoadBalancerArgs,
    FrontDoorModelArgs,
    FrontDoorTokensArgs,
    FrontDoorUnitArgs,
    StackFrontDoor,
    StackFrontDoorArgs,
)


def declare_front_door(
    plan: Plan,
    door: FrontDoorPlan,
    access: ClusterIdentity,
    settings: pulumi.Config,
    needed: Sequence[pulumi.Resource],
) -> StackFrontDoor:
    """Declare the stack's front door, after the resources `needed`, with a provider that changes ConfigMaps and Secrets
    (weights, keys, certificate) in place.

    Raises:
        InvalidStack: a secret of the stack's config is missing or isn't valid.
    """
    provider = access.provider(NAME, mutable=True)
    opts = after(access.options(provider), *access.ready, *needed)
    return StackFrontDoor(NAME, front_door_args(plan, door, access, settings), opts)


def front_door_args(
    plan: Plan, door: FrontDoorPlan, access: ClusterIdentity, settings: pulumi.Config
) -> StackFrontDoorArgs:
    """Return the arguments of the front door. Secrets are read as plain text, and wrapped as secret inputs.

    Raises:
        InvalidStack: a secret of the stack's config is missing or isn't valid.
    """
    from llmd_oke.planning import front_door_secrets  # noqa: PLC0415 - loads a library that reads certificates

    names = (
        front_door_secrets.KEYS,
        front_door_secrets.NEXT_KEYS,
        front_door_secrets.KEY_SET,
        front_door_secrets.CERTIFICATE,
        front_door_secrets.CACHE_SECRET,
    )
    secrets = front_door_secrets.read_secrets(door, {name: settings.get(name) for name in names})
    pair, tls = secrets.certificate, door.tls
    if pair is not None and (warning := front_door_secrets.end_warning(pair)) is not None:
        pulumi.log.warn(warning)
    return arguments(
        StackFrontDoorArgs,
        common_args(plan),
        door,
        door.limits,
        models=[_model(plan, door, model) for model in door.models],
        certificate=None if pair is None else {"chain": pair.chain, "key": pulumi.Output.secret(pair.key)},
        certificate_secret=tls.name if tls and tls.kind == "secret" else None,
        issuer={"name": tls.name, "kind": tls.scope} if tls and tls.kind == "issuer" else None,
        api_keys=_keys(secrets.keys),
        next_api_keys=_keys(secrets.next_keys) or None,
        tokens=_tokens(door, secrets.key_set),
        cache_secret=None if secrets.cache_secret is None else pulumi.Output.secret(secrets.cache_secret),
        allowed_models=None if door.limits.models is None else list(door.limits.models),
        clients=door.clients or None,
        priorities=door.priorities or None,
        load_balancer=load_balancer_args(plan, door.exposure, door.load_balancer, access),
    )


def _keys(keys: Mapping[str, str] | None) -> dict[str, pulumi.Input[str]] | None:
    return None if keys is None else {client: pulumi.Output.secret(key) for client, key in keys.items()}


def _model(plan: Plan, door: FrontDoorPlan, behind: FrontDoorModel) -> FrontDoorModelArgs:
    model = next(model for model in plan.models if model.name == behind.name)
    services = {model.name: model.name}  # without routers: the Service of all servers
    if model.routed:
        services = {unit.name: service_name(unit_name(plan, model, unit)) for unit in model.units}
    units: list[FrontDoorUnitArgs] = [
        {"service": services[unit], "weight": door.weights.get(unit)} for unit in behind.units
    ]
    return arguments(
        FrontDoorModelArgs,
        behind,
        hosts=behind.hosts or None,
        units=units,
        adapters=behind.adapters or None,
        max_model_len=model.max_model_len,
        holds_back=model.holds_back or None,
        session_headers=model.session_headers or None,
    )


def _tokens(door: FrontDoorPlan, key_set: str | None) -> FrontDoorTokensArgs | None:
    authentication = door.authentication
    if authentication is None or authentication.kind != "jwt":
        return None
    return arguments(FrontDoorTokensArgs, authentication, key_set=key_set, key_set_uri=authentication.jwks_uri)


def load_balancer_args(
    plan: Plan, exposure: Exposure, given: LoadBalancer, access: ClusterIdentity
) -> FrontDoorLoadBalancerArgs | None:
    """Return the load balancer's arguments: the stack file's subnet and groups, or those of the created network; None
    if the exposure is `cluster`.
    """
    if exposure == "cluster":
        return None
    own = access.load_balancers.get(exposure)
    groups: list[pulumi.Input[str]] = [*given.security_group_ids]
    if not groups and own is not None and given.subnet_id is None:
        groups = [own.security_group_id]
    return {
        "public": exposure == "public",
        "subnet_id": given.subnet_id or (own.subnet_id if own else None),
        "security_group_ids": groups or None,
        "freeform_tags": dict(plan.tags.freeform) or None,
        "defined_tags": dict(plan.tags.defined) or None,
    }


def declare_routes(
    plan: Plan,
    gateway: GatewayPlan,
    access: ClusterIdentity,
    namespace: pulumi.Resource,
    opts: pulumi.ResourceOptions,
    units: Mapping[str, Sequence[pulumi.Resource]],
) -> dict[str, ModelRoute]:
    """Declare the Gateway, if the stack creates it, and the routes of the models behind the Gateway, each after Gateway
    and the model's units; return the routes by model.

    Raises:
        KitError: (when the outputs resolve) the cluster has no definitions of the Gateway API.
    """
    name = access.name_once_served(plan.namespace, DEFINITIONS, namespace)
    made = _declare_gateway(plan, gateway, name, access, opts)
    return {
        model.name: _declare_route(plan, gateway, model, name, after(opts, *made, *units[model.name]))
        for model in plan.models
        if model.behind_gateway
    }


def _declare_gateway(
    plan: Plan,
    gateway: GatewayPlan,
    namespace: pulumi.Input[str],
    access: ClusterIdentity,
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """Declare the Gateway, if the stack creates it."""
    created = gateway.created
    if created is None:
        return []
    return [
        Gateway(
            gateway.name,
            arguments(
                GatewayArgs,
                created,
                plan.release.router,
                namespace=namespace,
                provider=gateway.provider.name,
                gateway=gateway.name,
                listeners=_listeners(gateway, created),
                load_balancer=load_balancer_args(plan, created.exposure, LoadBalancer(), access),
                route_headers=_route_headers(plan) or None,
            ),
            opts,
        )
    ]


def _route_headers(plan: Plan) -> dict[str, list[str]]:
    """Return the values of each HTTP header by which the Gateway's routes select models, by the header's name."""
    headers: dict[str, list[str]] = {}
    for model in plan.models:
        for name, value in model.router.route.headers.items() if model.behind_gateway else ():
            headers.setdefault(name.lower(), []).append(value)
    return headers


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
    """Declare the route from the Gateway to a model."""
    return ModelRoute(
        f"{model.name}-{ADDRESSES['ModelRoute']}",
        route_args(plan, gateway, model, namespace),
        pulumi.ResourceOptions.merge(opts, taking_over(model, "ModelRoute")),
    )


def route_args(plan: Plan, gateway: GatewayPlan, model: ModelPlan, namespace: pulumi.Input[str]) -> ModelRouteArgs:
    """Return the arguments of the route from the Gateway to a model."""
    route = model.router.route
    return arguments(
        ModelRouteArgs,
        route,
        gateway,
        plan.release.router,
        namespace=namespace,
        model=model.name,
        units=[unit_name(plan, model, unit) for unit in model.units],
        provider=gateway.provider.name,
        gateway=gateway.name,
        gateway_namespace=gateway.namespace,
        hosts=route.hosts or None,
        headers=route.headers or None,
    )
