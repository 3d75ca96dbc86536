"""Limits on the resources of an Envoy that clients may use, after Envoy's guide for edge proxies, and its memory limit.

The figures are in `values/serving/envoy-bounds.yaml`. The memory limit of an Envoy's container follows from the other
limits: the most memory that clients can use is `attack_share` of it.
"""

import math
from typing import Literal

from llmd_oke.values import Entry, entry_reader

Config = dict[str, object]
"""A message of Envoy's API as a dict."""

_API = "type.googleapis.com/envoy"
_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"


class Pressure(Entry):
    """Shares of the memory limit at which Envoy's overload actions start (0.9 is 90 %). A pair is the share at which an
    action starts, and the share at which it acts in full.
    """

    shrink_heap: float
    shorter_timeouts: tuple[float, float]
    no_keepalive: float
    reset_streams: tuple[float, float]
    no_requests: float
    no_connections: float


class EnvoyBounds(Entry):
    """Limits of one Envoy's resources, each explained in `values/serving/envoy-bounds.yaml`. Suffixes of the names are
    the units.
    """

    headers_kib: int
    headers: int
    headers_timeout_s: int
    body_timeout_s: int
    idle_connection_s: int
    handshake_timeout_s: int
    delayed_close_timeout_s: int
    streams: int
    stream_window_kib: int
    connection_window_kib: int
    connection_kib: int
    socket_kib: int
    requests_per_cycle: int
    resets: int
    reset_lifetime_s: int
    outbound_frames: int
    outbound_control_frames: int
    empty_frames: int
    priority_frames: int
    window_updates: int
    connections: int
    body_mib: int
    bodies_mib: int
    idle_mib: int
    idle_connection_kib: int
    copies: int
    attack_share: float
    client_bodies_share: float
    refusals_per_minute: int
    refused_tokens_per_second: int
    longest_sequence: int
    bytes_per_token: int
    load_balancer_idle_s: int
    keepalive_s: int
    keepalive_answer_s: int
    key_set_s: int
    key_set_retry_s: int
    key_set_timeout_s: int
    pressure: Pressure

    @property
    def memory_limit_mib(self) -> int:
        """Memory limit of an Envoy's container in MiB: `attack_share` of it holds idle memory, all connections and all
        bodies, each at its limit.
        """
        needed = self.idle_mib + self.connections * self.idle_connection_kib / 1024 + self.bodies_mib * self.copies
        return math.ceil(needed / self.attack_share / 64) * 64


bounds = entry_reader("serving", "envoy-bounds", EnvoyBounds)
"""Return the limits of an Envoy's resources from `values/serving/envoy-bounds.yaml`."""


