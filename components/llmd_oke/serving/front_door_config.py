"""Envoy's bootstrap of a model's front door: which requests go where, what is tried again, and how it ends.

Field names are those of Envoy's API v3; the whole is read by the real Envoy in a test.
"""

import json
from collections.abc import Sequence

Config = dict[str, object]
"""A message of Envoy's API."""

REQUEST_PORT = 8081
READY_PORT = 19001
"""Answers `/ready` and `/stats/prometheus`."""

DRAIN_PORT = 19002
"""Answers `/drain` when the last request has its answer; for the kubelet, before it ends the pod."""

_ADMIN_PORT = 19000

DRAIN_LIMIT_S = 300
"""How long requests may still take when their pod is told to end; ours. 256 tokens of the slowest target take 13 s."""

_DRAIN_LEAST_S = 5
"""How long a pod that ends still takes requests: as long as nodes may need to learn that it does; ours."""

IDLE_TIMEOUT_S = 3600
"""How long a request may stay without a byte: in a queue, in prefill, or while a whole answer is generated; ours."""

_CONNECT_TIMEOUT_S = 5
_RETRIES = 2

_HOST_ATTEMPTS = 64
"""How often a unit is chosen until it is one that has not refused the request. The choice must be by chance for that: a
unit that refuses at once has the fewest requests, and Envoy's choice among all (`FULL_SCAN`) would always be it."""

_MOST = 40000
"""Connections and requests at a time, as in the Envoy of the router's chart."""

DESTINATION_HEADERS = (
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
)
"""Headers that the router's Envoy, the endpoint picker or the routing sidecar take for addresses (llm-d-router v0.10.0,
pkg/sidecar/proxy; GAIE, pkg/epp/metadata). They are the router's to set, never a client's."""

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
"""Fails the health check, so that every answer closes its connection, and waits until no request is under way."""


def bootstrap(upstreams: Sequence[str], port: int) -> str:
    """Envoy's bootstrap, as JSON, which is YAML too.

    Args:
        upstreams: host names of what answers requests, one for each unit.
        port: their port.
    """
    config: Config = {
        "admin": {"address": _address("127.0.0.1", _ADMIN_PORT)},
        "static_resources": {
            "listeners": [_requests(), _ready(), _draining()],
            "clusters": [
                _units(upstreams, port),
                _local("admin", _ADMIN_PORT),
                _local("second", DRAIN_PORT),
            ],
        },
    }
    return json.dumps(config, indent=1)


