"""The address of one model: Envoys before the routers of its units, or a plain Service if there are no routers.

A Service balances connections, so that a client with one connection would use one unit; the Envoys balance requests
over the units by load. Field names of the bootstrap are those of Envoy's API v3; a test loads the bootstrap into the
real Envoy.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.kubernetes_types import Container, ObjectMeta, PodSpec, TopologySpreadConstraint, Volume
from llmd_oke.objects import (
    PART_OF,
    Manifest,
    OverrideArgs,
    ReleaseRef,
    after,
    inputs,
    register_outputs,
    resolve_release,
    when_declared,
)
from llmd_oke.planning.placement import FRONT_DOOR_REPLICAS, FRONT_DOOR_REQUESTS, FRONT_DOOR_THREADS
from llmd_oke.serving import client_access, client_requests, envoy, labels, network_policies
from llmd_oke.serving.envoy_bounds import answers_bounds, bounds, process_bounds
from llmd_oke.serving.manifests import RESTRICTED_CONTAINER, ROUTER_S, declare, object_metadata, timeouts

Config = dict[str, object]
"""A message of Envoy's API as a dict."""

REQUEST_PORT = 8081
READY_PORT = 19001
"""Port of `/ready` and `/stats/prometheus`."""

DRAIN_PORT = 19002
"""Port of `/drain`, which answers once no request is under way; the kubelet calls it before the pod's termination."""

ADMIN_PORT = 19000
"""Port of Envoy's admin interface, which listens on the pod's loopback address only."""

DRAIN_LIMIT_S = 300
"""Longest time in seconds that requests may take after the pod's termination has begun; chosen by this project. 256
tokens at the slowest target take 13 s."""

_DRAIN_LEAST_S = 5
"""Shortest time in seconds that a terminating pod still accepts requests, in which nodes update their endpoints; chosen
by this project."""

IDLE_TIMEOUT_S = 3600
"""Longest time in seconds that a request may pass without a byte: in a queue, in prefill, or while an unstreamed answer
is generated; chosen by this project."""

_CONNECT_TIMEOUT_S = 5
_RETRIES = 3
"""Number of retries. Their pauses add up to half a second on average, in which an endpoint picker on a busy node finds
a unit's new servers while units are updated one after the other."""

_HOST_ATTEMPTS = 64
"""Number of random choices of a unit until one is found that hasn't refused the request. The choice must be random: a
unit that refuses at once has the fewest requests, so that a choice among all units (`FULL_SCAN`) would always return
it."""

_MOST = 40000
"""Limit of concurrent connections and requests, as in the Envoy of the router's chart."""

_DRAIN = """
function envoy_on_request(handle)
  local function admin(method, path)
    local headers = {[":method"] = method, [":path"] = path, [":authority"] = "admin"}
    local _, body = handle:httpCall("admin", headers, "", 1000)
    return body or ""
  end
  admin("POST", "/healthcheck/fail")
  for second = 1, %(limit)d do
    handle:httpCall("second", {[":method"] = "GET", [":path"] = "/second", [":authority"] = "drain"}, "", 5000)
    local active = admin("GET", "/stats?filter=^http.requests.downstream_rq_active$")
    if second >= %(least)d and string.match(active, ": 0%%s*$") then break end
  end
end
"""
"""Lua code that fails the health check, so that each response closes its connection, and waits until no request is
under way."""

DEFAULT_READY_TIMEOUT_S = 600

CONFIG_FOLDER = "/etc/envoy"
CONFIG_FILE = "envoy.yaml"

_NOBODY = 65532
"""User ID of `nonroot` in distroless images such as Envoy's."""

_GRACE_S = DRAIN_LIMIT_S + 15
_STUCK_GRACE_S = 10
"""Grace period in seconds after a failed liveness probe: an Envoy that accepts no connections has no requests to drain.
"""


@dataclass(frozen=True)
class Upstream:
    """Host name and port that serve requests. Upstreams with weights share the requests in proportion to the weights,
    at equal load. `subsets` are metadata by which routes choose among the upstreams of a cluster.
    """

    host: str
    port: int
    weight: int | None = None
    subsets: Mapping[str, str] = field(default_factory=dict[str, str])


