"""Bootstrap of a router's Envoy, which asks the endpoint picker for the server of each request and forwards the request
to this server.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from llmd_oke.serving import client_requests
from llmd_oke.serving.client_requests import ClientObjectives
from llmd_oke.serving.envoy_bounds import chain_bounds, listener_bounds, manager_bounds, process_bounds

REQUESTS_PORT = 8081
"""Port on which a router's Envoy accepts requests."""

METRICS_PORT = 19001
"""Port of the readiness (`/ready`) and metrics (`/stats/prometheus`) of a router's Envoy."""

PICKER_PORT = 9002
"""Port of the endpoint picker's ext_proc service, which Envoy calls."""

CONFIG_FILE = "envoy.yaml"

PICKER_HEALTH_PORT = 9003
"""Port of the endpoint picker's health service (grpc.health.v1), with one status for liveness and one for leadership.
"""

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Header in which the endpoint picker returns the address of a request's server, which Envoy connects to."""

_ADMIN_PORT = 19000
_ANY = "0.0.0.0"  # noqa: S104 - in the pod
_LONGEST_REQUEST = "86400s"
_LONGEST_CONNECTION = "60s"
"""Longest time that a client may keep a connection open. It is shorter than the grace period of a pod, so that clients
leave a terminating pod in time."""
_API = "type.googleapis.com/envoy"

_Config = dict[str, Any]


@cache
def bootstrap(
    largest_body_mib: int,
    pickers: str | None = None,
    *,
    salted: bool = False,
    memory_limit_mib: int | None = None,
    objectives: ClientObjectives | None = None,
    sessions: tuple[str, ...] = (),
) -> str:
    """Return Envoy's bootstrap as JSON, which is valid YAML.

    Args:
        largest_body_mib: largest body of a request in MiB.
        pickers: DNS name of the headless Service of all endpoint pickers, of which Envoy asks the leader; the picker in
            the same pod if left out.
        salted: whether requests may have a `cache_salt`.
        memory_limit_mib: memory limit of the container; Envoy's memory isn't limited if None.
        objectives: headers for the picker about clients that a front door has authenticated; none if None.
        sessions: headers by which the picker keeps a client's session at one server.
    """
    checks = client_requests.filters(largest_body_mib, salted=salted, objectives=objectives, sessions=sessions)
    unknown = {**_access_log("/dev/stdout", _ACCESS), "filter": {"response_flag_filter": {"flags": ["NR"]}}}
    requests = listener("vllm", _ANY, REQUESTS_PORT, _requests_manager(checks), {"name": "vllm"})
    config = {
        **process_bounds(memory_limit_mib),
        "admin": {"address": socket_address("127.0.0.1", _ADMIN_PORT), "access_log": [_access_log("/dev/null")]},
        "static_resources": {
            "listeners": [
                _metrics_listener(),
                {**requests, "access_log": [unknown]},
            ],
            "clusters": [_admin_cluster(), _servers_cluster(), _pickers_cluster(pickers)],
        },
    }
    return json.dumps(config, indent=1)


def _requests_manager(checks: list[_Config]) -> _Config:
    return connection_manager(
        stat_prefix=f"http-{REQUESTS_PORT}",
        route_config={
            "name": "vllm",
            "virtual_hosts": [{"name": "vllm-default", "domains": ["*"], "routes": [_route()]}],
        },
        http_filters=[
            *checks,
            _endpoint_picker_filter(),
            http_filter("router", "router", "Router", suppress_envoy_headers=True),
        ],
        server_header_transformation="PASS_THROUGH",
        common_http_protocol_options={"max_connection_duration": _LONGEST_CONNECTION},
        http1_safe_max_connection_duration=True,
        request_timeout="0s",  # it would go on while the picker holds a request in its queue
        access_log=[_access_log("/dev/stdout", _ACCESS)],
    )


