from collections import Counter
from dataclasses import fields
from ipaddress import IPv4Network
from itertools import combinations

import pytest
from created_stacks import found, refusals, validated
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.catalogue import cluster as catalogue_network
from llmd_oke.planning.network import (
    ANYWHERE,
    NetworkChoices,
    PoolSize,
    addresses,
    control_plane_cidrs,
    layout,
    network_choices,
    nodes_with_surge,
    pod_addresses,
    security_rules,
)
from stack_files import created_pool, ocid

VCN = ocid("vcn")


def network(**changes):
    return {"network": changes}


@pytest.mark.parametrize("changes", [{}, network(cidr="10.0.0.0/16"), network(cidr="172.16.0.0/18")])
def test_the_default_network_range_and_other_valid_ones_are_accepted(changes):
    assert refusals(**changes) == {}


@pytest.mark.parametrize(
    "range_", ["10.224.0.0/16", "10.230.0.0/20", "192.168.0.0/16", "192.168.16.0/20", "10.208.0.0/16"]
)
@pytest.mark.parametrize("existing", [{}, {"vcnId": VCN}])
def test_a_vcn_overlapping_the_rdma_ranges_is_refused(range_, existing):
    result = refusals(**network(cidr=range_, **existing))
    assert "overlaps" in result["cluster.network.cidr"]


@pytest.mark.parametrize(
    ("choice", "changes"),
    [
        ("public_load_balancers", {"publicLoadBalancers": True}),
        ("public_load_balancers", {"subnets": {"publicLoadBalancers": ocid("subnet")}}),
        ("bastion_host", {"bastionHostCidrs": ["203.0.113.0/24"]}),
        ("bastion_host", {"securityGroups": {"bastionHost": ocid("networksecuritygroup")}}),
        ("operator", {"operator": True}),
        ("operator", {"subnets": {"operator": ocid("subnet")}}),
    ],
)
def test_a_network_has_an_optional_subnet_if_requested_or_its_ocid_is_given(choice, changes):
    def part(**changes):
        config = validated(**network(**changes))
        return getattr(network_choices(config, config.created_cluster), choice)

    assert (part(), part(vcnId=VCN, cidr="10.0.0.0/16", **changes)) == (False, True)


@pytest.mark.parametrize("bastion", [True, False])
def test_the_bastion_service_can_be_disabled(bastion):
    config = validated(**network(bastion=bastion))
    assert network_choices(config, config.created_cluster).bastion == bastion


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        ({"servicesCidr": "10.230.0.0/16"}, "servicesCidr", "RDMA interfaces"),
        ({"cni": "flannel", "podsCidr": "10.192.0.0/10"}, "podsCidr", "overlaps"),
        ({"servicesCidr": "10.140.0.0/20"}, "network.cidr", "overlaps that of Services, 10.140.0.0/20"),
        ({"cni": "flannel", "podsCidr": "10.96.0.0/12"}, "podsCidr", "overlaps that of Services"),
    ],
    ids=["Services and RDMA", "pods and RDMA", "Services and VCN", "pods and Services"],
)
def test_ranges_that_overlap_the_rdma_ranges_or_each_other_are_refused(changes, key, why):
    assert why in refusals(**changes)[f"cluster.{key}"]


def test_a_pod_range_is_refused_with_vcn_native_pods():
    assert refusals(cni="vcn-native", podsCidr="10.140.0.0/16") == {}


def test_a_vcn_without_room_for_the_pods_is_refused_with_figures():
    text = refusals(**network(cidr="10.0.0.0/21"))["cluster.network.cidr"]
    assert "the pods subnet needs 1664 addresses (12 nodes and 4 more during updates" in text
    assert "the VCN has room for 1021" in text
    assert "accepted: a range of /20 or larger" in text


def test_the_largest_vcn_range_is_suggested_if_only_that_has_room():
    text = refusals(created_pool(size=150, maxPods=110), **network(cidr="10.0.0.0/18"))["cluster.network.cidr"]
    assert text.endswith("(accepted: a range of /16 or larger)")