class FrontDoorArgs(TypedDict):
    """Arguments of a model's front door."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    release: ReleaseRef
    """llm-d release of the catalogue, which names Envoy's image."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    model: str
    """Name of the Service, and value of the label `llmd-oke/model` on all objects."""
    routers: Sequence[str]
    """Names of the units' router Services, in the same namespace, which accept requests on port 80."""
    holds_back: NotRequired[bool | None]
    """Whether the routers queue requests while servers are saturated. Requests that they refuse are then not retried;
    false if left out."""
    session_headers: NotRequired[list[str] | None]
    """Headers by which the routers keep a client's session at one server; none if left out."""


class FrontDoorPortArgs(TypedDict):
    """Port on which the front door of a stack accepts requests for one model from inside the cluster."""

    version: pulumi.Input[str]
    """Value of the label `llmd-oke/front-door` on the front door's Envoys."""
    port: int
    """Container port of the Envoys."""


class ModelEndpointArgs(TypedDict):
    """Arguments of a model's endpoint."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name of the Service, and value of the label `llmd-oke/model` on all objects."""
    ready_timeout_s: NotRequired[int | None]
    """Limit in seconds of the wait until the Service has ready pods; 600 if left out."""
    front_door: NotRequired[FrontDoorPortArgs | None]
    """Port of the stack's front door that the Service leads to; the Service leads to the model's servers if left out.
    """


class FrontDoor(pulumi.ComponentResource):
    """Two Envoys that balance requests over a model's units, and their Service.

    Declare it after the units, so that units are deleted only after the Envoys that use them. When the units change,
    new Envoys are created first, then the Service selects them, then the old Envoys drain and end.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: FrontDoorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:FrontDoor", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        units = pulumi.ResourceOptions(depends_on=opts.depends_on if opts else None)
        config = config_map(args)
        key = f"{name}-{config['metadata']['name'].rsplit('-', 1)[1]}"
        declare(name, disruption_budget(args), child)
        declare(name, network_policy(args), child)
        read = declare(key, config, child)
        pods = declare(key, deployment(args), after(pulumi.ResourceOptions.merge(child, units), read))
        declared = declare(name, _service(args), after(child, pods))
        namespace = pulumi.Output.from_input(args["namespace"])
        host = when_declared(declared, args["model"])
        self.url = pulumi.Output.concat("http://", host, ".", namespace, ".svc.cluster.local")
        register_outputs(self)


class ModelEndpoint(pulumi.ComponentResource):
    """A Service that balances connections over the servers of all units of a model, as the published baseline does, or
    that leads to the front door of the stack.

    Declare it independently of the units: Pulumi's Kubernetes provider waits ten seconds for every Service to settle.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: ModelEndpointArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelEndpoint", name, inputs(self, args), opts)
        limits = timeouts(args.get("ready_timeout_s") or DEFAULT_READY_TIMEOUT_S)
        declared = declare(name, endpoint_service(args), pulumi.ResourceOptions(parent=self, custom_timeouts=limits))
        namespace = pulumi.Output.all(args["namespace"], declared.urn).apply(lambda values: values[0])
        self.url = pulumi.Output.concat("http://", args["model"], ".", namespace, ".svc.cluster.local")
        register_outputs(self)


def endpoint_service(args: ModelEndpointArgs) -> Manifest:
    """Return the Service of a `ModelEndpoint`."""
    model, door = args["model"], args.get("front_door")
    selector: Mapping[str, pulumi.Input[str]] = labels.model_selector(model)
    if door is not None:
        selector = {**labels.stack_front_door_selector(), labels.FRONT_DOOR: door["version"]}
    port = SERVER_PORT if door is None else door["port"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": model,
            "namespace": args["namespace"],
            "labels": {**PART_OF, labels.MODEL: model},
        },
        "spec": {
            "type": "ClusterIP",
            "selector": selector,
            "ports": [{"name": "http", "port": 80, "targetPort": port, "protocol": "TCP"}],
        },
    }


def version(args: FrontDoorArgs) -> str:
    """Return a digest of Envoy's bootstrap, which Envoy reads only at its start."""
    return hashlib.sha256(_text(args, "namespace").encode()).hexdigest()[:8]


def config_map(args: FrontDoorArgs) -> Manifest:
    """Return the ConfigMap with Envoy's bootstrap."""
    text = pulumi.Output.from_input(args["namespace"]).apply(lambda namespace: _text(args, namespace))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(args, _versioned_name(args)),
        "data": {CONFIG_FILE: text},
    }


def _text(args: FrontDoorArgs, namespace: str) -> str:
    sessions = tuple(args.get("session_headers") or ())
    return _bootstrap(tuple(args["routers"]), namespace, bool(args.get("holds_back")), sessions)


