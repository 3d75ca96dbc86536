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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        network(cidr="10.0.0.0/16"),
        network(cidr="172.16.0.0/18"),
        {"cni": "vcn-native", "podsCidr": "10.140.0.0/16"},
        {"apiEndpoint": {"access": "public", "allowedCidrs": ["203.0.113.0/24", "9.0.0.0/8"]}},
        network(publicLoadBalancers=True),
        network(bastionService={"clientCidrs": ["203.0.113.0/24"]}),
        network(vcnId=VCN, cidr="10.0.0.0/21", subnets={"pods": ocid("subnet", "pods")}),
    ],
)
def test_valid_ranges_and_allow_lists_of_a_network_are_accepted(changes):
    assert refusals(**changes) == {}


def test_existing_node_pools_take_no_addresses_of_the_vcn():
    assert refusals(created_pool(poolId=ocid("nodepool")), **network(cidr="10.0.0.0/21")) == {}


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


LARGE = created_pool(size=1000, maxPods=110)
FEWER = "fewer nodes, fewer pods for each node (maxPods), or cni: flannel"


@pytest.mark.parametrize(
    ("pools", "changes", "accepted"),
    [
        ([], network(cidr="10.0.0.0/21"), "a range of /20 or larger"),
        ([created_pool(size=150, maxPods=110)], network(cidr="10.0.0.0/18"), "a range of /16 or larger"),
        ([LARGE], network(cidr="10.0.0.0/16"), FEWER),
        ([created_pool(name=f"pool-{i}", size=1000) for i in range(20)], {"cni": "flannel"}, "fewer nodes"),
    ],
    ids=["a larger range", "the largest", "too many pods for any", "too many nodes for any"],
)
def test_a_vcn_without_room_is_refused_with_what_would_have_room(pools, changes, accepted):
    assert refusals(*pools, **changes)["cluster.network.cidr"].endswith(f"(accepted: {accepted})")


@pytest.mark.parametrize(
    ("pools", "cidr", "accepted"),
    [
        ([LARGE], "10.0.0.0/20", {"workers": "a range of /19 or larger", "pods": FEWER}),
        ([], "10.0.0.0/24", dict.fromkeys(("bastion", "pods"), "a range of /20 or larger")),
    ],
)
def test_a_larger_vcn_is_suggested_for_all_subnets_that_would_have_room_in_it(pools, cidr, accepted):
    problems = found(*pools, **network(cidr=cidr))
    assert {problem.why.split()[1]: problem.accepted for problem in problems} == accepted


@pytest.mark.parametrize(
    ("cidr", "accepted"),
    [
        ("10.0.0.0/15", "/16 to /30"),
        ("10.0.0.0/31", "/16 to /30"),
        ("10.0.0.1/16", "10.0.0.0/16"),
        ("10.0.0.0/33", "a prefix length up to 32"),
    ],
)
def test_a_vcn_range_of_invalid_size_or_notation_is_refused_with_one_problem(cidr, accepted):
    (problem,) = found(**network(cidr=cidr))
    assert (problem.path, accepted in problem.accepted) == ("cluster.network.cidr", True)