def test_a_larger_vcn_is_suggested_only_for_subnets_that_would_have_room_in_it():
    problems = found(created_pool(size=1000, maxPods=110), **network(cidr="10.0.0.0/20"))
    accepted = {problem.why.split()[1]: problem.accepted for problem in problems}
    fewer = "fewer nodes, fewer pods for each node (maxPods), or cni: flannel"
    assert accepted == {"workers": "a range of /19 or larger", "pods": fewer}


def test_existing_node_pools_and_subnets_take_no_addresses_of_the_vcn():
    assert refusals(created_pool(poolId=ocid("nodepool")), **network(cidr="10.0.0.0/21")) == {}
    given = {"subnets": {"pods": ocid("subnet", "pods")}}
    assert refusals(**network(vcnId=VCN, cidr="10.0.0.0/21", **given)) == {}


def test_fewer_nodes_or_flannel_are_suggested_if_no_vcn_has_enough_pod_addresses():
    text = refusals(created_pool(size=1000, maxPods=110), **network(cidr="10.0.0.0/16"))["cluster.network.cidr"]
    assert text.endswith("(accepted: fewer nodes, fewer pods for each node (maxPods), or cni: flannel)")


def test_fewer_nodes_alone_are_suggested_if_no_vcn_has_enough_node_addresses():
    pools = [created_pool(name=f"pool-{i}", size=1000) for i in range(20)]
    assert refusals(*pools, cni="flannel")["cluster.network.cidr"].endswith("(accepted: fewer nodes)")


@pytest.mark.parametrize(
    ("cidr", "accepted"),
    [("10.0.0.0/15", "/16 to /30"), ("10.0.0.1/16", "10.0.0.0/16"), ("10.0.0.0/33", "a prefix length up to 32")],
)
def test_a_vcn_range_of_invalid_size_or_notation_is_refused(cidr, accepted):
    assert accepted in refusals(**network(cidr=cidr))["cluster.network.cidr"]


def test_an_existing_vcn_requires_its_range_and_an_existing_cluster_its_vcn():
    assert list(refusals(**network(vcnId=VCN))) == ["cluster.network.cidr"]
    assert "cluster.network.vcnId" in refusals(clusterId=ocid("cluster"))


def test_existing_subnets_in_a_created_vcn_are_refused():
    result = refusals(
        **network(
            subnets={"api": ocid("subnet")},
            securityGroups={"loadBalancers": ocid("networksecuritygroup")},
            routeTables={"private": ocid("routetable")},
        )
    )
    assert set(result) == {
        "cluster.network.subnets.api",
        "cluster.network.securityGroups.loadBalancers",
        "cluster.network.routeTables.private",
    }


def test_a_pod_subnet_is_refused_with_an_overlay_network():
    given = {"subnets": {"pods": ocid("subnet")}, "securityGroups": {"pods": ocid("networksecuritygroup")}}
    result = refusals(cni="flannel", **network(vcnId=VCN, cidr="10.0.0.0/16", **given))
    assert set(result) == {"cluster.network.subnets.pods", "cluster.network.securityGroups.pods"}


def test_a_public_endpoint_requires_an_allow_list():
    assert list(refusals(apiEndpoint={"access": "public"})) == ["cluster.apiEndpoint.allowedCidrs"]
    assert refusals(apiEndpoint={"access": "public", "allowedCidrs": ["203.0.113.0/24"]}) == {}


@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"])
@pytest.mark.parametrize("access", ["public", "private"])
def test_an_allow_list_of_the_api_endpoint_with_the_whole_internet_is_refused(access, cidr):
    result = refusals(apiEndpoint={"access": access, "allowedCidrs": ["203.0.113.0/24", cidr]})
    assert set(result) == {"cluster.apiEndpoint.allowedCidrs[1]"}


