"""How a VCN is cut into subnets."""

from ipaddress import IPv4Network
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.planning.network import NetworkChoices
from llmd_oke.planning.network_layout import PoolSize, addresses, layout, nodes_with_surge, pod_addresses

EVERYTHING = NetworkChoices(
    public_load_balancers=True, bastion_host=True, operator=True, file_storage=True, lustre=True
).subnet_roles
FLANNEL = NetworkChoices(cni="flannel").subnet_roles
REFERENCE = [PoolSize(9, 64), PoolSize(3, 93)]


def subnets(cidr, roles=EVERYTHING, pools=REFERENCE):
    found = layout(IPv4Network(cidr), roles, pools)
    assert found.too_small == ()
    return {role: str(network) for role, network in found.subnets.items()}


def crowded(cidr, roles, pools=REFERENCE):
    return {part.role: (part.needed, part.room) for part in layout(IPv4Network(cidr), roles, pools).too_small}


def test_a_vcn_of_the_usual_size_has_oci_hpc_okes_subnets():
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


def test_a_smaller_vcn_has_the_same_small_subnets_and_smaller_large_ones():
    assert subnets("10.0.0.0/20", FLANNEL, [PoolSize(9, 64)]) == {
        "api": "10.0.0.0/29",
        "load_balancers": "10.0.0.32/27",
        "bastion": "10.0.0.128/27",
        "workers": "10.0.4.0/23",
    }


def test_the_nodes_subnet_grows_in_place_when_the_pools_do():
    few = subnets("10.0.0.0/20", FLANNEL, [PoolSize(400, 64)])["workers"]
    many = subnets("10.0.0.0/20", FLANNEL, [PoolSize(410, 64)])["workers"]
    assert (few, many) == ("10.0.4.0/23", "10.0.4.0/22")


def test_pools_may_grow_by_a_quarter_while_they_are_updated():
    assert nodes_with_surge([PoolSize(9, 64), PoolSize(1, 31)]) == 9 + 3 + 1 + 1


@pytest.mark.parametrize(("max_pods", "expected"), [(31, 2 * 32), (32, 2 * 64), (64, 2 * 96), (110, 2 * 128)])
def test_pods_take_whole_vnics_of_31_pods_and_one_address_of_the_vnics_own(max_pods, expected):
    assert pod_addresses([PoolSize(1, max_pods)]) == expected


def test_three_addresses_of_each_subnet_are_ocis():
    assert addresses(IPv4Network("10.0.0.0/29")) == 5


def test_pods_that_find_no_room_are_told_with_figures():
    found = layout(IPv4Network("10.0.0.0/22"), NetworkChoices().subnet_roles, REFERENCE)
    (pods,) = found.too_small
    assert (pods.role, pods.needed, pods.room) == ("pods", 12 * 96 + 4 * 96, 509)
    assert pods.reason == ("12 nodes and 4 more during updates, with up to 93 pods each on VNICs of 32 addresses")


def test_the_last_node_that_fits_fits():
    assert crowded("10.0.0.0/22", FLANNEL, [PoolSize(202, 64)]) == {}
    assert crowded("10.0.0.0/22", FLANNEL, [PoolSize(203, 64)]) == {"workers": (254, 253)}


def test_a_vcn_that_is_too_small_for_a_file_system_says_so():
    roles = NetworkChoices(cni="flannel", lustre=True).subnet_roles
    assert crowded("10.0.0.0/21", roles) == {"lustre": (1024, 512)}
    assert crowded("10.0.0.0/20", roles) == {}


@pytest.mark.parametrize("cidr", ["10.0.0.0/29", "10.0.0.0/30"])
def test_a_vcn_of_a_few_addresses_is_too_small_for_everything(cidr):
    assert set(crowded(cidr, FLANNEL)) == set(FLANNEL)


@given(
    prefix=st.integers(16, 30),
    flannel=st.booleans(),
    flags=st.lists(st.booleans(), min_size=5, max_size=5),
    pools=st.lists(st.builds(PoolSize, st.integers(1, 300), st.integers(1, 110)), min_size=1, max_size=3),
)
def test_subnets_lie_in_the_vcn_never_overlap_and_hold_what_they_must(prefix, flannel, flags, pools):
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
    found = layout(vcn, choices.subnet_roles, pools)
    assert {*found.subnets, *(part.role for part in found.too_small)} == set(choices.subnet_roles)
    assert all(network.subnet_of(vcn) for network in found.subnets.values())
    assert not any(one.overlaps(other) for one, other in combinations(found.subnets.values(), 2))
    assert "workers" not in found.subnets or addresses(found.subnets["workers"]) >= nodes_with_surge(pools)
    assert "pods" not in found.subnets or addresses(found.subnets["pods"]) >= pod_addresses(pools)
    assert all(part.needed > part.room for part in found.too_small)
