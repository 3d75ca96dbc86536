"""Models behind a Gateway: routes to their pools, pickers without Envoys, and who reaches them."""

import json
from typing import Any

import created_cluster
import pytest
from llmd_oke.catalogue.serving import gateway_provider, gateway_provider_names
from llmd_oke.gitops.rendering import rendering_of
from llmd_oke.serving.envoy_bounds import bounds, listener_bounds, manager_bounds
from llmd_oke.testing import Rendered, without_hash
from render_support import SHARED_DATA, pod, validate_by_definition
from stack_files import model, stack

EPP = "gpt-oss-120b-epp"
LLAMA = "llama-3.3-70b-instruct-fp8-dynamic"


def behind(**changes: Any) -> dict[str, Any]:
    """A small model behind a Gateway."""
    return model("2p-tp1-2d-tp1", **{"router": {"mode": "gateway"}, **changes})


def created(provider: str, **changes: Any) -> dict[str, Any]:
    return {"mode": "create", "provider": provider, "uncheckedRequests": "accepted", **changes}


@pytest.fixture(params=gateway_provider_names())
def provided(request: pytest.FixtureRequest, rendered: Any) -> Rendered:
    """A stack with a Gateway of its own, by each provider."""
    return rendered(stack(behind(), gateway=created(request.param)))


@pytest.fixture
def istio(rendered: Any) -> Rendered:
    """Two copies behind a Gateway of Istio's."""
    return rendered(stack(behind(copies=2), gateway=created("istio")))


def test_custom_objects_of_the_gateway_api_are_valid_by_their_crds(provided: Rendered):
    kinds = {"Gateway": "gateways", "HTTPRoute": "httproutes"}
    for manifest in [m for m in provided.manifests() if m["kind"] in kinds]:
        name = f"gateway.networking.k8s.io_{kinds[manifest['kind']]}.yaml"
        validate_by_definition(manifest, SHARED_DATA / "crds" / name)


@pytest.mark.parametrize(
    ("changes", "port"), [({}, 80), ({"host": "a.example.com", "tls": "certificate"}, 443), ({"port": 8080}, 8080)]
)
def test_a_gateway_listens_at_its_protocols_port_or_at_that_of_the_stack_file(
    rendered: Any, changes: dict[str, Any], port: int
):
    made = rendered(stack(behind(), gateway=created("istio", **changes)))
    (gateway,) = [manifest for manifest in made.manifests() if manifest["kind"] == "Gateway"]
    assert gateway["spec"]["listeners"][0]["port"] == port


def test_a_model_behind_a_gateway_gets_no_envoys_of_the_kit_and_one_picker(provided: Rendered):
    deployments = [without_hash(m["metadata"]["name"]) for m in provided.manifests() if m["kind"] == "Deployment"]
    assert not [name for name in deployments if "front-door" in name]
    assert [container["name"] for container in pod(provided, EPP)["spec"]["containers"]] == ["epp"]
    assert provided.kubernetes("Deployment", EPP)["spec"]["replicas"] == 1
    assert [port["port"] for port in provided.kubernetes("Service", EPP)["spec"]["ports"]] == [9002, 9090]
    assert "envoy.yaml" not in json.dumps([m for m in provided.manifests() if m["kind"] == "ConfigMap"])


def test_only_the_gateways_pods_may_call_the_picker(provided: Rendered):
    (gateway,) = [m for m in provided.manifests() if m["kind"] == "Gateway"]
    facts = {gateway_provider(name).class_name: gateway_provider(name) for name in gateway_provider_names()}
    labels = {
        key: value.replace("<gateway>", gateway["metadata"]["name"])
        for key, value in facts[gateway["spec"]["gatewayClassName"]].pod_labels.items()
    }
    rules = provided.kubernetes("NetworkPolicy", EPP)["spec"]["ingress"]
    (asked,) = [rule for rule in rules if {"protocol": "TCP", "port": 9002} in rule["ports"]]
    assert [source["podSelector"]["matchLabels"] for source in asked["from"]] == [labels]


