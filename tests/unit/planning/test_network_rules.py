"""The rules of security groups, against the table of terraform-oci-oke and oci-hpc-oke written down once more here."""

from collections import Counter
from itertools import product

import pytest
from llmd_oke.planning.network import NetworkChoices
from llmd_oke.planning.network_rules import ANYWHERE, security_rules

# group | in, out or both | protocols | ports (`<` source ports) | peers | n: with a VCN-native network only
TABLE = """
api | out | tcp | | services |
api | out | tcp | 10250 | workers |
api | both | tcp | 12250 | workers |
api | both | tcp | 6443 | api |
api | in | tcp | 6443 | workers |
api | both | icmp | | workers |
api | in | tcp | 6443 | operator bastion_host 10.140.0.128/27 203.0.113.0/24 198.51.100.7/32 |
api | in | tcp | 6443 | pods | n
api | in | tcp | 12250 | pods | n
api | out | tcp | | pods | n
workers | out | tcp | | services |
workers | both | all | | workers |
workers | out | tcp | 6443 | api |
workers | out | tcp | 12250 | api |
workers | out | tcp | 10250 | api |
workers | in | all | | api |
workers | both | icmp | | 0.0.0.0/0 |
workers | both | all | | pods | n
workers | out | all | | 0.0.0.0/0 |
workers | in | tcp udp | 30000-32767 | load_balancers public_load_balancers |
workers | in | tcp | 10256 | load_balancers public_load_balancers |
workers | in | tcp | 22 | bastion_host |
workers | both | tcp udp | 111 | storage |
workers | both | tcp | 2048-2050 | storage |
workers | out | udp | 2048 | storage |
workers | both | tcp | <512-1023 988 | lustre |
operator | both | tcp | <512-1023 988 | lustre |
pods | out | tcp | | services | n
pods | both | all | | pods workers load_balancers public_load_balancers | n
pods | out | tcp | 6443 | api | n
pods | out | tcp | 12250 | api | n
pods | in | all | | api | n
pods | both | icmp | | 0.0.0.0/0 | n
pods | out | all | | 0.0.0.0/0 | n
load_balancers | out | tcp udp | 30000-32767 | workers |
load_balancers | out | tcp | 10256 | workers |
load_balancers | out | icmp | | workers |
load_balancers | out | all | | pods | n
load_balancers | in | all | | 10.140.0.0/16 |
public_load_balancers | out | tcp udp | 30000-32767 | workers |
public_load_balancers | out | tcp | 10256 | workers |
public_load_balancers | out | icmp | | workers |
public_load_balancers | out | all | | pods | n
public_load_balancers | in | tcp | 80 | 0.0.0.0/0 |
public_load_balancers | in | tcp | 443 | 0.0.0.0/0 |
operator | out | tcp | | services |
operator | out | tcp | 6443 | api |
operator | out | all | | 0.0.0.0/0 |
operator | in | tcp | 22 | bastion_host |
operator | in | icmp | | bastion_host |
bastion_host | in | tcp | 22 | 192.0.2.0/24 |
bastion_host | out | tcp | | services |
bastion_host | out | tcp | 22 | operator workers |
bastion_host | out | tcp | 6443 | api |
storage | in | tcp udp | 111 | workers |
storage | in | udp | 2048 | workers |
storage | in | tcp | 2048-2050 | workers |
storage | out | tcp udp | <111 | workers |
storage | out | tcp | <2048-2050 | workers |
lustre | both | tcp | <512-1023 988 | lustre workers operator |
"""

CIDRS = {
    "vcn": ["10.140.0.0/16"],
    "bastion-subnet": ["10.140.0.128/27"],
    "api-allowed-cidrs": ["203.0.113.0/24", "198.51.100.7/32"],
    "bastion-host-cidrs": ["192.0.2.0/24"],
    "public-load-balancer-cidrs": [ANYWHERE],
}

EVERYTHING = {
    "public_load_balancers": True,
    "bastion_host": True,
    "operator": True,
    "file_storage": True,
    "lustre": True,
}

DIRECTIONS = {"in": ["ingress"], "out": ["egress"], "both": ["ingress", "egress"]}


