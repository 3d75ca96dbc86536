from functools import partial
from ipaddress import IPv4Network
from typing import Any, cast

from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy
from llmd_rehearsal.pods.network_policies import openings
from llmd_rehearsal.pods.packet_filters import PodOpenings


def pod(address: str, namespace: str = "models", phase: str = "Running", **labels: str) -> Pod:
    ports = [{"name": "http", "containerPort": 8000}]
    body = {
        "metadata": {"name": address, "namespace": namespace, "labels": labels, "uid": f"uid-{address}"},
        "spec": {"containers": [{"name": "main", "ports": ports}]},
        "status": {"podIP": address, "phase": phase},
    }
    return cast("Pod", Pod.from_dict(body))


def policy(*ingress: Any, selector: Any = None, **more: Any) -> NetworkPolicy:
    spec = {"podSelector": selector or {"matchLabels": {"app": "server"}}, "ingress": list(ingress), **more}
    body = {"metadata": {"name": "p", "namespace": "models"}, "spec": spec}
    return cast("NetworkPolicy", NetworkPolicy.from_dict(body))


NAMESPACES = [
    cast("Namespace", Namespace.from_dict({"metadata": {"name": name, "labels": {"is": name}}}))
    for name in ("models", "other")
]
SERVER = pod("10.0.0.1", app="server")
ROUTER = pod("10.0.0.2", app="router")
FOREIGN = pod("10.0.0.3", "other", app="router")
ENDED = pod("10.0.0.4", phase="Succeeded", app="router")
PODS = [SERVER, ROUTER, FOREIGN, ENDED]
ROUTERS = {"podSelector": {"matchLabels": {"app": "router"}}}


ADDRESSES = ("10.0.0.2", "10.0.0.3", "10.0.0.4", "192.0.2.1")


def permitted(direction: str, *policies: NetworkPolicy, port: int = 8000) -> dict[str, bool]:
    """Tell by address whether the server may connect to it, or be reached from there."""
    admitted = getattr(openings(PODS, policies, NAMESPACES).get("10.0.0.1", PodOpenings()), direction)
    return {peer: admitted is None or any(opening.allows(peer, port) for opening in admitted) for peer in ADDRESSES}


reached, goes = partial(permitted, "incoming"), partial(permitted, "outgoing")


def only(*addresses: str) -> dict[str, bool]:
    return {address: address in addresses for address in ADDRESSES}


def test_pods_without_a_network_policy_are_reachable() -> None:
    assert all(reached().values())
    assert all(reached(policy(selector={"matchLabels": {"app": "router"}})).values())


def test_a_namespace_selector_chooses_pods_outside_of_the_policys_own_namespace() -> None:
    assert reached(policy({"from": [ROUTERS]})) == only("10.0.0.2")
    other = {"namespaceSelector": {"matchLabels": {"is": "other"}}}
    assert reached(policy({"from": [other]})) == only("10.0.0.3")
    assert reached(policy({"from": [{**other, **ROUTERS}]})) == only("10.0.0.3")
    assert reached(policy({"from": [{"namespaceSelector": {}, **ROUTERS}]})) == only("10.0.0.2", "10.0.0.3")


def test_address_blocks_of_network_policies_can_have_exceptions() -> None:
    block = {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.2/31"]}}
    assert reached(policy({"from": [block]})) == only("10.0.0.4")


def test_rules_of_a_network_policy_and_of_several_policies_are_additive() -> None:
    block = {"ipBlock": {"cidr": "192.0.2.0/24"}}
    assert reached(policy({"from": [ROUTERS]}, {"from": [block]})) == only("10.0.0.2", "192.0.2.1")
    assert reached(policy({"from": [ROUTERS]}), policy({"from": [block]})) == only("10.0.0.2", "192.0.2.1")


def test_ports_of_network_policies_match_by_number_range_and_name() -> None:
    for ports in ([{"port": 8000}], [{"port": 7999, "endPort": 8001}], [{"port": "http"}], [{"protocol": "TCP"}]):
        assert reached(policy({"ports": ports})) == only(*ADDRESSES)
    for ports in ([{"port": 8200}], [{"port": "grpc"}], [{"port": 8000, "protocol": "UDP"}]):
        assert reached(policy({"ports": ports})) == only()


def test_selectors_of_network_policies_can_have_match_expressions() -> None:
    def chosen(operator: str, *values: str) -> bool:
        expression = {"key": "app", "operator": operator, **({"values": list(values)} if values else {})}
        return not any(reached(policy(selector={"matchExpressions": [expression]})).values())

    assert chosen("Exists")
    assert chosen("In", "server", "x")
    assert chosen("NotIn", "x")
    assert not chosen("DoesNotExist")
    assert not chosen("In", "x")


def test_network_policies_apply_to_a_pods_address_before_its_status_has_it() -> None:
    young = pod("", app="server")
    admitted = openings([young, ROUTER], [policy({"from": [ROUTERS]})], NAMESPACES, {"uid-": "10.0.0.9"})
    (opening,) = admitted["10.0.0.9"].incoming or ()
    assert opening.allows("10.0.0.2", 1)


def egress(*rules: Any, **more: Any) -> NetworkPolicy:
    return policy(policyTypes=["Egress"], egress=list(rules), **more)


def test_a_policy_without_rules_permits_no_connection_of_its_own_direction() -> None:
    assert (reached(policy()), goes(policy())) == (only(), only(*ADDRESSES))
    assert (reached(egress()), goes(egress())) == (only(*ADDRESSES), only())


def test_destinations_of_egress_policies_can_be_pods_address_blocks_and_ports() -> None:
    block = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.0.2.0/24"]}}
    assert goes(egress({"to": [ROUTERS]})) == only("10.0.0.2")
    assert goes(egress({"to": [block]})) == only("10.0.0.2", "10.0.0.3", "10.0.0.4")
    assert goes(egress({"to": [ROUTERS], "ports": [{"port": 9000}]})) == only()
    assert goes(egress({"to": [ROUTERS], "ports": [{"port": "http"}]})) == only("10.0.0.2")


def test_egress_rules_apply_if_a_policy_has_no_policy_types() -> None:
    assert goes(policy(egress=[{"to": [ROUTERS]}])) == only("10.0.0.2")


def test_egress_to_pods_of_all_namespaces_becomes_the_block_of_all_pod_addresses() -> None:
    everybody = egress({"to": [{"namespaceSelector": {}}]})
    admitted = openings(PODS, [everybody], NAMESPACES, network=IPv4Network("10.0.0.0/24"))["10.0.0.1"].outgoing
    assert [opening.peer for opening in admitted or ()] == [IPv4Network("10.0.0.0/24")]