def test_an_allow_list_may_have_ranges_of_up_to_a_prefix_of_eight_bits():
    assert refusals(apiEndpoint={"access": "public", "allowedCidrs": ["9.0.0.0/8"]}) == {}
    assert refusals(apiEndpoint={"access": "public", "allowedCidrs": ["8.0.0.0/7"]}) != {}


def test_the_whole_internet_may_reach_load_balancers_and_not_the_bastion_host():
    assert list(refusals(**network(bastionHostCidrs=["0.0.0.0/0"]))) == ["cluster.network.bastionHostCidrs[0]"]
    assert refusals(**network(publicLoadBalancers=True)) == {}


def test_all_network_problems_are_reported_at_once():
    result = refusals(
        apiEndpoint={"access": "public"},
        servicesCidr="10.230.0.0/16",
        **network(cidr="192.168.0.0/24", bastionHostCidrs=["1.2.3.4/24"]),
    )
    assert set(result) == {
        "cluster.apiEndpoint.allowedCidrs",
        "cluster.servicesCidr",
        "cluster.network.cidr",
        "cluster.network.bastionHostCidrs[0]",
    }


def test_in_the_serving_layer_the_network_of_the_cluster_is_not_checked():
    problems = found(stack_changes={"layer": "serving"}, **network(cidr="10.0.0.0/30"))
    assert not any(problem.path.startswith("cluster.network") for problem in problems)


CLIENTS = {"clientCidrs": ["203.0.113.0/24"]}


def test_a_vcn_of_invalid_size_is_checked_for_overlaps_too():
    problems = found(**network(cidr="10.224.0.0/12"))
    text = " ".join(problem.why for problem in problems if problem.path == "cluster.network.cidr")
    assert "no VCN ranges of other sizes" in text
    assert "overlaps" in text


@pytest.mark.parametrize("cidr", ["10.0.0.0/15", "10.0.0.0/31"])
def test_a_vcn_of_invalid_size_is_refused_with_one_problem(cidr: str):
    assert [problem.accepted for problem in found(**network(cidr=cidr))] == ["/16 to /30"]


@pytest.mark.parametrize(
    ("changes", "cidrs"),
    [
        ({}, ["10.140.0.0/29"]),
        (network(cidr="10.0.0.0/16"), ["10.0.0.0/29"]),
        (network(vcnId=VCN, cidr="10.0.0.0/16"), ["10.0.0.0/29"]),
        (network(vcnId=VCN, cidr="10.0.0.0/16", subnets={"api": ocid("subnet")}), None),
        (network(vcnId=VCN), None),
        (network(cidr="10.0.0.0/30"), None),
        ({"cni": "flannel"}, None),
    ],
)
def test_the_api_server_reaches_pods_from_its_subnet_if_planning_knows_the_range(changes, cidrs: list[str] | None):
    assert control_plane_cidrs(validated(**changes)) == cidrs


def test_a_bastion_service_with_an_allow_list_of_clients_is_accepted():
    assert refusals(**network(bastionService=CLIENTS)) == {}


PUBLIC = {"apiEndpoint": {"access": "public", "allowedCidrs": ["203.0.113.0/24"]}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (network(bastionService={"clientCidrs": ["0.0.0.0/0"]}), "clientCidrs[0]"),
        (network(bastionService=CLIENTS, bastion=False), "clientCidrs"),
        (network(bastionService={"ocid": ocid("bastion")}), "ocid"),
        (network(bastionService={**CLIENTS, "ocid": ocid("bastion")}, vcnId=VCN, cidr="10.0.0.0/16"), "clientCidrs"),
        ({**PUBLIC, **network(bastionService=CLIENTS)}, "clientCidrs"),
        (network(bastionService={"subnetCidr": "10.0.0.0/27"}), "subnetCidr"),
    ],
)
def test_contradictory_or_open_settings_of_the_bastion_service_are_refused(changes, key):
    assert set(refusals(**changes)) == {f"cluster.network.bastionService.{key}"}


