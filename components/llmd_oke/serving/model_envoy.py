"""Envoy's configuration of a model's front door, with the listeners and clusters that the stack's front door has too.

Field names are those of Envoy's API v3; a test loads the bootstrap into the real Envoy.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmd_oke.serving import client_access, client_requests, envoy
from llmd_oke.serving.envoy_bounds import answers_bounds, bounds, process_bounds

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


@dataclass(frozen=True)
class Upstream:
    """Host name and port that serve requests. Upstreams with weights share the requests in proportion to the weights,
    at equal load. `subsets` are metadata by which routes choose among the upstreams of a cluster.
    """

    host: str
    port: int
    weight: int | None = None
    subsets: Mapping[str, str] = field(default_factory=dict[str, str])


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
    """Return the settings of Envoy's HTTP connection manager that leave the `Server` header of responses as it is."""
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
    """Return the Envoy cluster whose endpoints are units (servers with a router of their own). Of two random units, the
    one with fewer requests gets the next request. A failing unit is ejected for a second, but never all units at once.

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
    """Return Envoy's listener for readiness probes and metrics."""
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
    """Return the Envoy filter that forwards requests to the upstream; it must be the last filter."""
    return envoy.http_filter("router", "router", "Router", suppress_envoy_headers=True)


def local_cluster(name: str, port: int) -> Config:
    """Return an Envoy cluster whose only endpoint is a port of the same pod."""
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