def _requests() -> Config:
    """Whole answers and streams alike may take as long as bytes come now and then. Nothing is held back: only the
    request is kept, while it may have to be sent again."""
    route = {
        "cluster": "units",
        "timeout": "0s",
        "idle_timeout": f"{IDLE_TIMEOUT_S}s",
        "retry_policy": _retry_policy(),
    }
    host: Config = {
        "name": "model",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
        "request_headers_to_remove": list(DESTINATION_HEADERS),
    }
    manager = _manager("requests", host, [])
    manager |= {
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "server_header_transformation": "PASS_THROUGH",
        "common_http_protocol_options": {
            "idle_timeout": f"{IDLE_TIMEOUT_S}s",
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
    }
    return _listener("requests", REQUEST_PORT, manager)


def _retry_policy() -> Config:
    """What surely did no work, or was refused before its first byte, is tried with another unit.

    Endpoint pickers without a server to pick refuse with 503, or with 429 where decode servers alone are missing (seen
    of v0.7.1). A stream that has begun has its status, so that it is never sent again.
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [429, 503],
        "num_retries": _RETRIES,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": _typed("retry.host.previous_hosts.v3.PreviousHostsPredicate"),
            }
        ],
        "host_selection_retry_max_attempts": _HOST_ATTEMPTS,
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }


def _units(upstreams: Sequence[str], port: int) -> Config:
    """The units: of two by chance the one with fewer requests. One that fails is left out for a while, never all.

    Whether a unit is there is asked by connecting to it: a Service without ready pods refuses. A request would be
    routed to its servers and counted. It is left out for a second only: when units change one by one, the next one goes
    as soon as this one is back.
    """
    thresholds = {
        "max_connections": _MOST,
        "max_pending_requests": _MOST,
        "max_requests": _MOST,
        "retry_budget": {"budget_percent": {"value": 100}},  # a unit that refuses at once has the fewest requests
    }
    return {
        "name": "units",
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
        "load_assignment": _endpoints("units", [(host, port) for host in upstreams]),
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": _typed("load_balancing_policies.least_request.v3.LeastRequest")
                        | {"choice_count": 2},
                    }
                }
            ]
        },
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


def _ready() -> Config:
    """Readiness, and Envoy's metrics."""
    host: Config = {
        "name": "metrics",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/stats/prometheus"}, "route": {"cluster": "admin"}}],
    }
    health: Config = {
        "name": "envoy.filters.http.health_check",
        "typed_config": _typed("filters.http.health_check.v3.HealthCheck")
        | {"pass_through_mode": False, "headers": [{"name": ":path", "string_match": {"exact": "/ready"}}]},
    }
    return _listener("ready", READY_PORT, _manager("ready", host, [health]))


def _draining() -> Config:
    """The end of a pod: `/drain` answers when all requests have their answer. `/second` takes a second, for `/drain`.

    Envoy itself ends at once when it is told to, and its image has no shell that a hook could run.
    """
    lua = _typed("filters.http.lua.v3.Lua") | {
        "default_source_code": {"inline_string": _DRAIN % {"limit": DRAIN_LIMIT_S, "least": _DRAIN_LEAST_S}}
    }
    fault = _typed("filters.http.fault.v3.HTTPFault") | {
        "delay": {"fixed_delay": "1s", "percentage": {"numerator": 100}},
        "headers": [{"name": ":path", "string_match": {"exact": "/second"}}],
    }
    answer = {"status": 200}
    host: Config = {
        "name": "drain",
        "domains": ["*"],
        "routes": [
            {
                "match": {"path": "/second"},
                "direct_response": answer,
                "typed_per_filter_config": {
                    "envoy.filters.http.lua": _typed("filters.http.lua.v3.LuaPerRoute") | {"disabled": True}
                },
            },
            {"match": {"path": "/drain"}, "direct_response": answer},
        ],
    }
    filters: list[Config] = [
        {"name": "envoy.filters.http.lua", "typed_config": lua},
        {"name": "envoy.filters.http.fault", "typed_config": fault},
    ]
    return _listener("drain", DRAIN_PORT, _manager("drain", host, filters))


def _listener(name: str, port: int, manager: Config) -> Config:
    connection: Config = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": _address("0.0.0.0", port),  # noqa: S104 - a pod's own address
        "filter_chains": [{"filters": [connection]}],
    }


def _manager(name: str, host: Config, filters: Sequence[Config]) -> Config:
    router: Config = {
        "name": "envoy.filters.http.router",
        "typed_config": _typed("filters.http.router.v3.Router") | {"suppress_envoy_headers": True},
    }
    own = {
        "stat_prefix": name,
        "route_config": {"name": name, "virtual_hosts": [host]},
        "http_filters": [*filters, router],
    }
    return _typed("filters.network.http_connection_manager.v3.HttpConnectionManager") | own


def _local(name: str, port: int) -> Config:
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _endpoints(name, [("127.0.0.1", port)]),
    }


def _endpoints(name: str, addresses: Sequence[tuple[str, int]]) -> Config:
    endpoints = [{"endpoint": {"address": _address(host, port)}} for host, port in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _address(host: str, port: int) -> Config:
    return {"socket_address": {"address": host, "port_value": port}}


def _typed(name: str) -> Config:
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}"}