def manager_bounds() -> Config:
    """Return the limits on the requests of one client connection, as settings of Envoy's HTTP connection manager."""
    most = bounds()
    return {
        "request_headers_timeout": _seconds(most.headers_timeout_s),
        "request_timeout": _seconds(most.body_timeout_s),
        "delayed_close_timeout": _seconds(most.delayed_close_timeout_s),
        "max_request_headers_kb": most.headers_kib,
        "common_http_protocol_options": {
            "idle_timeout": _seconds(most.idle_connection_s),
            "max_headers_count": most.headers,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        "http2_protocol_options": {
            "max_concurrent_streams": most.streams,
            "initial_stream_window_size": most.stream_window_kib * 1024,
            "initial_connection_window_size": most.connection_window_kib * 1024,
            "max_outbound_frames": most.outbound_frames,
            "max_outbound_control_frames": most.outbound_control_frames,
            "max_consecutive_inbound_frames_with_empty_payload": most.empty_frames,
            "max_inbound_priority_frames_per_stream": most.priority_frames,
            "max_inbound_window_update_frames_per_data_frame_sent": most.window_updates,
            "connection_keepalive": {
                "interval": _seconds(most.keepalive_s),
                "timeout": _seconds(most.keepalive_answer_s),
            },
        },
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
    }


def listener_bounds() -> Config:
    """Return the limits on one client connection and its TCP keepalive, as settings of an Envoy listener."""
    most = bounds()
    probes = {"keepalive_time": most.keepalive_s, "keepalive_interval": most.keepalive_answer_s, "keepalive_probes": 3}
    return {
        "per_connection_buffer_limit_bytes": most.connection_kib * 1024,
        "tcp_keepalive": probes,
        "socket_options": [_socket_bytes("SO_SNDBUF", most.socket_kib)],
    }


def answers_bounds() -> Config:
    """Return the limit on the kernel's receive buffer for responses that a client doesn't read, as settings of an Envoy
    cluster.
    """
    return {"upstream_bind_config": {"socket_options": [_socket_bytes("SO_RCVBUF", bounds().socket_kib)]}}


def _socket_bytes(option: Literal["SO_SNDBUF", "SO_RCVBUF"], kib: int) -> Config:
    """Return a socket option with a size in bytes, by Linux's numbers (asm-generic/socket.h). The kernel doubles the
    size for its own bookkeeping.
    """
    number = {"SO_SNDBUF": 7, "SO_RCVBUF": 8}[option]
    return {"description": option, "level": 1, "name": number, "int_value": kib * 1024}


def chain_bounds() -> Config:
    """Return the limit on the duration of a connection's TLS handshake, as settings of a listener's filter chain."""
    return {"transport_socket_connect_timeout": _seconds(bounds().handshake_timeout_s)}


def process_bounds(memory_limit_mib: int | None) -> Config:
    """Return the settings of an Envoy's bootstrap that limit all connections together.

    When memory runs short, Envoy first closes idle connections, then resets the requests that use the most memory, and
    last refuses requests and connections.

    Args:
        memory_limit_mib: memory limit of the container; memory isn't limited if None.
    """
    most, pressure = bounds(), bounds().pressure
    connections: Config = {"max_active_downstream_connections": most.connections}
    timers = ("HTTP_DOWNSTREAM_CONNECTION_IDLE", "TRANSPORT_SOCKET_CONNECT")
    scaled: Config = {"timer_scale_factors": [{"timer": timer, "min_timeout": "1s"} for timer in timers]}
    monitors = [_monitor(_CONNECTIONS, "downstream_connections.v3.DownstreamConnectionsConfig", connections)]
    overload: Config = {"refresh_interval": "0.25s", "resource_monitors": monitors}
    if memory_limit_mib is not None:
        heap: Config = {"max_heap_size_bytes": memory_limit_mib * 1024 * 1024}
        monitors.insert(0, _monitor(_HEAP, "fixed_heap.v3.FixedHeapConfig", heap))
        overload["buffer_factory_config"] = {"minimum_account_to_track_power_of_two": 20}
        overload["actions"] = [
            _action("shrink_heap", pressure.shrink_heap),
            _action("reduce_timeouts", pressure.shorter_timeouts)
            | {"typed_config": {"@type": f"{_API}.config.overload.v3.ScaleTimersOverloadActionConfig", **scaled}},
            _action("disable_http_keepalive", pressure.no_keepalive),
            _action("reset_high_memory_stream", pressure.reset_streams),
            _action("stop_accepting_requests", pressure.no_requests),
            _action("reject_incoming_connections", pressure.no_connections),
        ]
    return {
        "overload_manager": overload,
        "layered_runtime": {
            "layers": [
                {
                    "name": "bounds",
                    "static_layer": {
                        "http.max_requests_per_io_cycle": most.requests_per_cycle,
                        "overload.premature_reset_total_stream_count": most.resets,
                        "overload.premature_reset_min_stream_lifetime_seconds": most.reset_lifetime_s,
                    },
                }
            ]
        },
    }


def _monitor(name: str, kind: str, settings: Config) -> Config:
    typed = {"@type": f"{_API}.extensions.resource_monitors.{kind}", **settings}
    return {"name": name, "typed_config": typed}


def _action(name: str, pressure: float | tuple[float, float]) -> Config:
    if isinstance(pressure, tuple):
        trigger: Config = {"scaled": {"scaling_threshold": pressure[0], "saturation_threshold": pressure[1]}}
    else:
        trigger = {"threshold": {"value": pressure}}
    return {"name": f"envoy.overload_actions.{name}", "triggers": [{"name": _HEAP, **trigger}]}


def _seconds(number: int) -> str:
    return f"{number}s"
