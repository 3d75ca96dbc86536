"""Every listener of every Envoy that the kit deploys has the bounds of Envoy's guide for proxies at an edge."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from llmd_oke import catalogue
from llmd_oke.planning.placement import FRONT_DOOR_REQUESTS
from llmd_oke.serving import authentication, envoy, front_door, model_envoy, stack_envoy
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.stack_envoy import ClientLimits, EnvoySettings, ServedModel
from llmd_oke.values import values_folder

MODEL = ServedModel("gpt", "openai/gpt-oss-120b", ("gpt.example.com",), (model_envoy.Upstream("unit", 80),))
ROUTER_MIB = 16 * 1024
OPEN = EnvoySettings((MODEL,), encrypted=False, authenticated=False)
BOOTSTRAPS = {
    "an open front door": stack_envoy.bootstrap(OPEN),
    "a front door with a certificate and keys": stack_envoy.bootstrap(
        replace(
            OPEN,
            encrypted=True,
            authenticated=True,
            limits=ClientLimits(60, 1000),
            clients={"a": ClientLimits(None, None, 8, (MODEL.served_name,))},
        )
    ),
    "a front door with tokens": stack_envoy.bootstrap(replace(OPEN, authenticated=True, tokens=True)),
    "a model's front door": model_envoy.bootstrap(["unit"], 80),
    "a router": envoy.bootstrap(32, memory_limit_mib=ROUTER_MIB),
    "a router with several pickers": envoy.bootstrap(32, "pickers", memory_limit_mib=ROUTER_MIB),
}
DOORS = [name for name in BOOTSTRAPS if "door" in name]

MANAGER = (
    "request_headers_timeout",
    "request_timeout",
    "delayed_close_timeout",
    "max_request_headers_kb",
    "common_http_protocol_options.idle_timeout",
    "common_http_protocol_options.max_headers_count",
    "common_http_protocol_options.headers_with_underscores_action",
    "http2_protocol_options.max_concurrent_streams",
    "http2_protocol_options.initial_stream_window_size",
    "http2_protocol_options.initial_connection_window_size",
    "http2_protocol_options.max_outbound_frames",
    "http2_protocol_options.max_outbound_control_frames",
    "http2_protocol_options.max_consecutive_inbound_frames_with_empty_payload",
    "http2_protocol_options.max_inbound_priority_frames_per_stream",
    "http2_protocol_options.max_inbound_window_update_frames_per_data_frame_sent",
    "use_remote_address",
    "normalize_path",
    "merge_slashes",
    "path_with_escaped_slashes_action",
)
"""What a connection manager has to say."""

UNENDING = {("a router", "vllm"), ("a router with several pickers", "vllm")}
"""Listeners without a limit of a request's whole time: pickers hold requests in queues."""


LISTENERS = [
    pytest.param(name, listener, id=f"{name}: {listener['name']}")
    for name, text in BOOTSTRAPS.items()
    for listener in json.loads(text)["static_resources"]["listeners"]
]


def field(message: Mapping[str, Any], path: str) -> Any:
    for key in path.split("."):
        message = message.get(key) or {}
    return message