def test_servers_accept_requests_from_the_gateways_pods(rendered: Any):
    known = created_cluster.created(models=[behind()], gateway=created("istio"))
    servers = rendered(known).kubernetes("NetworkPolicy", "gpt-oss-120b-decode")["spec"]["ingress"]
    (requests,) = [rule for rule in servers if "ports" in rule]
    namespaces = [
        s.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name")
        for s in requests["from"]
    ]
    assert "llm-d" in namespaces


def test_a_model_beside_one_behind_a_gateway_keeps_a_router_with_an_envoy(rendered: Any):
    both = rendered(stack(behind(), model("agg-tp1-1r", name="beside"), gateway=created("istio")))
    assert [container["name"] for container in pod(both, "beside-epp")["spec"]["containers"]] == ["envoy-proxy", "epp"]


def test_an_httproute_spreads_requests_over_the_inferencepools_of_all_copies(istio: Rendered):
    (rule,) = istio.kubernetes("HTTPRoute", "gpt-oss-120b")["spec"]["rules"]
    assert [(without_hash(ref["name"]), ref["weight"]) for ref in rule["backendRefs"]] == [
        ("gpt-oss-120b-0", 1),
        ("gpt-oss-120b-1", 1),
    ]
    pools = {m["metadata"]["name"] for m in istio.manifests() if m["kind"] == "InferencePool"}
    assert {ref["name"] for ref in rule["backendRefs"]} == pools


def test_a_models_own_service_leads_to_the_gateway_which_accepts_its_host_name(istio: Rendered):
    service = istio.kubernetes("Service", "gpt-oss-120b")["spec"]
    assert service == {"type": "ExternalName", "externalName": "inference-gateway-istio.llm-d.svc.cluster.local"}
    hosts = istio.kubernetes("HTTPRoute", "gpt-oss-120b-in-cluster")["spec"]["hostnames"]
    assert "gpt-oss-120b.llm-d.svc.cluster.local" in hosts


def test_istio_gets_a_destination_rule_for_the_certificate_of_each_picker(istio: Rendered):
    rules = [m for m in istio.manifests() if m["kind"] == "DestinationRule"]
    hosts = {without_hash(rule["spec"]["host"].split(".")[0]) for rule in rules}
    assert hosts == {"gpt-oss-120b-0-epp", "gpt-oss-120b-1-epp"}
    assert {rule["spec"]["trafficPolicy"]["tls"]["mode"] for rule in rules} == {"SIMPLE"}


def test_a_gateway_is_reachable_only_from_pods_by_default(provided: Rendered):
    (gateway,) = [m for m in provided.manifests() if m["kind"] == "Gateway"]
    own = [m for m in provided.manifests() if m["metadata"]["name"] == gateway["metadata"]["name"]]
    assert "ClusterIP" in json.dumps(own)
    assert "LoadBalancer" not in json.dumps(own)


@pytest.mark.parametrize("provider", gateway_provider_names())
def test_an_internal_gateway_has_an_internal_load_balancer(rendered: Any, provider: str):
    inside = rendered(stack(behind(), gateway=created(provider, exposure="internal")))
    own = json.dumps([m for m in inside.manifests() if m["metadata"]["name"] == "inference-gateway"])
    assert '"oci-network-load-balancer.oraclecloud.com/internal": "true"' in own
    assert "LoadBalancer" in own


def test_a_gateway_without_a_certificate_has_one_http_listener_for_clients_and_pods(istio: Rendered):
    (listener,) = istio.kubernetes("Gateway", "inference-gateway")["spec"]["listeners"]
    assert (listener["protocol"], listener["port"]) == ("HTTP", 80)


def test_a_gateways_certificate_is_for_external_clients_and_not_for_cluster_traffic(rendered: Any):
    tls = created("istio", host="llm.example.com", tls="certificate")
    secured = rendered(stack(behind(), gateway=tls))
    clients, cluster = secured.kubernetes("Gateway", "inference-gateway")["spec"]["listeners"]
    assert (clients["protocol"], clients["port"], clients["hostname"]) == ("HTTPS", 443, "llm.example.com")
    assert (cluster["protocol"], cluster["port"]) == ("HTTP", 80)
    sections = {
        name: secured.kubernetes("HTTPRoute", name)["spec"]["parentRefs"][0]["sectionName"]
        for name in ("gpt-oss-120b", "gpt-oss-120b-in-cluster")
    }
    assert sections == {"gpt-oss-120b": "clients", "gpt-oss-120b-in-cluster": "cluster"}


