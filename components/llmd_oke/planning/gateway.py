"""Plan and checks of the Gateway in front of models, and of the models' routes."""

from collections.abc import Iterator

from llmd_base.errors import SET, Described, Problem

from llmd_oke.catalogue.serving import GatewayProvider, gateway_provider, gateway_provider_names
from llmd_oke.config import ModelConfig, StackConfig
from llmd_oke.config.gateway import CreatedGateway, ExistingGateway, Route
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.planning.plan import Advice, GatewayPlan, Plan

CLIENTS, CLUSTER = "clients", "cluster"
"""Names of the two listeners of a Gateway that the stack creates: for clients, and for the models' own Services."""

LOAD_BALANCER_IDLE_S = 360
"""Time in seconds after which OCI's network load balancer drops an idle TCP connection (Oracle, "Network Load Balancer:
Listeners").
"""

_PATH = "gateway"


def gateway(config: StackConfig) -> GatewayPlan | None:
    """Return the plan of a stack's Gateway; None if the stack has none, or its provider is not in the catalogue."""
    if (asked := config.gateway) is None or (provider := gateway_provider(asked.provider)) is None:
        return None
    if isinstance(asked, CreatedGateway):
        service = provider.created_service or provider.service
        namespace, service_namespace = config.namespace, None
        plain_on_80 = asked.tls is None and asked.port in {None, 80}  # the models' own Services use port 80
        listener, cluster_listener = CLIENTS, CLIENTS if plain_on_80 else CLUSTER
    else:
        service = asked.service.name if asked.service else provider.service
        namespace = asked.namespace or config.namespace
        service_namespace = asked.service.namespace if asked.service else None
        listener, cluster_listener = asked.listener, asked.cluster_listener
    return GatewayPlan(
        provider=provider,
        name=asked.name,
        namespace=namespace,
        listener=listener,
        cluster_listener=cluster_listener,
        service=(service or "").replace("<gateway>", asked.name),
        service_namespace=service_namespace or provider.namespace or namespace,
        created=asked if isinstance(asked, CreatedGateway) else None,
    )


def gateway_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of a stack's Gateway and of its models' routes."""
    behind = {i: model for i, model in enumerate(config.models) if model.router.mode == "gateway"}
    for i, model in enumerate(config.models):
        if model.router.mode != "gateway" and model.router.route != Route():
            why = f"with router.mode: {model.router.mode} there is no Gateway to attach a route to"
            yield Problem(f"models[{i}].router.route", SET, "nothing, or router.mode: gateway", why)
    asked = config.gateway
    if asked is None:
        for i in behind:
            accepted = "a Gateway, of mode existing or create, or another router.mode"
            yield Problem(_PATH, None, accepted, f"models[{i}] is to be behind one")
        return
    if not behind:
        why = "no model has router.mode: gateway"
        yield Problem(_PATH, SET, "nothing, or router.mode: gateway of a model", why)
    provider = gateway_provider(asked.provider)
    if provider is None:
        accepted = did_you_mean(asked.provider, gateway_provider_names())
        yield Problem(f"{_PATH}.provider", asked.provider, accepted, "the catalogue has no such entry")
    elif isinstance(asked, ExistingGateway) and asked.service is None and provider.service is None:
        why = f"what {provider.name} calls the Service of a Gateway can't be told beforehand"
        yield Problem(f"{_PATH}.service", None, "name of the Service before the Gateway's pods", why)
    created = isinstance(asked, CreatedGateway)
    if provider is not None and not asked.unchecked_requests and not _checks(provider, created=created):
        why = f"{provider.name} lets all that clients say pass to pickers and servers at a Gateway of mode {asked.mode}"
        accepted = "the word accepted, if only trusted clients reach it; another provider; or router.mode: standalone"
        yield Problem(f"{_PATH}.uncheckedRequests", None, accepted, why)
    if isinstance(asked, CreatedGateway):
        yield from _listener_problems(asked)
        for i, model in enumerate(config.models):  # providers name Deployment and Service after it
            if asked.name == model.object_name:
                yield Problem(f"{_PATH}.name", asked.name, "another name", f"objects of models[{i}] have it")
    if config.front_door is not None:
        for i in behind:
            why = f"the routers of models[{i}] take no requests themselves, the Gateway does"
            yield Problem("frontDoor", SET, "nothing, or router.mode: standalone", why)
    yield from _route_problems(behind)


def _checks(provider: GatewayProvider, *, created: bool) -> bool:
    """Tell whether a Gateway rejects fields and headers that are reserved for the router."""
    return bool(provider.route_policies) or (created and bool(provider.gateway_policies))


def _listener_problems(created: CreatedGateway) -> Iterator[Problem]:
    if created.tls is not None and created.host is None:
        yield Problem(f"{_PATH}.host", None, "the name that the certificate is for", "the key is missing")
    if created.host is not None and created.tls is None:
        why = "a listener without TLS takes requests for the models' own Services too, whatever their host"
        yield Problem(f"{_PATH}.host", created.host, "nothing, or router.route.hosts of a model", why)
    if created.tls is not None and created.port == 80:
        why = "the models' own Services lead to port 80, which has no TLS"
        yield Problem(f"{_PATH}.port", 80, "another port, or nothing for 443", why)


def _route_problems(behind: dict[int, ModelConfig]) -> Iterator[Problem]:
    """Yield a problem for two routes with the same conditions: a Gateway uses the older one, and the other model gets
    no requests.
    """
    first: dict[tuple[object, ...], int] = {}
    for i, model in behind.items():
        route = model.router.route
        yield from _repetitions(f"models[{i}].router.route", route)
        for host in route.hosts or (None,):
            headers = tuple(sorted((name.lower(), value) for name, value in route.headers.items()))
            key = (host, headers, route.path.rstrip("/"))  # a final slash doesn't change a path prefix
            if (other := first.setdefault(key, i)) != i:
                why = f"the same requests are for models[{other}] already"
                named = [f"{name}: {value}" for name, value in route.headers.items()]
                shown = ", ".join([*(route.hosts or ("any host",)), *named, f"path {route.path}"])
                yield Problem(f"models[{i}].router.route", Described(shown), "hosts or headers of its own", why)
                break


def _repetitions(path: str, route: Route) -> Iterator[Problem]:
    """Yield a problem for repeated hosts of a route, and for headers whose names differ only in case."""
    for j, host in enumerate(route.hosts):
        if (first := route.hosts.index(host)) < j:
            yield Problem(f"{path}.hosts[{j}]", host, "each host once", f"hosts[{first}] is the same")
    names: dict[str, str] = {}
    for name in route.headers:
        if (other := names.setdefault(name.lower(), name)) != name:
            yield Problem(f"{path}.headers.{name}", name, "each header once", f"{other} is the same header")


def provider_limit_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for settings that the Gateway's provider doesn't support. Rehearsals don't check this: in them,
    another provider that supports all settings takes the Gateway's place.
    """
    provider = gateway_provider(config.gateway.provider) if config.gateway else None
    most = provider.pools_per_route if provider else None
    if provider is None or most is None:
        return
    for i, model in enumerate(config.models):
        if model.router.mode == "gateway" and model.copies > most:
            why = f"{provider.name} sends requests of one route to {most} InferencePool at most, and each copy has one"
            yield Problem(f"models[{i}].copies", model.copies, f"{most}, or another provider", why)


