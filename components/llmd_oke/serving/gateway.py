"""Models behind a Gateway (Gateway API): the Gateway if the stack creates it, and the HTTPRoutes to InferencePools.

A Gateway calls an InferencePool's endpoint picker before it rewrites the path or host of a request. The routes
therefore rewrite neither.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

import pulumi
from llmd_base.errors import KitError

from llmd_oke.catalogue.releases import AwaitedDefinitions
from llmd_oke.catalogue.serving import GatewayProvider, ObjectTemplate, gateway_provider, gateway_provider_names
from llmd_oke.kubernetes_types import ObjectMeta
from llmd_oke.objects import Manifest, inputs, mapped, register_outputs, when_declared
from llmd_oke.serving import client_requests, labels
from llmd_oke.serving.manifests import ROUTER_S, declare, object_metadata, timeouts, waiting_for
from llmd_oke.serving.router import POOL_GROUP, service_name
from llmd_oke.serving.stack_front_door import FrontDoorLoadBalancerArgs, load_balancer_annotations

GROUP = "gateway.networking.k8s.io"

DEFINITIONS = AwaitedDefinitions(
    names=(f"gateways.{GROUP}", f"httproutes.{GROUP}"),
    established_timeout_s=60,
    remedy="Install the Gateway API and the gateway's provider (docs/how-to/put-models-behind-a-gateway.md).",
)
"""CustomResourceDefinitions that must be installed with the Gateway's implementation before the stack is deployed."""


class GatewayListenerArgs(TypedDict):
    """A listener of a Gateway."""

    name: str
    """Name of the listener."""
    port: int
    """Port number."""
    host: NotRequired[str | None]
    """Host name of the requests that the listener accepts; any if left out."""
    tls_secret: NotRequired[str | None]
    """Name of the Secret with the TLS certificate, in the same namespace; plain HTTP if left out."""


class GatewayArgs(TypedDict):
    """Arguments of a Gateway."""

    namespace: pulumi.Input[str]
    """Namespace of the Gateway, and of the HTTPRoutes that may attach to it."""
    provider: str
    """Name of the implementation, from the catalogue; it must be installed in the cluster."""
    gateway: str
    """Name of the Gateway."""
    class_name: NotRequired[str | None]
    """Name of the GatewayClass; the one that the implementation's documentation uses if left out."""
    listeners: Sequence[GatewayListenerArgs]
    """Listeners of the Gateway."""
    load_balancer: NotRequired[FrontDoorLoadBalancerArgs | None]
    """OCI network load balancer before the Gateway; only pods of the cluster can reach the Gateway if left out."""
    route_headers: NotRequired[Mapping[str, Sequence[str]] | None]
    """Headers by which the HTTPRoutes choose a model, with their values; none if left out."""
    largest_body_mib: NotRequired[int | None]
    """Largest body of a request in MiB; 32 if left out."""


class ModelRouteArgs(TypedDict):
    """Arguments of the routes from a Gateway to a model."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name of the model's objects: of the HTTPRoute for clients, and of the Service that leads to the Gateway."""
    units: Sequence[str]
    """Names of the InferencePools, among which the model's requests are divided evenly."""
    provider: str
    """Name of the Gateway's implementation, from the catalogue."""
    gateway: str
    """Name of the Gateway."""
    gateway_namespace: str
    """Namespace of the Gateway."""
    service_host: str
    """Host name of the Service before the Gateway's pods, which accepts requests for the model's own Service on port
    80."""
    listener: NotRequired[str | None]
    """Name of the listener for clients; any listener if left out."""
    cluster_listener: NotRequired[str | None]
    """Name of the listener that the model's own Service leads to; any listener if left out."""
    hosts: NotRequired[list[str] | None]
    """Host names of requests for this model; any if left out."""
    headers: NotRequired[dict[str, str] | None]
    """Headers, with their values, of requests for this model; none required if left out."""
    path: NotRequired[str | None]
    """Prefix of the paths of requests; `/v1` if left out."""
    timeout_s: NotRequired[int | None]
    """Timeout of a whole request in seconds, 0 for none; 300 if left out."""
    largest_body_mib: NotRequired[int | None]
    """Largest body of a request in MiB, if the implementation can limit it; 32 if left out."""