PODS_OF_OTHERS = {"subnets": {"pods": ocid("subnet")}, "securityGroups": {"pods": ocid("networksecuritygroup")}}
PARTS_OF_OTHERS = {
    "subnets": {"api": ocid("subnet")},
    "securityGroups": {"loadBalancers": ocid("networksecuritygroup")},
    "routeTables": {"private": ocid("routetable")},
}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (network(vcnId=VCN), ["network.cidr"]),
        ({"clusterId": ocid("cluster")}, ["network.vcnId"]),
        (network(**PARTS_OF_OTHERS), [f"network.{key}.{part}" for key, (part,) in PARTS_OF_OTHERS.items()]),
        (
            {"cni": "flannel", **network(vcnId=VCN, cidr="10.0.0.0/16", **PODS_OF_OTHERS)},
            ["network.subnets.pods", "network.securityGroups.pods"],
        ),
        ({"apiEndpoint": {"access": "public"}}, ["apiEndpoint.allowedCidrs"]),
        ({"apiEndpoint": {"access": "public", "allowedCidrs": ["8.0.0.0/7"]}}, ["apiEndpoint.allowedCidrs[0]"]),
        (network(bastionHostCidrs=["0.0.0.0/0"]), ["network.bastionHostCidrs[0]"]),
    ],
    ids=[
        *("a VCN without its range", "a cluster without its VCN", "parts in a VCN that is created"),
        *("a subnet of pods with an overlay network", "a public endpoint for nobody", "half of the internet"),
        "a host for the whole internet",
    ],
)
def test_settings_of_a_network_that_lack_or_contradict_others_are_refused(changes, keys):
    assert set(refusals(**changes)) == {f"cluster.{key}" for key in keys}


@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"])
@pytest.mark.parametrize("access", ["public", "private"])
def test_an_allow_list_of_the_api_endpoint_with_the_whole_internet_is_refused(access, cidr):
    result = refusals(apiEndpoint={"access": access, "allowedCidrs": ["203.0.113.0/24", cidr]})
    assert set(result) == {"cluster.apiEndpoint.allowedCidrs[1]"}


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


@pytest.mark.parametrize(
    ("cidr", "roles", "nodes", "without_room"),
    [
        ("10.0.0.0/22", FLANNEL, 202, {}),
        ("10.0.0.0/22", FLANNEL, 203, {"workers": (254, 253)}),
        ("10.0.0.0/28", ["workers"], 1, {"workers": (2, 1)}),
        ("10.0.0.0/29", ["workers"], 1, {"workers": (2, 0)}),
        ("10.0.0.0/20", NetworkChoices(cni="flannel", lustre=True).subnet_roles, 12, {}),
        ("10.0.0.0/21", NetworkChoices(cni="flannel", lustre=True).subnet_roles, 12, {"lustre": (1024, 512)}),
    ],
    ids=["nodes for all addresses", "one more", "OCI's smallest subnet", "below", "a file system", "too small for one"],
)
def test_subnets_without_room_are_those_that_need_more_addresses_than_they_can_get(cidr, roles, nodes, without_room):
    assert crowded(cidr, roles, [PoolSize(nodes, 31)]) == without_room


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
    """Golden files record the rules of VCN-native networks."""
    native = rows_of(NetworkChoices(**ALL_PARTS))
    assert len(set(native)) == len(native)
    without_pods = [row for row in native if "pods" not in {row[0], row[5]}]
    assert rows_of(NetworkChoices(cni="flannel", **ALL_PARTS)) == without_pods


def test_an_endpoint_is_reachable_from_the_vcn_and_a_public_one_by_its_allow_list():
    private = rows_of(NetworkChoices(), {"vcn": ["10.0.0.0/16"]})
    assert {rule[5] for rule in private if rule[:2] == ("api", "ingress")} == {"api", "workers", "pods"}
    allowed = {"api-allowed-cidrs": ["203.0.113.0/24", "203.0.113.0/24"]}
    public = rows_of(NetworkChoices(public_endpoint=True), allowed)
    new = ("api", "ingress", "tcp", "6443", "", "203.0.113.0/24")
    assert set(public) - set(rows_of(NetworkChoices(), {})) == {new}
    assert public.count(new) == 1


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


def test_security_rules_have_unique_keys_in_groups_of_as_many_rules_as_oci_allows():
    """OCI documentation, Service Limits: 120 rules for each network security group."""
    rules = security_rules(NetworkChoices(**ALL_PARTS), CIDRS)
    assert len({(rule.group, rule.key) for rule in rules}) == len(rules)
    assert max(Counter(rule.group for rule in rules).values()) <= 120