def managers(listener: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [filter_["typed_config"] for chain in listener["filter_chains"] for filter_ in chain["filters"]]


@pytest.mark.parametrize(("name", "listener"), LISTENERS)
def test_every_envoy_listener_limits_connections_headers_bodies_and_frames(name: str, listener: dict[str, Any]):
    assert listener["per_connection_buffer_limit_bytes"] <= bounds().connection_kib * 1024
    assert all(chain["transport_socket_connect_timeout"] != "0s" for chain in listener["filter_chains"])
    for manager in managers(listener):
        assert [path for path in MANAGER if not field(manager, path)] == []
        endless = (name, listener["name"]) in UNENDING
        assert (manager["request_timeout"] == "0s") == endless
        assert field(manager, "common_http_protocol_options.headers_with_underscores_action") == "REJECT_REQUEST"


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_every_envoy_limits_its_connections_and_its_heap(name: str):
    limit_mib = bounds().memory_limit_mib if name in DOORS else ROUTER_MIB
    manager = json.loads(BOOTSTRAPS[name])["overload_manager"]
    monitors = {monitor["name"].rpartition(".")[2]: monitor["typed_config"] for monitor in manager["resource_monitors"]}
    assert monitors["global_downstream_max_connections"]["max_active_downstream_connections"] == bounds().connections
    assert monitors["fixed_heap"]["max_heap_size_bytes"] == limit_mib * 1024 * 1024
    actions = {action["name"].rpartition(".")[2] for action in manager["actions"]}
    assert {"shrink_heap", "reduce_timeouts", "reset_high_memory_stream", "stop_accepting_requests"} <= actions


@pytest.mark.parametrize(("name", "listener"), LISTENERS)
def test_every_envoy_listener_limits_the_kernels_send_buffer(name: str, listener: dict[str, Any]):
    options = {option["description"]: option["int_value"] for option in listener["socket_options"]}
    assert options == {"SO_SNDBUF": bounds().socket_kib * 1024}, name


def test_envoys_limit_the_kernels_receive_buffer_of_upstream_connections():
    clusters = [
        *json.loads(stack_envoy.clusters([MODEL], {"a": 8}))["resources"],
        *(
            c
            for c in json.loads(model_envoy.bootstrap(["unit"], 80))["static_resources"]["clusters"]
            if "health_checks" in c
        ),
    ]
    assert len(clusters) == 4
    for cluster in clusters:
        (option,) = cluster["upstream_bind_config"]["socket_options"]
        assert (option["description"], option["int_value"]) == ("SO_RCVBUF", bounds().socket_kib * 1024)


def test_a_routers_envoy_limits_its_heap_if_its_container_has_a_memory_limit():
    releases = {name: catalogue.release(name) for name in ("llm-d-0.9.0", "llm-d-0.7.0")}
    limits = {name: facts.proxy.memory_limit_gib for name, facts in releases.items() if facts}
    assert limits == {"llm-d-0.9.0": ROUTER_MIB // 1024, "llm-d-0.7.0": None}
    unlimited = json.loads(envoy.bootstrap(32))
    (monitor,) = unlimited["overload_manager"]["resource_monitors"]
    assert monitor["typed_config"]["max_active_downstream_connections"] == bounds().connections
    assert "overload.premature_reset_total_stream_count" in str(unlimited["layered_runtime"])


def test_the_memory_limit_of_front_door_pods_follows_from_connections_and_bodies():
    most = bounds()
    needed = most.idle_mib + most.connections * most.idle_connection_kib / 1024 + most.bodies_mib * most.copies
    assert needed <= most.attack_share * most.memory_limit_mib <= 1.05 * needed
    facts = catalogue.release("llm-d-0.9.0")
    assert facts is not None
    pods = front_door.envoys({}, {}, facts.proxy.image.pinned, {}, {"config": ("/etc/envoy", {})})
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == f"{most.memory_limit_mib}Mi"
    assert most.memory_limit_mib >= FRONT_DOOR_REQUESTS.memory_gib * 1024


def test_the_memory_limit_of_an_envoy_is_a_multiple_of_64_mib_above_its_needs():
    of_connections = {"idle_mib": 0, "bodies_mib": 0, "idle_connection_kib": 1, "attack_share": 1}
    limits_mib = [
        bounds().model_copy(update={**of_connections, "connections": kib}).memory_limit_mib
        for kib in (64 * 1024, 64 * 1024 + 1)
    ]
    assert limits_mib == [64, 128]


@pytest.mark.parametrize(("name", "listener"), LISTENERS)
def test_every_envoy_listener_sends_keep_alives_before_the_load_balancers_timeout(name: str, listener: dict[str, Any]):
    assert listener["tcp_keepalive"]["keepalive_time"] < bounds().load_balancer_idle_s / 2, name
    for manager in managers(listener):
        interval = field(manager, "http2_protocol_options.connection_keepalive.interval")
        assert int(interval[:-1]) < bounds().load_balancer_idle_s / 2
        assert int(field(manager, "common_http_protocol_options.idle_timeout")[:-1]) < bounds().load_balancer_idle_s


def test_envoys_short_of_memory_close_idle_connections_before_refusing_requests():
    pressure = bounds().pressure
    assert pressure.shorter_timeouts[1] < bounds().attack_share <= pressure.reset_streams[0]
    assert pressure.reset_streams[1] <= pressure.no_requests < pressure.no_connections < 1


ROBUST = {
    "filters.http.buffer.v3.Buffer",
    "filters.http.fault.v3.HTTPFault",
    "filters.http.health_check.v3.HealthCheck",
    "filters.http.jwt_authn.v3.JwtAuthentication",
    "filters.http.lua.v3.Lua",
    "filters.http.lua.v3.LuaPerRoute",
    "filters.http.router.v3.Router",
    "filters.network.http_connection_manager.v3.HttpConnectionManager",
}
"""Robust against untrusted clients and stable, by Envoy's source/extensions/extensions_metadata.yaml."""

UNKNOWN = {"filters.http.local_ratelimit.v3.LocalRateLimit"}
"""Stable, of unknown posture there: it reads one header, which clients can't set."""


@pytest.mark.parametrize("name", DOORS)
def test_envoys_use_only_filters_that_are_hardened_for_untrusted_clients(name: str):
    access = [authentication.api_keys({"a": "b"}), authentication.tokens("https://id.example.com", ["llm"], "{}")]
    texts = [BOOTSTRAPS[name], *(access if name in DOORS[:3] else [])]
    used = {kind for text in texts for kind in re.findall(r'envoy.extensions.(filters\.[\w.]+)"', text)}
    assert used - ROBUST - UNKNOWN == set()


def test_every_lua_filter_of_envoy_catches_its_own_errors():
    """Envoy lets a request pass whose script fails."""
    programs = {path.name: path.read_text() for path in (values_folder() / "serving").glob("*.lua")}
    filters = {name: text for name, text in programs.items() if "envoy_on_" in text}
    assert programs.keys() - filters.keys() == {"sha256.lua"}
    for name, text in filters.items():
        assert "pcall(" in text, name