def expected(cni):
    for line in TABLE.strip().splitlines():
        group, directions, protocols, ports, peers, native = (part.strip() for part in line.split("|"))
        if native and cni == "flannel":
            continue
        source = [port[1:] for port in ports.split() if port.startswith("<")]
        destination = [port for port in ports.split() if not port.startswith("<")]
        for direction, protocol, peer in product(DIRECTIONS[directions], protocols.split(), peers.split()):
            yield group, direction, protocol, "".join(destination), "".join(source), peer


def found(choices, cidrs=None):
    return [
        (
            rule.group,
            rule.direction,
            rule.protocol,
            str(rule.ports or ""),
            str(rule.source_ports or ""),
            str(rule.peer).replace("oracle-services", "services"),
        )
        for rule in security_rules(choices.rules(CIDRS if cidrs is None else cidrs))
    ]


def cases():
    for cni in ("vcn-native", "flannel"):
        for rule in expected(cni):
            yield pytest.param(cni, rule, id=f"{cni} {' '.join(rule)}")


@pytest.mark.parametrize(("cni", "rule"), list(cases()))
def test_every_rule_of_the_table_is_there_once(cni, rule):
    assert found(NetworkChoices(cni=cni, **EVERYTHING)).count(rule) == 1


@pytest.mark.parametrize("cni", ["vcn-native", "flannel"])
def test_there_is_no_rule_beside_those_of_the_table(cni):
    assert Counter(found(NetworkChoices(cni=cni, **EVERYTHING))) == Counter(expected(cni))


def test_a_private_endpoint_without_allow_list_is_reached_from_inside_the_vcn_only():
    peers = {rule[5] for rule in found(NetworkChoices(), {"vcn": ["10.0.0.0/16"]}) if rule[:2] == ("api", "ingress")}
    assert peers == {"api", "workers", "pods"}


def test_a_public_endpoint_is_reached_by_its_allow_list_too_and_by_nobody_else():
    choices, allowed = NetworkChoices(public_endpoint=True), {"api-allowed-cidrs": ["203.0.113.0/24"]}
    new = set(found(choices, allowed)) - set(found(NetworkChoices(), {}))
    assert new == {("api", "ingress", "tcp", "6443", "", "203.0.113.0/24")}


@pytest.mark.parametrize("cni", ["vcn-native", "flannel"])
@pytest.mark.parametrize("everything", [{}, EVERYTHING])
def test_nothing_comes_in_from_anywhere_but_path_discovery_and_clients_of_public_services(cni, everything):
    open_rules = {
        rule[:4]
        for rule in found(NetworkChoices(cni=cni, **everything))
        if rule[1] == "ingress" and rule[5] == ANYWHERE
    }
    path_discovery = {(group, "ingress", "icmp", "") for group in ("workers", "pods")}
    public = {("public_load_balancers", "ingress", "tcp", port) for port in ("80", "443")}
    assert open_rules <= path_discovery | (public if everything else set())


def test_peers_are_groups_that_are_there():
    choices = NetworkChoices(cni="flannel")
    rules = security_rules(choices.rules({}))
    assert {rule.peer.group for rule in rules} - {None} <= {"api", "workers", "load_balancers"}
    assert {rule.group for rule in rules} == {"api", "workers", "load_balancers"}


@pytest.mark.parametrize(
    ("choices", "gone"),
    [
        ({"worker_internet": False}, ("workers", "egress", "all", "", "", ANYWHERE)),
        ({"pod_internet": False}, ("pods", "egress", "all", "", "", ANYWHERE)),
    ],
)
def test_the_internet_can_be_closed_for_nodes_and_for_pods(choices, gone):
    assert set(found(NetworkChoices())) - set(found(NetworkChoices(**choices))) == {gone}


def test_rules_have_names_of_their_own():
    rules = security_rules(NetworkChoices(**EVERYTHING).rules(CIDRS))
    assert len({(rule.group, rule.key) for rule in rules}) == len(rules)


def test_an_allow_list_that_names_a_range_twice_makes_one_rule():
    rules = found(NetworkChoices(), {"api-allowed-cidrs": ["203.0.113.0/24", "203.0.113.0/24"]})
    assert rules.count(("api", "ingress", "tcp", "6443", "", "203.0.113.0/24")) == 1


def test_each_group_has_fewer_rules_than_oci_allows():
    """OCI documentation, Service Limits: 120 rules for each network security group."""
    rules = security_rules(NetworkChoices(**EVERYTHING).rules(CIDRS))
    assert max(Counter(rule.group for rule in rules).values()) <= 120