@cache
def _bootstrap(routers: tuple[str, ...], namespace: str, refusals_last: bool, sessions: tuple[str, ...]) -> str:
    hosts = [f"{router}.{namespace}.svc.cluster.local" for router in routers]
    return bootstrap(hosts, 80, refusals_last=refusals_last, sessions=sessions)


def deployment(args: FrontDoorArgs) -> Manifest:
    """Return the Deployment of a model's Envoys."""
    name = _versioned_name(args)
    return envoys(
        _metadata(args, name),
        labels.front_door_selector(args["model"], version(args)),
        resolve_release(args["release"], args.get("override")).proxy.image.pinned,
        {"http": REQUEST_PORT},
        {"config": (CONFIG_FOLDER, {"configMap": {"name": name}})},
    )


def envoys(
    metadata: ObjectMeta,
    chosen: dict[str, str],
    image: str,
    ports: Mapping[str, int],
    volumes: Mapping[str, tuple[str, Volume]],
) -> Manifest:
    """Return the Deployment of a front door's Envoys, which are spread over nodes and zones.

    Args:
        metadata: metadata of the Deployment.
        chosen: labels that select the Deployment's pods.
        image: image of Envoy.
        ports: container ports for requests, by name.
        volumes: mount path and source of each volume, by the volume's name; the volume `config` contains the bootstrap.
    """
    spread: list[TopologySpreadConstraint] = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": chosen},
        }
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    ]
    pod: PodSpec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "topologySpreadConstraints": spread,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(image, ports, {name: folder for name, (folder, _) in volumes.items()})],
        "volumes": [{**source, "name": name} for name, (_, source) in volumes.items()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": FRONT_DOOR_REPLICAS,
            "selector": {"matchLabels": chosen},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {**PART_OF, **chosen}}, "spec": pod},
        },
    }


def _container(image: str, ports: Mapping[str, int], folders: Mapping[str, str]) -> Container:
    """Return the container of Envoy. It is unready from the call of `/drain` on; its liveness probe is a TCP
    connection.
    """
    requests = FRONT_DOOR_REQUESTS
    return {
        "name": "envoy",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["envoy"],
        "args": [
            *("--config-path", f"{CONFIG_FOLDER}/{CONFIG_FILE}"),
            *("--log-level", "warn"),
            *("--concurrency", str(FRONT_DOOR_THREADS)),
            "--disable-hot-restart",
        ],
        "ports": [
            *({"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()),
            {"name": "metrics", "containerPort": READY_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": {"cpu": str(requests.cpus), "memory": f"{requests.memory_gib}Gi"},
            "limits": {"memory": f"{bounds().memory_limit_mib}Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "metrics"}, "periodSeconds": 2, "failureThreshold": 2},
        "startupProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {
            "tcpSocket": {"port": "metrics"},
            "periodSeconds": 10,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": _STUCK_GRACE_S,
        },
        "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": DRAIN_PORT}}},
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()],
    }


def _service(args: FrontDoorArgs) -> Manifest:
    """Return the Service of the model. Pulumi doesn't wait for its endpoints, since it is declared after the Envoys are
    ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_metadata(args, args["model"]), "annotations": {"pulumi.com/skipAwait": "true"}},
        "spec": {
            "type": "ClusterIP",
            "selector": labels.front_door_selector(args["model"], version(args)),
            "ports": [{"name": "http", "port": 80, "targetPort": REQUEST_PORT, "protocol": "TCP"}],
        },
    }


def disruption_budget(args: FrontDoorArgs) -> Manifest:
    """Return the PodDisruptionBudget by which draining nodes evicts one Envoy at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(args, _name(args)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.front_door_selector(args["model"])}},
    }


def network_policy(args: FrontDoorArgs) -> Manifest:
    """Return the network policy of the Envoys: any pod may send requests, and measuring pods and monitoring may read
    metrics. Only the pod's own node, whose connections network policies never block, can reach `/drain`.
    """
    return network_policies.policy(
        _metadata(args, _name(args)),
        labels.front_door_selector(args["model"]),
        [
            {"ports": network_policies.tcp_ports(REQUEST_PORT)},
            {"ports": network_policies.tcp_ports(READY_PORT), **network_policies.readers([])},
        ],
        network_policies.front_door_destinations(),
    )


def _metadata(args: FrontDoorArgs, name: str) -> ObjectMeta:
    return object_metadata(name, args["namespace"], {labels.MODEL: args["model"]})


