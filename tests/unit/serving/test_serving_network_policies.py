"""Who may reach the pods of a unit."""

import pytest
from llmd_oke.serving import labels, network_policies

API = ["10.140.0.0/29"]
VLLM, SIDE_CHANNEL = 8200, 5600


def peers(rules, port):
    return [
        rule.get("from") for rule in rules if "ports" not in rule or {"protocol": "TCP", "port": port} in rule["ports"]
    ]


def test_servers_behind_a_router_are_for_the_kits_pods_the_monitoring_and_the_api_server():
    own, others = peers(network_policies.servers_rules("u", routed=True, control_plane=API), VLLM)
    assert own == [{"podSelector": {"matchLabels": labels.unit_selector("u")}}]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "llmd-oke"}}} in others
    assert {"ipBlock": {"cidr": "10.140.0.0/29"}} in others
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "llm-d-monitoring"}}} in others


@pytest.mark.parametrize(("routed", "control_plane"), [(False, API), (True, None)])
def test_servers_are_open_without_a_router_and_where_the_api_servers_addresses_are_unknown(routed, control_plane):
    assert None in peers(network_policies.servers_rules("u", routed=routed, control_plane=control_plane), VLLM)


@pytest.mark.parametrize("routed", [True, False])
def test_cache_is_handed_over_among_the_servers_of_one_unit_alone(routed):
    rules = network_policies.servers_rules("u", routed=routed, control_plane=None)
    assert peers(rules, SIDE_CHANNEL) == [[{"podSelector": {"matchLabels": labels.unit_selector("u")}}]]