def _silence_advice(plan: Plan, door: GatewayPlan) -> Iterator[Advice]:
    """Yield advice on long answers that a load balancer may cut, if nothing makes the Gateway probe idle
    connections.
    """
    if door.created is not None and door.provider.gateway_policies:
        return
    for i, model in enumerate(plan.models):
        limit_s = model.router.route.timeout_s
        if model.behind_gateway and (limit_s == 0 or limit_s > LOAD_BALANCER_IDLE_S):
            text = (
                f"OCI's network load balancer forgets a connection that says nothing for {LOAD_BALANCER_IDLE_S} s, and"
                f" nothing of the kit's has {door.provider.name} probe it: answers that aren't streams are lost then"
            )
            yield Advice(f"models[{i}].router.route.timeoutS", text)


def gateway_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on requirements of the Gateway's provider, and on requests that the Gateway doesn't reject."""
    door = plan.gateway
    if door is None:
        return
    text = f"{door.provider.name} knows InferencePools with {door.provider.inference_pools} ({door.provider.source})"
    yield Advice(f"{_PATH}.provider", text)
    yield from _silence_advice(plan, door)
    provider, on_gateway = door.provider.name, bool(door.provider.gateway_policies)
    if _checks(door.provider, created=door.created is not None):
        if door.provider.route_policies:
            return
        text = (
            f"what {provider} refuses of clients' requests was never tried with it: after an update, see that one with"
            " kv_transfer_params is answered with 400"
        )
        yield Advice(f"{_PATH}.provider", text)
        return
    remedy = "a Gateway of mode create, " if on_gateway else ""
    text = (
        f"{provider} lets all that clients say pass to pickers and servers: fields such as kv_transfer_params, priority"
        " and cache_salt, and headers such as x-data-parallel-rank, by which vLLM takes hosts, ranks and others' KV"
        f" cache; let trusted clients alone reach it, or have {remedy}provider envoy-gateway, a frontDoor, or the"
        " routers' own Envoys, which refuse them"
    )
    yield Advice(f"{_PATH}.provider", text)
    if not plan.release.routing_sidecar.ssrf_protection and any(
        model.behind_gateway and model.topology.disaggregated for model in plan.models
    ):
        text = (
            f"the routing sidecar of {plan.router_release} sends prompts wherever a client's headers say, which this"
            " Gateway doesn't take out; let known clients alone reach it"
        )
        yield Advice(_PATH, text)