class Gateway(pulumi.ComponentResource):
    """A Gateway, the implementation's object with its parameters, and the policies that check requests."""

    name: pulumi.Output[str]
    """Name of the Gateway, known once it is programmed."""

    def __init__(self, name: str, args: GatewayArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Gateway", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        *parameters, gateway = gateway_manifests(args)
        read = [declare(f"{name}-parameters", manifest, child) for manifest in parameters]
        read += [declare(f"{name}-{policy['kind'].lower()}", policy, child) for policy in gateway_policies(args)]
        needed = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=read))
        self.name = when_declared(declare(name, gateway, needed), args["gateway"])
        register_outputs(self)


class ModelRoute(pulumi.ComponentResource):
    """HTTPRoutes from a Gateway to the InferencePools of a model, and the model's own Service, which leads to the
    Gateway.

    Declare it after the units, so that only ready units get requests.
    """

    url: pulumi.Output[str]
    """Base URL of the model inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: ModelRouteArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelRoute", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        policies = [declare(f"{name}-{policy['kind'].lower()}", policy, child) for policy in route_policies(args)]
        checked = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=policies))
        routes = [
            declare(f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}", manifest, checked)
            for manifest in route_manifests(args)
        ]
        needed = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=routes))
        host = when_declared(declare(name, model_service(args), needed), args["model"])
        namespace = pulumi.Output.from_input(args["namespace"])
        self.url = pulumi.Output.concat("http://", host, ".", namespace, ".svc.cluster.local")
        register_outputs(self)


def _provider(name: str) -> GatewayProvider:
    provider = gateway_provider(name)
    if provider is None:
        raise KitError(
            f"The catalogue has no gateway provider {name}.", f"Known: {', '.join(gateway_provider_names())}."
        )
    return provider


def gateway_manifests(args: GatewayArgs) -> list[Manifest]:
    """Return the implementation's object with the Gateway's parameters, if there is one, and the Gateway as the last
    element.

    Raises:
        KitError: the catalogue has no such provider.
    """
    provider, name = _provider(args["provider"]), args["gateway"]
    balancer = args.get("load_balancer")
    annotations = {} if balancer is None else load_balancer_annotations(balancer)
    marks = {
        "<gateway>": name,
        "<type>": "ClusterIP" if balancer is None else "LoadBalancer",
        "<annotations>": annotations,
    }
    metadata = object_metadata(name, args["namespace"])
    own: dict[str, str] = _filled(provider.gateway_annotations, marks)
    infrastructure: dict[str, Any] = {}
    if (template := provider.parameters) is not None:
        group = template.api_version.partition("/")[0]
        infrastructure["parametersRef"] = {"group": group, "kind": template.kind, "name": name}
    elif annotations:
        infrastructure["annotations"] = annotations
    spec = {
        "gatewayClassName": args.get("class_name") or provider.class_name,
        **({"infrastructure": infrastructure} if infrastructure else {}),
        "listeners": [_listener(listener) for listener in args["listeners"]],
    }
    gateway: Manifest = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Gateway",
        "metadata": {**metadata, "annotations": {**own, **waiting_for("Programmed")}},
        "spec": spec,
    }
    return [*([_object(template, metadata, marks)] if template else []), gateway]


def gateway_policies(args: GatewayArgs) -> list[Manifest]:
    """Return the policies that check all requests of a Gateway, if its implementation attaches such policies to
    Gateways.

    Raises:
        KitError: the catalogue has no such provider.
    """
    name, kept = args["gateway"], args.get("route_headers") or {}
    marks = {"<gateway>": name, **_request_marks(args.get("largest_body_mib"), kept)}
    metadata = object_metadata(name, args["namespace"])
    return [_object(template, metadata, marks) for template in _provider(args["provider"]).gateway_policies]


def route_policies(args: ModelRouteArgs) -> list[Manifest]:
    """Return the policies that check the requests of a model's routes, if the implementation attaches such policies to
    HTTPRoutes.

    Raises:
        KitError: the catalogue has no such provider.
    """
    targets = [{"group": GROUP, "kind": "HTTPRoute", "name": name} for name in _route_names(args)]
    kept = {name: [value] for name, value in (args.get("headers") or {}).items()}
    marks = {"<routes>": targets, **_request_marks(args.get("largest_body_mib"), kept)}
    metadata = _metadata(args, args["model"])
    return [_object(template, metadata, marks) for template in _provider(args["provider"]).route_policies]


def _request_marks(largest_body_mib: int | None, kept: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    largest_mib = largest_body_mib or client_requests.LARGEST_BODY_MIB
    return {
        "<program>": client_requests.gateway_program(kept),
        "<largest-body>": f"{largest_mib}Mi",
        "<largest-body-bytes>": largest_mib * 2**20,
    }


def _route_names(args: ModelRouteArgs) -> tuple[str, str]:
    """Return the names of the HTTPRoute for clients and of the HTTPRoute for the model's own Service."""
    return args["model"], f"{args['model']}-in-cluster"


