"""The data of the network: rules of security groups, the layout of a VCN, ranges to keep clear of."""

from collections import Counter
from ipaddress import IPv4Network
from itertools import pairwise, product
from typing import get_args

from llmd_oke.catalogue import cluster
from llmd_oke.catalogue.cluster import GroupRole, Outside, SubnetRole

GROUPS = set(get_args(GroupRole))
RULES = cluster.security_rules()


def test_every_security_rule_has_a_source_and_a_valid_description():
    for rule in RULES:
        assert rule.source, rule
        assert 0 < len(rule.description) <= 255, rule


def test_security_rules_about_pods_apply_only_to_vcn_native_networks():
    assert [rule for rule in RULES if "pods" in {*rule.roles, *rule.peers} and rule.cni != "vcn-native"] == []


def test_no_security_rule_is_listed_twice():
    singles = Counter(
        single
        for rule in RULES
        for single in product(
            rule.roles, rule.directions, rule.protocols, [rule.ports], [rule.source_ports], rule.peers, [rule.cni]
        )
    )
    assert [single for single, count in singles.items() if count > 1] == []


def test_each_egress_rule_to_a_security_group_has_a_matching_ingress_rule():
    """But for answers to connections that the other side opened (rules are stateful), and for load balancers, which
    take what comes from ranges, not from groups.
    """
    singles = {
        (direction, role, peer, protocol, rule.ports)
        for rule in RULES
        for role, direction, protocol, peer in product(rule.roles, rule.directions, rule.protocols, rule.peers)
        if peer in GROUPS
    }
    exceptions = {("workers", "api", "10250"), ("storage", "workers", None)}
    exceptions |= {("pods", "load_balancers", None), ("pods", "public_load_balancers", None)}

    def received(role, peer, protocol, ports):
        into = {(p, q) for d, r, s, p, q in singles if (d, r, s) == ("ingress", peer, role)}
        return any(p in (protocol, "all") and q in (ports, None) for p, q in into)

    lost = [
        (role, peer, protocol, ports)
        for direction, role, peer, protocol, ports in sorted(singles, key=str)
        if direction == "egress" and (role, peer, ports) not in exceptions and not received(role, peer, protocol, ports)
    ]
    assert [one for one in lost if one[2] != "icmp"] == []


def test_every_security_group_has_rules_and_every_kind_of_peer_is_in_a_rule():
    assert {role for rule in RULES for role in rule.roles} == GROUPS
    assert {peer for rule in RULES for peer in rule.peers} == GROUPS | set(get_args(Outside))


def test_every_subnet_has_its_own_range_and_dns_label():
    layout = cluster.subnets()
    assert set(layout.fixed) | set(layout.growing) == set(get_args(SubnetRole))
    labels = [layout.dns_label(role) for role in get_args(SubnetRole)]
    assert len(set(labels)) == len(labels)
    assert all(label.isalnum() and len(label) <= 15 for label in labels)


def test_a_subnet_can_grow_in_place_because_larger_ranges_contain_smaller_ones():
    vcn = IPv4Network("10.0.0.0/16")
    for subnet in cluster.subnets().growing.values():
        blocks = [list(vcn.subnets(prefixlen_diff=block.newbits))[block.netnum] for block in subnet.blocks]
        assert all(small.subnet_of(large) for small, large in pairwise(blocks))


def test_reserved_address_ranges_are_those_of_rdma_and_of_ocis_own_services():
    assert {entry.cidr for entry in cluster.reserved_ranges()} == {
        *("10.224.0.0/12", "192.168.0.0/16", "10.208.0.0/12", "169.254.0.0/16")
    }
    assert all(entry.source and entry.holds for entry in cluster.reserved_ranges())


def test_the_kits_default_address_ranges_overlap_no_reserved_range():
    for default in ("10.140.0.0/16", "10.96.0.0/16", "10.240.0.0/12"):
        for entry in cluster.reserved_ranges():
            assert not IPv4Network(default).overlaps(IPv4Network(entry.cidr))
