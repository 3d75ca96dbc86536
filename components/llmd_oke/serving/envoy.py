"""The Envoy of a router: it asks the endpoint picker where each request goes, and takes it there."""

import json
from typing import Any

REQUESTS_PORT = 8081
"""Where Envoy takes requests."""

METRICS_PORT = 19001
"""Where Envoy says that it is ready (`/ready`) and gives its metrics (`/stats/prometheus`)."""

PICKER_PORT = 9002
"""Where an endpoint picker is asked (ext_proc)."""

CONFIG_FILE = "envoy.yaml"

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""The header in which the endpoint picker names the server of a request; Envoy dials what it says."""

_ADMIN_PORT = 19000
_ANY = "0.0.0.0"  # noqa: S104 - in the pod
_LONGEST_REQUEST = "86400s"
_API = "type.googleapis.com/envoy"

_Config = dict[str, Any]


def bootstrap() -> str:
    """Envoy's config as text: JSON, which is YAML too."""
    config = {
        "admin": {"address": _address("127.0.0.1", _ADMIN_PORT), "access_log": [_access_log("/dev/null")]},
        "static_resources": {
            "listeners": [_metrics_listener(), _requests_listener()],
            "clusters": [_admin_cluster(), _servers_cluster(), _pickers_cluster()],
        },
    }
    return json.dumps(config, indent=1)


def _requests_listener() -> _Config:
    return {
        "name": "vllm",
        "address": _address(_ANY, REQUESTS_PORT),
        "per_connection_buffer_limit_bytes": 32768,
        "access_log": [
            {**_access_log("/dev/stdout", _ACCESS), "filter": {"response_flag_filter": {"flags": ["NR"]}}},
        ],
        "filter_chains": [{"name": "vllm", "filters": [_requests_manager()]}],
    }


def _requests_manager() -> _Config:
    return _manager(
        stat_prefix=f"http-{REQUESTS_PORT}",
        route_config={
            "name": "vllm",
            "virtual_hosts": [{"name": "vllm-default", "domains": ["*"], "routes": [_route()]}],
        },
        http_filters=[_picking(), _filter("router", "router", "Router", suppress_envoy_headers=True)],
        http2_protocol_options={
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 65536,
            "initial_connection_window_size": 1048576,
        },
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        server_header_transformation="PASS_THROUGH",
        common_http_protocol_options={"headers_with_underscores_action": "REJECT_REQUEST"},
        path_with_escaped_slashes_action="UNESCAPE_AND_REDIRECT",
        access_log=[_access_log("/dev/stdout", _ACCESS)],
    )


def _route() -> _Config:
    return {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "original_destination_cluster",
            "timeout": _LONGEST_REQUEST,
            "idle_timeout": _LONGEST_REQUEST,
            "upgrade_configs": [{"upgrade_type": "websocket"}],
        },
        "typed_per_filter_config": {
            "envoy.filters.http.ext_proc": {"@type": f"{_API}.config.route.v3.FilterConfig", "config": {}}
        },
    }


def _picking() -> _Config:
    """Each request goes to the endpoint picker and back, and so does its answer."""
    return _filter(
        "ext_proc",
        "ext_proc",
        "ExternalProcessor",
        grpc_service={
            "envoy_grpc": {"cluster_name": "ext_proc", "authority": f"localhost:{PICKER_PORT}"},
            "timeout": "10s",
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
    manager = _manager(
        stat_prefix="envoy-ready-http",
        route_config={
            "name": "local_route",
            "virtual_hosts": [{"name": "prometheus_stats", "domains": ["*"], "routes": [stats]}],
        },
        http_filters=[
            _filter("health_check", "health_check", "HealthCheck", pass_through_mode=False, headers=[ready]),
            _filter("router", "router", "Router"),
        ],
    )
    return {
        "name": f"envoy-proxy-ready-0.0.0.0-{METRICS_PORT}",
        "address": _address(_ANY, METRICS_PORT),
        "filter_chains": [{"filters": [manager]}],
    }


def _admin_cluster() -> _Config:
    return {
        "name": "prometheus_stats",
        "type": "STATIC",
        "connect_timeout": "0.250s",
        "load_assignment": {
            "cluster_name": "prometheus_stats",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address("127.0.0.1", _ADMIN_PORT)}}]}],
        },
    }


def _servers_cluster() -> _Config:
    """The model servers, by the address that the endpoint picker names."""
    return {
        "name": "original_destination_cluster",
        "type": "ORIGINAL_DST",
        "connect_timeout": "1000s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _unlimited(),
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION_HEADER},
    }


def _pickers_cluster() -> _Config:
    picker = {"endpoint": {"address": _address("127.0.0.1", PICKER_PORT)}, "load_balancing_weight": 1}
    return {
        "name": "ext_proc",
        "type": "STATIC",
        "connect_timeout": _LONGEST_REQUEST,
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": _unlimited(max_retries=1024),
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "10s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 2,
                "reuse_connection": True,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
                "tls_options": {"alpn_protocols": ["h2"]},
            }
        ],
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_API}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"validation_context": None},
            },
        },
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
        "load_assignment": {
            "cluster_name": "ext_proc",
            "endpoints": [{"locality": {"region": "ext_proc/e2e/0"}, "lb_endpoints": [picker]}],
        },
    }


_ACCESS = '{"start_time":"%START_TIME%","method":"%REQ(:METHOD)%",...}\n'


def _access_log(path: str, line: str | None = None) -> _Config:
    config: _Config = {"@type": f"{_API}.extensions.access_loggers.file.v3.FileAccessLog", "path": path}
    if line is not None:
        config["log_format"] = {"text_format_source": {"inline_string": line}}
    return {"name": "envoy.access_loggers.file", "typed_config": config}


def _manager(**settings: Any) -> _Config:
    kind = f"{_API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": {"@type": kind, **settings}}


def _filter(name: str, package: str, kind: str, **settings: Any) -> _Config:
    config = {"@type": f"{_API}.extensions.filters.http.{package}.v3.{kind}", **settings}
    return {"name": f"envoy.filters.http.{name}", "typed_config": config}


def _address(host: str, port: int) -> _Config:
    return {"socket_address": {"address": host, "port_value": port}}


def _unlimited(**more: int) -> _Config:
    limits = {"max_connections": 40000, "max_pending_requests": 40000, "max_requests": 40000, **more}
    return {"thresholds": [limits]}