EVERYTHING = NetworkChoices(
    public_load_balancers=True, bastion_host=True, operator=True, file_storage=True, lustre=True
).subnet_roles
FLANNEL = NetworkChoices(cni="flannel").subnet_roles
REFERENCE = [PoolSize(9, 64), PoolSize(3, 93)]


def subnets(cidr, roles=EVERYTHING, pools=REFERENCE):
    result = layout(IPv4Network(cidr), roles, pools)
    assert result.too_small == ()
    return {role: str(network) for role, network in result.subnets.items()}


def crowded(cidr, roles, pools=REFERENCE):
    return {part.role: (part.needed, part.room) for part in layout(IPv4Network(cidr), roles, pools).too_small}


def test_a_vcn_of_the_usual_size_has_the_subnets_of_oci_hpc_oke():
    assert subnets("10.140.0.0/16") == {
        "api": "10.140.0.0/29",
        "bastion_host": "10.140.0.8/29",
        "operator": "10.140.0.16/29",
        "load_balancers": "10.140.0.32/27",
        "public_load_balancers": "10.140.0.64/27",
        "storage": "10.140.0.96/27",
        "bastion": "10.140.0.128/27",
        "lustre": "10.140.2.0/23",
        "workers": "10.140.64.0/19",
        "pods": "10.140.128.0/17",
    }


def test_in_a_smaller_vcn_only_the_large_subnets_are_smaller():
    assert subnets("10.0.0.0/20", FLANNEL, [PoolSize(9, 64)]) == {
        "api": "10.0.0.0/29",
        "load_balancers": "10.0.0.32/27",
        "bastion": "10.0.0.128/27",
        "workers": "10.0.4.0/23",
    }


def test_the_nodes_subnet_keeps_its_first_address_when_more_nodes_enlarge_it():
    few, most, more = (subnets("10.0.0.0/20", FLANNEL, [PoolSize(nodes, 64)])["workers"] for nodes in (400, 407, 408))
    assert addresses(IPv4Network(most)) == nodes_with_surge([PoolSize(407, 64)])
    assert (few, most, more) == ("10.0.4.0/23", "10.0.4.0/23", "10.0.4.0/22")


def test_the_network_has_addresses_for_pools_that_grow_by_a_quarter_during_updates():
    assert nodes_with_surge([PoolSize(9, 64), PoolSize(1, 31)]) == 9 + 3 + 1 + 1


@pytest.mark.parametrize(("max_pods", "expected"), [(31, 2 * 32), (32, 2 * 64), (64, 2 * 96), (110, 2 * 128)])
def test_every_vnic_takes_32_addresses_for_up_to_31_pods(max_pods, expected):
    assert pod_addresses([PoolSize(1, max_pods)]) == expected


def test_three_addresses_of_each_subnet_are_reserved_by_oci():
    assert addresses(IPv4Network("10.0.0.0/29")) == 5
    assert addresses(IPv4Network("10.0.0.0/31")) == 0


def test_all_subnets_without_room_are_told_one_range_with_room_for_all():
    crowded = [problem for problem in found(**network(cidr="10.0.0.0/24")) if problem.path == "cluster.network.cidr"]
    assert len(crowded) > 1
    assert {problem.accepted for problem in crowded} == {"a range of /20 or larger"}


def test_a_pods_subnet_with_too_few_addresses_is_reported_with_figures():
    result = layout(IPv4Network("10.0.0.0/22"), NetworkChoices().subnet_roles, REFERENCE)
    (pods,) = result.too_small
    assert (pods.role, pods.needed, pods.room) == ("pods", 12 * 96 + 4 * 96, 509)
    pools = "12 nodes and 4 more during updates, with up to 93 pods each on VNICs of 32 addresses"
    assert pods.reason == f"needs 1536 addresses ({pools}); the VCN has room for 509"