def test_a_created_istio_gateway_has_an_internal_service_and_an_update_waits_for_it(istio: Rendered):
    (gateway,) = [m for m in istio.manifests() if m["kind"] == "Gateway"]
    assert gateway["metadata"]["annotations"] == {
        "networking.istio.io/service-type": "ClusterIP",
        "pulumi.com/waitFor": "condition=Programmed",
    }


def test_an_existing_gateway_is_referenced_and_not_created(rendered: Any):
    there = {
        "mode": "existing",
        "provider": "agentgateway",
        "name": "shared",
        "namespace": "gateways",
        "uncheckedRequests": "accepted",
    }
    both = rendered(
        stack(
            behind(),
            behind(model=LLAMA, name="llama", router={"mode": "gateway", "route": {"hosts": ["l.example.com"]}}),
            gateway=there,
        )
    )
    assert not [m for m in both.manifests() if m["kind"] == "Gateway"]
    for name in ("gpt-oss-120b", "llama"):
        (parent,) = both.kubernetes("HTTPRoute", name)["spec"]["parentRefs"]
        assert (parent["name"], parent["namespace"]) == ("shared", "gateways")
    assert both.kubernetes("HTTPRoute", "llama")["spec"]["hostnames"] == ["l.example.com"]


def test_a_created_envoy_gateway_has_the_same_limits_as_the_kits_own_envoys(rendered: Any):
    most = bounds()
    made = rendered(stack(behind(), gateway=created("envoy-gateway")))
    (policy,) = [m["spec"] for m in made.manifests() if m["kind"] == "ClientTrafficPolicy"]
    assert policy["tcpKeepalive"] == {
        "idleTime": f"{most.keepalive_s}s",
        "interval": f"{most.keepalive_answer_s}s",
        "probes": 3,
    }
    assert policy["timeout"]["http"]["idleTimeout"] == f"{most.idle_connection_s}s"
    assert policy["connection"] == {
        "bufferLimit": f"{most.connection_kib}Ki",
        "connectionLimit": {"value": most.connections},
    }
    assert policy["http2"] == {
        "maxConcurrentStreams": most.streams,
        "initialStreamWindowSize": f"{most.stream_window_kib}Ki",
        "initialConnectionWindowSize": f"{most.connection_window_kib}Ki",
    }


def test_a_created_istio_gateway_has_the_same_limits_as_the_kits_own_envoys(istio: Rendered):
    (policy,) = policies(istio).values()
    *_, listener, manager = [patch["patch"]["value"] for patch in policy["spec"]["configPatches"]]
    own, expected = manager["typed_config"], manager_bounds()
    kept = listener_bounds()
    assert listener == {key: kept[key] for key in ("per_connection_buffer_limit_bytes", "tcp_keepalive")}
    assert own["request_headers_timeout"] == expected["request_headers_timeout"]
    for group in ("common_http_protocol_options", "http2_protocol_options"):
        assert own[group].items() <= expected[group].items()


POLICY_KINDS = {"EnvoyExtensionPolicy", "BackendTrafficPolicy", "EnvoyFilter"}


def policies(rendered_stack: Rendered) -> dict[str, Any]:
    """Return what holds requests to what clients may ask, by kind."""
    return {m["kind"]: m for m in rendered_stack.manifests() if m["kind"] in POLICY_KINDS}