def _name(args: FrontDoorArgs) -> str:
    return f"{args['model']}-front-door"


def _versioned_name(args: FrontDoorArgs) -> str:
    return f"{_name(args)}-{version(args)}"


def bootstrap(upstreams: Sequence[str], port: int, *, refusals_last: bool = False, sessions: Sequence[str] = ()) -> str:
    """Return Envoy's bootstrap as JSON, which is valid YAML.

    Args:
        upstreams: host names of the units' routers.
        port: port of the routers.
        refusals_last: whether requests that a router refuses are not retried.
        sessions: headers by which the routers keep a client's session at one server.
    """
    requests = requests_listener("requests", REQUEST_PORT, "units", refusals_last=refusals_last, sessions=sessions)
    config: Config = {
        "admin": {"address": envoy.socket_address("127.0.0.1", ADMIN_PORT), "ignore_global_conn_limit": True},
        **process_bounds(bounds().memory_limit_mib),
        "static_resources": {
            "listeners": [requests, ready_listener(), drain_listener()],
            "clusters": [
                units_cluster("units", [Upstream(host, port) for host in upstreams]),
                local_cluster("admin", ADMIN_PORT),
                local_cluster("second", DRAIN_PORT),
            ],
        },
    }
    return json.dumps(config, indent=1)


def requests_listener(
    name: str,
    port: int,
    cluster: str,
    *,
    refusals_last: bool = False,
    sessions: Sequence[str] = (),
    **routes: object,
) -> Config:
    """Return the listener that accepts requests for one model.

    Args:
        name: name of the listener.
        port: port of the listener.
        cluster: cluster that the requests go to.
        refusals_last: whether requests that an upstream refuses are not retried.
        sessions: headers by which the routers keep a client's session at one server.
        **routes: further settings of the route configuration.
    """
    host: Config = {
        "name": "model",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route_to(cluster, refusals_last=refusals_last)}],
    }
    config = {"name": "requests", "virtual_hosts": [host], **routes}
    return _listener(
        name,
        port,
        _manager(
            "requests",
            config,
            [client_access.bodies_filter(), *client_requests.filters(sessions=sessions)],
            **connection_settings(),
        ),
    )


def route_to(cluster: str, *, refusals_last: bool = False) -> Config:
    """Return the route action to a cluster. A response may take any time, as long as bytes keep coming. Only the
    request is buffered, while it may have to be retried. With `refusals_last`, requests that flow control has refused
    aren't retried, since retries would add to the load of saturated servers.
    """
    return {
        "cluster": cluster,
        "timeout": "0s",
        "idle_timeout": f"{IDLE_TIMEOUT_S}s",
        "retry_policy": _retry_policy(refusals_last=refusals_last),
    }


def connection_settings() -> Config:
    """Return the settings by which Envoy keeps the `Server` header of responses."""
    return {"server_header_transformation": "PASS_THROUGH"}


def _retry_policy(*, refusals_last: bool) -> Config:
    """Return the policy that retries a request at another unit, if the request certainly did no work or was refused
    before the first byte of its response.

    Endpoint pickers without a server to pick refuse with 503, or with 429 where only decode servers are missing
    (observed with v0.7.1). A stream that has begun already has its status, so that it is never retried.
    """
    unsent = "connect-failure,refused-stream,reset-before-request"
    refused = {"retry_on": f"{unsent},retriable-status-codes", "retriable_status_codes": [429, 503]}
    return {
        **({"retry_on": unsent} if refusals_last else refused),
        "num_retries": _RETRIES,
        "retry_host_predicate": [envoy.previous_hosts()],
        "host_selection_retry_max_attempts": _HOST_ATTEMPTS,
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "0.5s"},
    }