def _route() -> _Config:
    return {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "original_destination_cluster",
            "timeout": _LONGEST_REQUEST,
            "idle_timeout": _LONGEST_REQUEST,
        },
        "typed_per_filter_config": {
            "envoy.filters.http.ext_proc": {"@type": f"{_API}.config.route.v3.FilterConfig", "config": {}}
        },
    }


def _endpoint_picker_filter() -> _Config:
    """Return the filter that sends each request and its response through the endpoint picker. Requests fail without a
    picker.

    Envoy retries an unreachable picker, or another one, for about 30 s, in which a picker starts.
    """
    return http_filter(
        "ext_proc",
        "ext_proc",
        "ExternalProcessor",
        failure_mode_allow=False,
        grpc_service={
            "envoy_grpc": {"cluster_name": "ext_proc", "authority": f"localhost:{PICKER_PORT}"},
            "timeout": "10s",
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,reset-before-request,unavailable",
                "num_retries": 60,
                "retry_back_off": {"base_interval": "0.050s", "max_interval": "1s"},
                "retry_host_predicate": [previous_hosts()],
                "host_selection_retry_max_attempts": 3,
            },
        },
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        message_timeout="1000s",
    )


def _metrics_listener() -> _Config:
    stats = {"match": {"prefix": "/stats/prometheus"}, "route": {"cluster": "prometheus_stats"}}
    ready = {"name": ":path", "string_match": {"exact": "/ready"}}
    manager = connection_manager(
        stat_prefix="envoy-ready-http",
        route_config={
            "name": "local_route",
            "virtual_hosts": [{"name": "prometheus_stats", "domains": ["*"], "routes": [stats]}],
        },
        http_filters=[
            http_filter("health_check", "health_check", "HealthCheck", pass_through_mode=False, headers=[ready]),
            http_filter("router", "router", "Router"),
        ],
    )
    return listener(f"envoy-proxy-ready-0.0.0.0-{METRICS_PORT}", _ANY, METRICS_PORT, manager)


def _admin_cluster() -> _Config:
    return {
        "name": "prometheus_stats",
        "type": "STATIC",
        "connect_timeout": "0.250s",
        "load_assignment": {
            "cluster_name": "prometheus_stats",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket_address("127.0.0.1", _ADMIN_PORT)}}]}],
        },
    }


def _servers_cluster() -> _Config:
    """Return the cluster of the model servers, addressed by the header that the endpoint picker sets."""
    return {
        "name": "original_destination_cluster",
        "type": "ORIGINAL_DST",
        "connect_timeout": "1000s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _unlimited(),
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION_HEADER},
    }


def _pickers_cluster(pickers: str | None) -> _Config:
    return {
        "name": "ext_proc",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": _unlimited(max_retries=1024),
        **(_local_picker() if pickers is None else _leading_picker(pickers)),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_API}.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        "initial_stream_window_size": 65536,
                        "initial_connection_window_size": 1048576,
                    }
                },
            }
        },
    }


def _local_picker() -> _Config:
    check = {
        "timeout": "2s",
        "interval": "10s",
        "unhealthy_threshold": 3,
        "healthy_threshold": 2,
        "reuse_connection": True,
        "grpc_health_check": {"service_name": _PICKER_SERVICE},
        "tls_options": {"alpn_protocols": ["h2"]},
    }
    return {
        "type": "STATIC",
        "connect_timeout": _LONGEST_REQUEST,
        "health_checks": [check],
        "transport_socket": _tls(),
        "load_assignment": _picker_endpoint({"address": socket_address("127.0.0.1", PICKER_PORT)}),
    }