@pytest.mark.parametrize("mode", [{"mode": "create"}, {"mode": "existing", "name": "shared", "namespace": "gateways"}])
def test_policies_of_envoy_gateway_buffer_and_check_the_requests_of_every_route(rendered: Any, mode: dict[str, str]):
    there = {} if mode["mode"] == "create" else {"service": {"name": "shared"}}
    routed = rendered(stack(behind(), gateway={**mode, **there, "provider": "envoy-gateway"}))
    made = policies(routed)
    assert set(made) == {"EnvoyExtensionPolicy", "BackendTrafficPolicy"}
    routes = {m["metadata"]["name"] for m in routed.manifests() if m["kind"] == "HTTPRoute"}
    for policy in made.values():
        assert {target["name"] for target in policy["spec"]["targetRefs"]} == routes
    assert made["BackendTrafficPolicy"]["spec"]["requestBuffer"] == {"limit": "32Mi"}
    (lua,) = made["EnvoyExtensionPolicy"]["spec"]["lua"]
    assert "clean(handle)\n  admit(handle)\n  check(handle)" in lua["inline"]


def test_an_httproute_is_created_after_the_policies_that_check_its_requests(rendered: Any):
    routed = rendered(stack(behind(), gateway=created("envoy-gateway")))
    waves = {(item.kind, item.name): item.wave for item in rendering_of("prod", routed.resources).objects}
    checked = max(wave for (kind, _), wave in waves.items() if kind in POLICY_KINDS)
    assert checked < min(wave for (kind, _), wave in waves.items() if kind == "HTTPRoute")


def test_a_created_istio_gateway_checks_requests_before_its_other_filters(istio: Rendered):
    (policy,) = policies(istio).values()
    (gateway,) = [m for m in istio.manifests() if m["kind"] == "Gateway"]
    assert policy["metadata"]["namespace"] == gateway["metadata"]["namespace"]
    assert [target["name"] for target in policy["spec"]["targetRefs"]] == [gateway["metadata"]["name"]]
    patches = [
        (patch["patch"]["operation"], patch["patch"]["value"]["name"]) for patch in policy["spec"]["configPatches"][:2]
    ]
    assert patches == [("INSERT_FIRST", "client-requests"), ("INSERT_FIRST", "envoy.filters.http.buffer")]
    assert policy["spec"]["configPatches"][1]["patch"]["value"]["typed_config"]["max_request_bytes"] == 32 * 2**20


def test_an_existing_istio_gateway_gets_no_filter(rendered: Any):
    shared = {
        "mode": "existing",
        "provider": "istio",
        "name": "shared",
        "namespace": "gateways",
        "uncheckedRequests": "accepted",
    }
    assert not policies(rendered(stack(behind(), gateway=shared)))


@pytest.mark.parametrize("provider", ["envoy-gateway", "istio"])
def test_the_gateway_keeps_the_header_value_by_which_its_route_selects_a_model(rendered: Any, provider: str):
    route = {"mode": "gateway", "route": {"headers": {"X-Gateway-Base-Model-Name": "openai/gpt-oss-120b"}}}
    made = json.dumps(policies(rendered(stack(behind(router=route), gateway=created(provider)))))
    kept = 'local Kept = {["x-gateway-base-model-name"] = {["openai/gpt-oss-120b"] = true}}'
    assert json.dumps(kept)[1:-1] in made


def test_an_httproute_is_created_after_its_servers_inferencepool_and_gateway(istio: Rendered):
    (route,) = istio.of_type("llmd-oke:index:ModelRoute")
    for kind in ("Gateway", "Deployment", "InferencePool"):
        assert any(f":{kind}::" in urn for urn in route.depends_on)


def test_the_address_of_a_model_behind_a_gateway_is_its_own_service(istio: Rendered):
    assert istio.outputs["endpoints"] == {"gpt-oss-120b": "http://gpt-oss-120b.llm-d.svc.cluster.local"}


def test_gitops_yaml_puts_the_gateway_and_the_pools_before_routes(istio: Rendered):
    waves = {(item.kind, item.name): item.wave for item in rendering_of("prod", istio.resources).objects}
    route = waves["HTTPRoute", "gpt-oss-120b"]
    before = [wave for (kind, _), wave in waves.items() if kind in {"Gateway", "InferencePool", "Deployment"}]
    assert max(before) < route
    assert waves["Service", "gpt-oss-120b"] > route