def units_cluster(name: str, upstreams: Sequence[Upstream], most: int | None = None) -> Config:
    """Return the cluster of units. Of two random units, the one with fewer requests gets the next request. A failing
    unit is ejected for a second, but never all units at once.

    The health check is a TCP connection, which a Service without ready pods refuses; an HTTP request would be routed to
    servers and counted. Ejection lasts only a second: when units are updated one by one, the next update starts as soon
    as the unit before is ready. At most `most` requests may be under way.
    """
    thresholds = {
        "max_connections": _MOST,
        "max_pending_requests": _MOST,
        "max_requests": most or _MOST,
        "retry_budget": {"budget_percent": {"value": 100}},  # a unit that refuses at once has the fewest requests
    }
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
        **answers_bounds(),
        "load_assignment": _endpoints(name, upstreams),
        "load_balancing_policy": _balancing(sorted({key for upstream in upstreams for key in upstream.subsets})),
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "circuit_breakers": {"thresholds": [thresholds]},
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "5s",
                "no_traffic_interval": "5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "tcp_health_check": {},
            }
        ],
        "outlier_detection": {
            "interval": "1s",
            "base_ejection_time": "1s",
            "max_ejection_time": "1s",
            "max_ejection_percent": 100,
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_local_origin_success_rate": 0,
            "consecutive_gateway_failure": 3,
            "enforcing_consecutive_gateway_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
        },
    }


def _balancing(subset_keys: Sequence[str]) -> Config:
    least = _policy("least_request", "least_request.v3.LeastRequest", choice_count=2)
    if not subset_keys:
        return least
    selectors = [{"keys": [key]} for key in subset_keys]
    return _policy("subset", "subset.v3.Subset", subset_selectors=selectors, subset_lb_policy=least)


def _policy(name: str, kind: str, **settings: object) -> Config:
    extension = {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": {**typed(f"load_balancing_policies.{kind}"), **settings},
    }
    return {"policies": [{"typed_extension_config": extension}]}


def ready_listener() -> Config:
    """Return the listener for readiness and Envoy's metrics."""
    host: Config = {
        "name": "metrics",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/stats/prometheus"}, "route": {"cluster": "admin"}}],
    }
    path = {"name": ":path", "string_match": {"exact": "/ready"}}
    health = envoy.http_filter("health_check", "health_check", "HealthCheck", pass_through_mode=False, headers=[path])
    return _listener("ready", READY_PORT, _manager("ready", {"name": "ready", "virtual_hosts": [host]}, [health]))


def drain_listener() -> Config:
    """Return the listener for `/drain`, which answers once no request is under way, and `/second`, which answers after
    a second and is called by the Lua code of `/drain`.

    Envoy ends immediately on SIGTERM, and its image has no shell for a preStop command.
    """
    code = _DRAIN % {"limit": DRAIN_LIMIT_S, "least": _DRAIN_LEAST_S}
    lua = envoy.http_filter("lua", "lua", "Lua", default_source_code={"inline_string": code})
    fault = envoy.http_filter(
        "fault",
        "fault",
        "HTTPFault",
        delay={"fixed_delay": "1s", "percentage": {"numerator": 100}},
        headers=[{"name": ":path", "string_match": {"exact": "/second"}}],
    )
    answer = {"status": 200}
    host: Config = {
        "name": "drain",
        "domains": ["*"],
        "routes": [
            {
                "match": {"path": "/second"},
                "direct_response": answer,
                "typed_per_filter_config": {
                    "envoy.filters.http.lua": typed("filters.http.lua.v3.LuaPerRoute") | {"disabled": True}
                },
            },
            {"match": {"path": "/drain"}, "direct_response": answer},
        ],
    }
    return _listener("drain", DRAIN_PORT, _manager("drain", {"name": "drain", "virtual_hosts": [host]}, [lua, fault]))


def _manager(name: str, routes: Config, filters: Sequence[Config], **settings: object) -> Config:
    return envoy.connection_manager(
        stat_prefix=name, route_config=routes, http_filters=[*filters, router_filter()], **settings
    )


def _listener(name: str, port: int, manager: Config) -> Config:
    return envoy.listener(name, "0.0.0.0", port, manager)  # noqa: S104 - a pod's own address


def router_filter() -> Config:
    """Return the filter that forwards requests to the upstream, which must be the last filter."""
    return envoy.http_filter("router", "router", "Router", suppress_envoy_headers=True)


def local_cluster(name: str, port: int) -> Config:
    """Return a cluster with one port of the same pod."""
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _endpoints(name, [Upstream("127.0.0.1", port)]),
    }


def _endpoints(name: str, upstreams: Sequence[Upstream]) -> Config:
    endpoints = [
        {"endpoint": {"address": envoy.socket_address(to.host, to.port)}}
        | ({} if to.weight is None else {"load_balancing_weight": to.weight})
        | ({"metadata": {"filter_metadata": {"envoy.lb": dict(to.subsets)}}} if to.subsets else {})
        for to in upstreams
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def typed(name: str) -> Config:
    """Return the dict `{"@type": …}` of a message of Envoy's extensions."""
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}"}