def _leading_picker(pickers: str) -> _Config:
    """Return the cluster settings for several pickers, of which only the leader reports to be healthy. While there is
    no leader, all reachable pickers are asked: they know the servers too, but choose less well until one of them leads.
    """
    check = {
        "timeout": "1s",
        "interval": "2s",
        "no_traffic_interval": "2s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "reuse_connection": True,
        "grpc_health_check": {"service_name": _PICKER_SERVICE},
        "transport_socket_match_criteria": {"health": True},
    }
    endpoint = {
        "address": socket_address(pickers, PICKER_PORT),
        "health_check_config": {"port_value": PICKER_HEALTH_PORT},
    }
    plain = {
        "name": "envoy.transport_sockets.raw_buffer",
        "typed_config": {"@type": f"{_SOCKETS}.raw_buffer.v3.RawBuffer"},
    }
    return {
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "1s",
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "health_checks": [check],
        "transport_socket_matches": [
            {"name": "health", "match": {"health": True}, "transport_socket": plain},
            {"name": "picking", "match": {}, "transport_socket": _tls()},
        ],
        "load_assignment": _picker_endpoint(endpoint),
    }


def _picker_endpoint(endpoint: _Config) -> _Config:
    picker = {"endpoint": endpoint, "load_balancing_weight": 1}
    return {
        "cluster_name": "ext_proc",
        "endpoints": [{"locality": {"region": "ext_proc/e2e/0"}, "lb_endpoints": [picker]}],
    }


def _tls() -> _Config:
    """Return the TLS settings for connections to the picker. The picker's certificate isn't verified, since the picker
    creates a self-signed one at its start.
    """
    kind = f"{_SOCKETS}.tls.v3.UpstreamTlsContext"
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": kind, "common_tls_context": {"validation_context": None}},
    }


def previous_hosts() -> _Config:
    """Return the retry predicate that rejects hosts already tried for the same request."""
    kind = f"{_API}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": kind}}


_SOCKETS = f"{_API}.extensions.transport_sockets"
_PICKER_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_ACCESS = '{"start_time":"%START_TIME%","method":"%REQ(:METHOD)%",...}\n'


def _access_log(path: str, line: str | None = None) -> _Config:
    config: _Config = {"@type": f"{_API}.extensions.access_loggers.file.v3.FileAccessLog", "path": path}
    if line is not None:
        config["log_format"] = {"text_format_source": {"inline_string": line}}
    return {"name": "envoy.access_loggers.file", "typed_config": config}


def connection_manager(**settings: Any) -> _Config:
    """Return the HTTP connection manager of a listener: `settings`, merged into the limits of all listeners."""
    kind = f"{_API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    bounded = manager_bounds()
    for name, value in settings.items():
        bound = bounded.get(name)
        bounded[name] = {**bound, **value} if isinstance(bound, dict) else value
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": {"@type": kind, **bounded}}


def listener(
    name: str, host: str, port: int, manager: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> _Config:
    """Return a listener with the limits of all listeners; `settings` extend its only filter chain."""
    chain = {"filters": [manager], **chain_bounds(), **(settings or {})}
    return {"name": name, "address": socket_address(host, port), **listener_bounds(), "filter_chains": [chain]}


def http_filter(name: str, package: str, kind: str, **settings: Any) -> _Config:
    """Return an HTTP filter with its settings, by Envoy's names for filter, package and message."""
    config = {"@type": f"{_API}.extensions.filters.http.{package}.v3.{kind}", **settings}
    return {"name": f"envoy.filters.http.{name}", "typed_config": config}


def socket_address(host: str, port: int) -> _Config:
    """Return the socket address of a listener or an upstream."""
    return {"socket_address": {"address": host, "port_value": port}}


def _unlimited(**more: int) -> _Config:
    limits = {"max_connections": 40000, "max_pending_requests": 40000, "max_requests": 40000, **more}
    return {"thresholds": [limits]}


def extension(typed_config: _Config, name: str = "authentication") -> _Config:
    """Return a named extension (Envoy's TypedExtensionConfig) as an item of `resources_file`."""
    kind = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
    return {"@type": kind, "name": name, "typed_config": typed_config}


def resources_file(resources: Sequence[_Config]) -> str:
    """Return the content of a file with these resources, which Envoy reads again whenever the file changes."""
    return json.dumps({"resources": list(resources)}, indent=1)
