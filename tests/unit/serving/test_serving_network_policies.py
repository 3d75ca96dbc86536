import pytest
from llmd_oke.serving import labels, network_policies

API = ["10.140.0.0/29"]
VLLM, SIDE_CHANNEL = 8200, 5600


def peers(rules, port):
    return [
        rule.get("from") for rule in rules if "ports" not in rule or {"protocol": "TCP", "port": port} in rule["ports"]
    ]


def rules(role="decode", routed=True, control_plane=API):
    return network_policies.servers_rules("u", role, routed, control_plane)


def selectors(matches):
    return [peer["podSelector"] for peer in matches if "podSelector" in peer]


def test_servers_admit_their_router_benchmarks_monitoring_and_the_api_server_only():
    (matches,) = peers(rules("aggregated"), VLLM)
    assert {"podSelector": {"matchLabels": labels.router_selector("u")}} in matches
    assert {"ipBlock": {"cidr": "10.140.0.0/29"}} in matches
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "llm-d-monitoring"}}} in matches
    measuring = [item["matchExpressions"][0]["key"] for item in selectors(matches) if "matchExpressions" in item]
    assert measuring == ["llmd-oke/smoke", "llmd-oke/part-of-job"]
    assert len(matches) == 5
    assert {"matchLabels": {"app.kubernetes.io/part-of": "llmd-oke"}} not in [
        item for matches in peers(rules(), VLLM) for item in matches
    ]


@pytest.mark.parametrize("control_plane", [API, None])
def test_servers_behind_neither_a_router_nor_api_keys_admit_every_pod(control_plane):
    assert None in peers(rules(routed=False, control_plane=control_plane), VLLM)


@pytest.mark.parametrize(("routed", "signed_in"), [(True, False), (False, True)])
def test_servers_admit_no_addresses_if_those_of_the_api_server_are_unknown(routed, signed_in):
    (matches,) = peers(network_policies.servers_rules("u", "aggregated", routed, None, signed_in=signed_in), VLLM)
    assert matches
    assert not [item for item in matches if "ipBlock" in item]


@pytest.mark.parametrize(("role", "partner"), [("prefill", "decode"), ("decode", "prefill")])
@pytest.mark.parametrize("routed", [True, False])
def test_servers_accept_kv_transfers_only_from_the_other_role_of_their_model_copy(role, partner, routed):
    (matches,) = peers(rules(role, routed, None), SIDE_CHANNEL)
    assert selectors(matches) == [{"matchLabels": labels.role_selector("u", partner)}]


def test_aggregated_servers_accept_no_kv_cache():
    assert peers(rules("aggregated"), SIDE_CHANNEL) == []


def test_pods_without_own_network_policy_admit_no_pod_except_operations_pods():
    default, operations, *_ = network_policies.defaults("llm-d")
    assert default["spec"]["podSelector"] == {}
    assert default["spec"]["ingress"] == []
    (rule,) = operations["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": operations["spec"]["podSelector"]}]}


def blocks(rules):
    return [peer["ipBlock"] for rule in rules for peer in rule["to"] if "ipBlock" in peer]


def test_pods_without_own_network_policy_reach_only_dns_and_allowed_destinations():
    opened = [{"cidr": "10.9.0.0/16", "ports": [443]}, {"cidr": "0.0.0.0/0"}]
    dns, chosen, everything = network_policies.defaults("llm-d", API, opened)[0]["spec"]["egress"]
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("TCP", 53), ("UDP", 53)}
    assert chosen["ports"] == [{"protocol": "TCP", "port": 443}]
    assert blocks([chosen]) == [{"cidr": "10.9.0.0/16", "except": []}]
    assert blocks([everything]) == [{"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}]


@pytest.mark.parametrize(("role", "partner"), [("prefill", "decode"), ("decode", "prefill")])
def test_servers_may_open_kv_transfers_only_to_the_other_role_of_their_model_copy(role, partner):
    rules = network_policies.servers_destinations("u", role, asks_api_server=False, control_plane=API, tracing=None)
    (partners,) = [rule["to"] for rule in rules if "ports" not in rule]
    assert selectors(partners) == [{"matchLabels": labels.role_selector("u", partner)}]


def test_a_routers_egress_to_the_api_server_is_limited_to_known_addresses():
    rules = network_policies.router_destinations("u", {"a": "b"}, API, None)
    (ports,) = [rule["ports"] for rule in rules if {"ipBlock": {"cidr": API[0]}} in rule["to"]]
    assert [port["port"] for port in ports] == [443, 6443]