def _listener(listener: GatewayListenerArgs) -> dict[str, Any]:
    host, secret = listener.get("host"), listener.get("tls_secret")
    certificate = {"group": "", "kind": "Secret", "name": secret}
    return {
        "name": listener["name"],
        "port": listener["port"],
        "protocol": "HTTPS" if secret else "HTTP",
        **({"hostname": host} if host else {}),
        **({"tls": {"mode": "Terminate", "certificateRefs": [certificate]}} if secret else {}),
        "allowedRoutes": {"namespaces": {"from": "Same"}},
    }


def route_manifests(args: ModelRouteArgs) -> list[Manifest]:
    """Return the HTTPRoutes for clients and for the model's own Service, and the implementation's policies on
    connections to each endpoint picker.

    Raises:
        KitError: the catalogue has no such provider.
    """
    policy, model, namespace = _provider(args["provider"]).picker_policy, args["model"], args["namespace"]
    for_clients, in_cluster = _route_names(args)
    names = [f"{model}{rest}" for rest in ("", ".<namespace>", ".<namespace>.svc", ".<namespace>.svc.cluster.local")]
    own = [mapped(namespace, lambda to, name=name: name.replace("<namespace>", to)) for name in names]
    return [
        *([_picker_policy(policy, args, unit) for unit in args["units"]] if policy else []),
        _route(args, for_clients, args.get("hosts") or [], args.get("headers") or {}, args.get("listener")),
        _route(args, in_cluster, own, {}, args.get("cluster_listener")),
    ]


def _route(
    args: ModelRouteArgs, name: str, hosts: Sequence[str], headers: Mapping[str, str], listener: str | None
) -> Manifest:
    path, timeout_s = args.get("path") or "/v1", args.get("timeout_s")
    match: dict[str, Any] = {"path": {"type": "PathPrefix", "value": path}}
    if headers:
        match["headers"] = [{"type": "Exact", "name": header, "value": value} for header, value in headers.items()]
    pools = [{"group": POOL_GROUP, "kind": "InferencePool", "name": unit, "weight": 1} for unit in args["units"]]
    parent = {
        "group": GROUP,
        "kind": "Gateway",
        "name": args["gateway"],
        "namespace": args["gateway_namespace"],
        **({"sectionName": listener} if listener else {}),
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(args, name),
        "spec": {
            "parentRefs": [parent],
            **({"hostnames": list(hosts)} if hosts else {}),
            "rules": [
                {
                    "matches": [match],
                    "backendRefs": pools,
                    "timeouts": {"request": f"{300 if timeout_s is None else timeout_s}s"},
                }
            ],
        },
    }


def model_service(args: ModelRouteArgs) -> Manifest:
    """Return the model's own Service inside the cluster, of type ExternalName. The Gateway recognises the model by the
    host name of the request.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(args, args["model"]),
        "spec": {"type": "ExternalName", "externalName": args["service_host"]},
    }


def _picker_policy(template: ObjectTemplate, args: ModelRouteArgs, unit: str) -> Manifest:
    name = service_name(unit)
    host = mapped(args["namespace"], lambda namespace: f"{name}.{namespace}.svc.cluster.local")
    return _object(template, _metadata(args, name), {"<picker>": host})


def _object(template: ObjectTemplate, metadata: Mapping[str, Any], marks: Mapping[str, Any]) -> Manifest:
    spec = _filled(template.spec, marks)
    return {"apiVersion": template.api_version, "kind": template.kind, "metadata": metadata, "spec": spec}


def _filled(value: Any, marks: Mapping[str, Any]) -> Any:
    """Return a value of the catalogue with its placeholders replaced."""
    if isinstance(value, dict):
        return {key: _filled(part, marks) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_filled(part, marks) for part in cast("list[Any]", value)]
    return marks.get(value, value) if isinstance(value, str) else value


def _metadata(args: ModelRouteArgs, name: str) -> ObjectMeta:
    return object_metadata(name, args["namespace"], {labels.MODEL: args["model"]})
