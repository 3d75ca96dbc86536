"""Who may reach the pods of a unit."""

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


def test_servers_behind_a_router_admit_it_benchmarks_monitoring_and_the_api_server():
    (matches,) = peers(rules("aggregated"), VLLM)
    assert {"podSelector": {"matchLabels": labels.router_selector("u")}} in matches
    assert {"ipBlock": {"cidr": "10.140.0.0/29"}} in matches
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "llm-d-monitoring"}}} in matches
    measuring = [item["matchExpressions"][0]["key"] for item in selectors(matches) if "matchExpressions" in item]
    assert measuring == ["llmd-oke/smoke", "llmd-oke/part-of-job"]
    assert len(matches) == 5


def test_no_pod_reaches_servers_for_being_the_kits_alone():
    assert {"matchLabels": network_policies.KIT} not in [item for matches in peers(rules(), VLLM) for item in matches]


@pytest.mark.parametrize(("routed", "control_plane"), [(False, API), (True, None)])
def test_servers_are_open_without_a_router_or_without_the_api_servers_addresses(routed, control_plane):
    assert None in peers(rules(routed=routed, control_plane=control_plane), VLLM)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("routed", [True, False])
def test_cache_is_handed_over_between_prefill_and_decode_of_one_unit_alone(role, routed):
    (matches,) = peers(rules(role, routed, None), SIDE_CHANNEL)
    assert selectors(matches) == [{"matchLabels": labels.role_selector("u", item)} for item in ("prefill", "decode")]


def test_servers_that_do_both_take_no_cache():
    assert peers(rules("aggregated"), SIDE_CHANNEL) == []


def test_pods_without_a_policy_are_reached_by_nobody_and_operations_by_each_other():
    default, operations = network_policies.defaults("llm-d")
    assert default["spec"]["podSelector"] == {"matchLabels": {"app.kubernetes.io/part-of": "llmd-oke"}}
    assert default["spec"]["ingress"] == []
    (rule,) = operations["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": operations["spec"]["podSelector"]}]}
