"""What the network of a created cluster is refused for."""

import pytest
from created_stacks import created, gpu_pool, ocid, refusals
from stacks_for_tests import problems

VCN = ocid("vcn")


def network(**changes):
    return {"network": changes}


def test_the_defaults_are_sound():
    assert refusals() == {}


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.16.0.0/18"])
def test_other_ranges_are_sound(cidr):
    assert refusals(**network(cidr=cidr)) == {}


@pytest.mark.parametrize(
    "range_", ["10.224.0.0/16", "10.230.0.0/20", "192.168.0.0/16", "192.168.16.0/20", "10.208.0.0/16"]
)
def test_a_vcn_keeps_clear_of_the_ranges_of_rdma(range_):
    found = refusals(**network(cidr=range_))
    assert "overlaps" in found["cluster.network.cidr"]


def test_services_keep_clear_of_the_ranges_of_rdma():
    assert "RDMA interfaces" in refusals(servicesCidr="10.230.0.0/16")["cluster.servicesCidr"]


def test_pods_of_an_overlay_keep_clear_of_the_ranges_of_rdma():
    found = refusals(cni="flannel", podsCidr="10.192.0.0/10")
    assert "10.224.0.0/12" in found["cluster.podsCidr"] or "10.208.0.0/12" in found["cluster.podsCidr"]


def test_the_pods_range_means_nothing_where_pods_have_addresses_of_the_vcn():
    assert refusals(cni="vcn-native", podsCidr="10.140.0.0/16") == {}


def test_services_and_vcn_must_not_overlap():
    found = refusals(servicesCidr="10.140.0.0/20")
    assert "overlaps that of Services, 10.140.0.0/20 (cluster.servicesCidr)" in found["cluster.network.cidr"]


def test_pods_and_services_of_an_overlay_must_not_overlap():
    found = refusals(cni="flannel", podsCidr="10.96.0.0/12")
    assert "overlaps that of Services" in found["cluster.podsCidr"]


def test_a_vcn_without_room_for_the_pods_is_refused_with_figures():
    text = refusals(**network(cidr="10.0.0.0/21"))["cluster.network.cidr"]
    assert "pods need 1664 addresses (12 nodes and 4 more during updates" in text
    assert "there are 1021" in text
    assert "accepted: a range of /20 or larger" in text


def test_pools_that_are_there_already_need_no_addresses():
    assert refusals(gpu_pool(poolId=ocid("nodepool")), **network(cidr="10.0.0.0/21")) == {}


def test_subnets_that_are_there_already_take_no_room():
    given = {"subnets": {"pods": ocid("subnet", "pods")}}
    assert refusals(**network(vcnId=VCN, cidr="10.0.0.0/21", **given)) == {}


def test_more_nodes_than_any_vcn_holds_are_told_so():
    text = refusals(gpu_pool(size=1000, maxPods=110), **network(cidr="10.0.0.0/16"))["cluster.network.cidr"]
    assert "fewer nodes" in text
    assert "cni: flannel" in text


@pytest.mark.parametrize(
    ("cidr", "accepted"),
    [("10.0.0.0/15", "/16 to /30"), ("10.0.0.1/16", "10.0.0.0/16"), ("10.0.0.0/33", "a prefix length up to 32")],
)
def test_a_range_that_is_none_for_a_vcn_is_refused(cidr, accepted):
    assert accepted in refusals(**network(cidr=cidr))["cluster.network.cidr"]


def test_a_vcn_that_is_there_already_must_say_its_range():
    assert "the range of the VCN" in refusals(**network(vcnId=VCN))["cluster.network.cidr"]


def test_what_is_in_a_vcn_that_is_created_cant_be_there_already():
    found = refusals(
        **network(
            subnets={"api": ocid("subnet")},
            securityGroups={"loadBalancers": ocid("networksecuritygroup")},
            routeTables={"private": ocid("routetable")},
        )
    )
    assert set(found) == {
        "cluster.network.subnets.api",
        "cluster.network.securityGroups.loadBalancers",
        "cluster.network.routeTables.private",
    }


def test_a_cluster_that_is_there_already_has_a_vcn():
    assert "OCID of the cluster's VCN" in refusals(clusterId=ocid("cluster"))["cluster.network.vcnId"]