@pytest.mark.parametrize(("pools", "most"), [(REFERENCE, 93), ([], 0)])
def test_a_range_without_any_block_for_the_pods_subnet_has_room_for_no_address(pools: list[PoolSize], most: int):
    result = layout(IPv4Network("10.0.0.0/30"), EVERYTHING, pools)
    (pods,) = (part for part in result.too_small if part.role == "pods")
    assert f"with up to {most} pods each" in pods.reason
    assert pods.reason.endswith("the VCN has room for 0")


def test_as_many_nodes_as_the_workers_subnet_has_addresses_for_are_accepted():
    assert crowded("10.0.0.0/22", FLANNEL, [PoolSize(202, 64)]) == {}
    assert crowded("10.0.0.0/22", FLANNEL, [PoolSize(203, 64)]) == {"workers": (254, 253)}


def test_the_smallest_block_for_nodes_is_as_small_as_ocis_smallest_subnet():
    assert crowded("10.0.0.0/28", ["workers"], [PoolSize(1, 31)]) == {"workers": (2, 1)}
    assert crowded("10.0.0.0/29", ["workers"], [PoolSize(1, 31)]) == {"workers": (2, 0)}


def test_a_vcn_too_small_for_a_file_system_is_refused():
    roles = NetworkChoices(cni="flannel", lustre=True).subnet_roles
    assert crowded("10.0.0.0/21", roles) == {"lustre": (1024, 512)}
    assert crowded("10.0.0.0/20", roles) == {}


@pytest.mark.parametrize("cidr", ["10.0.0.0/29", "10.0.0.0/30"])
def test_a_vcn_of_a_few_addresses_is_too_small_for_every_subnet(cidr):
    assert set(crowded(cidr, FLANNEL)) == set(FLANNEL)


@given(
    prefix=st.integers(16, 30),
    flannel=st.booleans(),
    flags=st.lists(st.booleans(), min_size=5, max_size=5),
    pools=st.lists(st.builds(PoolSize, st.integers(1, 300), st.integers(1, 110)), min_size=1, max_size=3),
)
def test_subnets_lie_in_the_vcn_never_overlap_and_have_enough_addresses(prefix, flannel, flags, pools):
    load_balancers, host, operator, files, lustre = flags
    choices = NetworkChoices(
        cni="flannel" if flannel else "vcn-native",
        public_load_balancers=load_balancers,
        bastion_host=host,
        operator=operator,
        file_storage=files,
        lustre=lustre,
    )
    vcn = IPv4Network((int(IPv4Network("10.0.0.0/8").network_address), prefix))
    result = layout(vcn, choices.subnet_roles, pools)
    assert {*result.subnets, *(part.role for part in result.too_small)} == set(choices.subnet_roles)
    assert all(network.subnet_of(vcn) for network in result.subnets.values())
    assert not any(one.overlaps(other) for one, other in combinations(result.subnets.values(), 2))
    assert "workers" not in result.subnets or addresses(result.subnets["workers"]) >= nodes_with_surge(pools)
    assert "pods" not in result.subnets or addresses(result.subnets["pods"]) >= pod_addresses(pools)
    assert all(part.needed > part.room for part in result.too_small)


CIDRS = {
    "vcn": ["10.140.0.0/16"],
    "bastion-subnet": ["10.140.0.128/27"],
    "api-allowed-cidrs": ["203.0.113.0/24", "198.51.100.7/32"],
    "bastion-host-cidrs": ["192.0.2.0/24"],
    "public-load-balancer-cidrs": [ANYWHERE],
}

ALL_PARTS = {
    "public_load_balancers": True,
    "bastion_host": True,
    "operator": True,
    "file_storage": True,
    "lustre": True,
}


def rows_of(choices, cidrs=None):
    return [
        (
            rule.group,
            rule.direction,
            rule.protocol,
            str(rule.ports or ""),
            str(rule.source_ports or ""),
            str(rule.peer).replace("oracle-services", "services"),
        )
        for rule in security_rules(choices, CIDRS if cidrs is None else cidrs)
    ]