def test_an_overlay_has_no_subnet_for_pods():
    given = {"subnets": {"pods": ocid("subnet")}, "securityGroups": {"pods": ocid("networksecuritygroup")}}
    found = refusals(cni="flannel", **network(vcnId=VCN, cidr="10.0.0.0/16", **given))
    assert set(found) == {"cluster.network.subnets.pods", "cluster.network.securityGroups.pods"}


def test_a_public_endpoint_needs_an_allow_list():
    found = refusals(apiEndpoint={"access": "public"})
    assert "203.0.113.0/24" in found["cluster.apiEndpoint.allowedCidrs"]


def test_a_public_endpoint_with_an_allow_list_is_sound():
    assert refusals(apiEndpoint={"access": "public", "allowedCidrs": ["203.0.113.0/24"]}) == {}


@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"])
@pytest.mark.parametrize("access", ["public", "private"])
def test_the_internet_is_no_allow_list(access, cidr):
    found = refusals(apiEndpoint={"access": access, "allowedCidrs": ["203.0.113.0/24", cidr]})
    assert set(found) == {"cluster.apiEndpoint.allowedCidrs[1]"}
    assert "/8 and smaller" in found["cluster.apiEndpoint.allowedCidrs[1]"]


def test_the_bastion_host_is_not_for_the_internet_either():
    found = refusals(**network(bastionHostCidrs=["0.0.0.0/0"]))
    assert "SSH of the bastion host" in found["cluster.network.bastionHostCidrs[0]"]


def test_public_load_balancers_may_be_for_the_internet():
    assert refusals(**network(publicLoadBalancers=True)) == {}


def test_everything_is_told_at_once():
    found = refusals(
        apiEndpoint={"access": "public"},
        servicesCidr="10.230.0.0/16",
        **network(cidr="192.168.0.0/24", bastionHostCidrs=["1.2.3.4/24"]),
    )
    assert set(found) == {
        "cluster.apiEndpoint.allowedCidrs",
        "cluster.servicesCidr",
        "cluster.network.cidr",
        "cluster.network.bastionHostCidrs[0]",
    }


def test_the_serving_layer_judges_no_network():
    made = created(stack_changes={"layer": "serving"}, **network(cidr="10.0.0.0/30"))
    paths = {problem.path for problem in problems(*made.pop("models"), **made)}
    assert not any(path.startswith("cluster.network") for path in paths)


CLIENTS = {"clientCidrs": ["203.0.113.0/24"]}


def test_a_vcn_of_the_wrong_size_is_told_its_overlaps_too():
    made = created(**network(cidr="10.224.0.0/12"))
    found = problems(*made.pop("models"), **made)
    text = " ".join(problem.why for problem in found if problem.path == "cluster.network.cidr")
    assert "no VCN ranges of other sizes" in text
    assert "overlaps" in text


def test_a_bastion_for_named_clients_is_sound():
    assert refusals(**network(bastionService=CLIENTS)) == {}


@pytest.mark.parametrize(
    ("changes", "key", "why"),
    [
        (network(bastionService={"clientCidrs": ["0.0.0.0/0"]}), "clientCidrs[0]", "open the bastion"),
        (network(bastionService=CLIENTS, bastion=False), "clientCidrs", "needs its subnet"),
        (network(bastionService={"ocid": ocid("bastion")}), "ocid", "the VCN is created"),
        (
            network(bastionService={**CLIENTS, "ocid": ocid("bastion")}, vcnId=VCN, cidr="10.0.0.0/16"),
            "clientCidrs",
            "an allow list of its own",
        ),
        (
            {
                "apiEndpoint": {"access": "public", "allowedCidrs": ["203.0.113.0/24"]},
                **network(bastionService=CLIENTS),
            },
            "clientCidrs",
            "public endpoint",
        ),
        (network(bastionService={"subnetCidr": "10.0.0.0/27"}), "subnetCidr", "is created is known"),
    ],
)
def test_a_bastion_that_cant_be_is_refused(changes, key, why):
    found = refusals(**changes)
    assert set(found) == {f"cluster.network.bastionService.{key}"}
    assert why in found[f"cluster.network.bastionService.{key}"]