def test_a_flannel_network_has_the_rules_of_a_vcn_native_one_but_for_those_of_pods():
    """Those of VCN-native networks stand in golden files."""
    native = rows_of(NetworkChoices(**ALL_PARTS))
    assert len(set(native)) == len(native)
    without_pods = [row for row in native if "pods" not in {row[0], row[5]}]
    assert rows_of(NetworkChoices(cni="flannel", **ALL_PARTS)) == without_pods


def test_a_private_endpoint_without_allow_list_is_reachable_only_from_the_vcn():
    peers = {rule[5] for rule in rows_of(NetworkChoices(), {"vcn": ["10.0.0.0/16"]}) if rule[:2] == ("api", "ingress")}
    assert peers == {"api", "workers", "pods"}


def test_a_public_endpoint_is_reachable_only_by_its_allow_list_and_the_vcn():
    choices, allowed = NetworkChoices(public_endpoint=True), {"api-allowed-cidrs": ["203.0.113.0/24"]}
    new = set(rows_of(choices, allowed)) - set(rows_of(NetworkChoices(), {}))
    assert new == {("api", "ingress", "tcp", "6443", "", "203.0.113.0/24")}


@pytest.mark.parametrize("cni", ["vcn-native", "flannel"])
@pytest.mark.parametrize("everything", [{}, ALL_PARTS])
def test_only_path_discovery_and_public_load_balancers_admit_the_internet(cni, everything):
    open_rules = {
        rule[:4]
        for rule in rows_of(NetworkChoices(cni=cni, **everything))
        if rule[1] == "ingress" and rule[5] == ANYWHERE
    }
    path_discovery = {(group, "ingress", "icmp", "") for group in ("workers", "pods")}
    public = {("public_load_balancers", "ingress", "tcp", port) for port in ("80", "443")}
    assert open_rules <= path_discovery | (public if everything else set())


def test_conditions_of_security_rules_are_only_internet_access_of_nodes_or_pods():
    needs = {row.needs for row in catalogue_network.security_rules()} - {None}
    assert needs == {"worker_internet", "pod_internet"}
    assert needs <= {field.name for field in fields(NetworkChoices) if field.type in {"bool", bool}}


def test_security_rules_refer_only_to_existing_security_groups():
    choices = NetworkChoices(cni="flannel")
    rules = security_rules(choices, {})
    assert {rule.peer.group for rule in rules} - {None} <= {"api", "workers", "load_balancers"}
    assert {rule.group for rule in rules} == {"api", "workers", "load_balancers"}


@pytest.mark.parametrize(("group", "choice"), [("workers", "worker_internet"), ("pods", "pod_internet")])
def test_internet_access_can_be_disabled_for_nodes_and_for_pods(group, choice):
    gone = set(rows_of(NetworkChoices())) - set(rows_of(NetworkChoices(**{choice: False})))
    assert gone == {(group, "egress", "all", "", "", ANYWHERE)}


def test_security_rules_have_unique_keys_in_their_network_security_group():
    rules = security_rules(NetworkChoices(**ALL_PARTS), CIDRS)
    assert len({(rule.group, rule.key) for rule in rules}) == len(rules)


def test_a_duplicate_range_in_an_allow_list_makes_one_security_rule():
    rules = rows_of(NetworkChoices(), {"api-allowed-cidrs": ["203.0.113.0/24", "203.0.113.0/24"]})
    assert rules.count(("api", "ingress", "tcp", "6443", "", "203.0.113.0/24")) == 1


def test_each_network_security_group_has_at_most_the_rules_that_oci_allows():
    """OCI documentation, Service Limits: 120 rules for each network security group."""
    rules = security_rules(NetworkChoices(**ALL_PARTS), CIDRS)
    assert max(Counter(rule.group for rule in rules).values()) <= 120
