"""The network as it is declared to OCI."""

import json
import re
from ipaddress import IPv4Network

import pytest
from llmd_base.errors import KitError
from llmd_oke.cluster.network import Network
from llmd_oke.planning.network import NetworkChoices, security_rules
from llmd_oke.testing import declared
from oci_contract import OciMocks, oci_resources, require_known_arguments

VCN = "oci:Core/vcn:Vcn"
SUBNET = "oci:Core/subnet:Subnet"
GROUP = "oci:Core/networkSecurityGroup:NetworkSecurityGroup"
RULE = "oci:Core/networkSecurityGroupSecurityRule:NetworkSecurityGroupSecurityRule"
ROUTES = "oci:Core/routeTable:RouteTable"
LIST = "oci:Core/securityList:SecurityList"
SERVICES = "all-iad-services-in-oracle-services-network"

BASE = {
    "compartment_id": "ocid1.compartment.oc1..c",
    "pools": [{"nodes": 9, "max_pods": 64}, {"nodes": 3, "max_pods": 93}],
}
PRIVATE = {}
PUBLIC = {"api_access": "public", "api_allowed_cidrs": ["203.0.113.0/24"]}
EVERYTHING = {
    **PUBLIC,
    "public_load_balancers": True,
    "bastion_host_cidrs": ["192.0.2.0/24"],
    "operator": True,
    "file_storage": True,
    "lustre": True,
}
FLANNEL = {"cni": "flannel"}
ELSEWHERE = {"vcn_id": "ocid1.vcn.oc1.iad.v", "cidr": "10.0.0.0/16"}

GROUPS = dict.fromkeys(NetworkChoices().group_roles, "group")
"""Security groups that are there already: most resources of a network are rules of groups."""

KNOWN = {}

VARIANTS = [PRIVATE, PUBLIC, EVERYTHING, {**EVERYTHING, **FLANNEL}, ELSEWHERE]


def network(**changes):
    """Return what is declared, and the functions that were called; equal networks are declared only once."""
    key = json.dumps(changes, sort_keys=True)
    if key not in KNOWN:
        mocks = OciMocks()
        KNOWN[key] = (declared(lambda: Network("net", {**BASE, **changes}), cluster=mocks), mocks)
    return KNOWN[key]


def rendered_network(**changes):
    return network(**changes)[0]


def subnet(rendered, role):
    return rendered.resource(SUBNET, f"net-{role}-subnet")


@pytest.mark.parametrize("changes", VARIANTS)
def test_both_supported_oci_plug_ins_know_every_argument_of_network_resources(changes):
    require_known_arguments(oci_resources(rendered_network(**changes)))


def test_a_vcn_has_the_configured_range_and_an_empty_default_security_list():
    rendered = rendered_network(display_name="Prod-1 West", cidr="10.0.0.0/16")
    (vcn,) = rendered.of_type(VCN)
    assert vcn.inputs["cidrBlocks"] == ["10.0.0.0/16"]
    assert (vcn.inputs["displayName"], vcn.inputs["dnsLabel"]) == ("Prod-1 West-vcn", "prod1west")
    (default,) = rendered.of_type("oci:Core/defaultSecurityList:DefaultSecurityList")
    assert default.inputs["manageDefaultResourceId"] == "default-list-of-net-vcn"
    assert not {"ingressSecurityRules", "egressSecurityRules"} & set(default.inputs)
    assert default.deleted_with == vcn.urn


@pytest.mark.parametrize(
    ("display_name", "label"),
    [("llm-production-west", "llmproductionwe"), ("24x7", "x7"), ("2024", "vcn")],
)
def test_a_vcns_dns_label_is_at_most_15_letters_and_digits_of_its_name(display_name, label):
    (vcn,) = rendered_network(display_name=display_name).of_type(VCN)
    assert vcn.inputs["dnsLabel"] == label


@pytest.mark.parametrize(
    ("changes", "public"),
    [
        (PRIVATE, set()),
        (PUBLIC, {"api"}),
        ({"public_load_balancers": True}, {"public-load-balancers"}),
        ({"bastion_host_cidrs": ["192.0.2.0/24"]}, {"bastion-host"}),
        (EVERYTHING, {"api", "public-load-balancers", "bastion-host"}),
    ],
)
def test_public_addresses_and_internet_routes_are_only_for_public_subnets(changes, public):
    rendered = rendered_network(**changes)
    for matches in rendered.of_type(SUBNET):
        is_public = matches.name.removeprefix("net-").removesuffix("-subnet") in public
        assert matches.inputs["prohibitPublicIpOnVnic"] is not is_public
        assert matches.inputs["routeTableId"] == f"id-of-net-{'public' if is_public else 'private'}-routes"
    assert len(rendered.of_type("oci:Core/internetGateway:InternetGateway")) == bool(public)


def test_private_subnets_reach_oracle_services_and_the_internet_through_gateways():
    rendered = rendered_network()
    rules = rendered.resource(ROUTES, "net-private-routes").inputs["routeRules"]
    assert sorted((r["destinationType"], r["destination"], r["networkEntityId"]) for r in rules) == [
        ("CIDR_BLOCK", "0.0.0.0/0", "id-of-net-nat-gateway"),
        ("SERVICE_CIDR_BLOCK", SERVICES, "id-of-net-service-gateway"),
    ]
    (gateway,) = rendered.of_type("oci:Core/serviceGateway:ServiceGateway")
    assert gateway.inputs["services"] == [{"serviceId": "ocid1.service.oc1.iad.all"}]


def test_public_subnets_reach_the_internet_through_the_internet_gateway():
    (route,) = rendered_network(**PUBLIC).resource(ROUTES, "net-public-routes").inputs["routeRules"]
    assert (route["destination"], route["networkEntityId"]) == ("0.0.0.0/0", "id-of-net-internet-gateway")


@pytest.mark.parametrize(
    ("changes", "gateways"),
    [
        ({"worker_internet": False}, 1),
        ({"worker_internet": False, "pod_internet": False}, 0),
        ({"worker_internet": False, **FLANNEL}, 0),
        ({"worker_internet": False, "pod_internet": False, "operator": True}, 1),
    ],
)
def test_no_nat_gateway_is_declared_if_no_private_subnet_may_use_it(changes, gateways):
    assert len(rendered_network(**changes).of_type("oci:Core/natGateway:NatGateway")) == gateways


def test_a_given_service_gateway_replaces_the_network_components_call_to_oci():
    _, asked = network()
    _, silent = network(services_gateway_id="s", services_gateway_cidr="all-phx")
    _, half = network(services_gateway_id="s")
    assert set(asked.calls) == set(half.calls) == {"oci:Core/getServices:getServices"}
    assert silent.calls == {}


def test_the_service_gateways_service_is_found_by_a_pattern_that_fits_each_region():
    (found,) = network()[1].calls["oci:Core/getServices:getServices"]["filters"]
    assert (found["name"], found["regex"]) == ("name", True)
    (pattern,) = found["values"]
    assert re.fullmatch(pattern, "All IAD Services In Oracle Services Network")


@pytest.mark.parametrize(
    ("changes", "choices"),
    [
        (PRIVATE, NetworkChoices()),
        (FLANNEL, NetworkChoices(cni="flannel")),
        (PUBLIC, NetworkChoices(public_endpoint=True)),
        (
            EVERYTHING,
            NetworkChoices(
                public_endpoint=True,
                public_load_balancers=True,
                bastion_host=True,
                operator=True,
                file_storage=True,
                lustre=True,
            ),
        ),
    ],
)
def test_every_security_rule_is_declared_in_its_security_group_and_deleted_with_it(changes, choices):
    rendered = rendered_network(**changes)
    cidrs = {
        "vcn": ["10.140.0.0/16"],
        "bastion-subnet": ["10.140.0.128/27"],
        "api-allowed-cidrs": changes.get("api_allowed_cidrs", []),
        "bastion-host-cidrs": changes.get("bastion_host_cidrs", []),
        "public-load-balancer-cidrs": ["0.0.0.0/0"],
    }
    expected = {f"net-{r.group.replace('_', '-')}-{r.key}": r for r in security_rules(choices, cidrs)}
    matches = {r.name: r for r in rendered.of_type(RULE)}
    assert set(matches) == set(expected)
    for name, resource in matches.items():
        group = rendered.resource(GROUP, f"net-{expected[name].group.replace('_', '-')}-nsg")
        assert resource.inputs["networkSecurityGroupId"] == f"id-of-{group.name}"
        assert resource.deleted_with == group.urn


def test_security_lists_of_subnets_allow_only_traffic_that_security_groups_cannot():
    rendered = rendered_network(**EVERYTHING)
    own = {"bastion", "load-balancers", "public-load-balancers", "workers"}
    for matches in rendered.of_type(SUBNET):
        role = matches.name.removeprefix("net-").removesuffix("-subnet")
        name = f"net-{role}-security-list" if role in own else "net-default-security-list"
        assert matches.inputs["securityListIds"] == [f"id-of-{name}"]


def test_the_bastion_service_reaches_the_api_server_and_nothing_else():
    matches = rendered_network().resource(LIST, "net-bastion-security-list").inputs
    (egress,) = matches["egressSecurityRules"]
    (ingress,) = matches["ingressSecurityRules"]
    port = {"min": 6443, "max": 6443}
    assert (egress["destination"], egress["protocol"], egress["tcpOptions"]) == ("10.140.0.0/29", "6", port)
    assert (ingress["source"], ingress["protocol"], ingress["tcpOptions"]) == ("10.140.0.128/27", "6", port)


def test_security_rules_that_the_cluster_adds_for_its_services_are_kept():
    for role in ("load-balancers", "public-load-balancers", "workers"):
        matches = rendered_network(**EVERYTHING).resource(LIST, f"net-{role}-security-list")
        assert not {"ingressSecurityRules", "egressSecurityRules"} & set(matches.inputs)
        assert {"ingressSecurityRules", "egressSecurityRules"} <= set(matches.ignore_changes)


def test_renaming_a_cluster_keeps_its_vcn():
    (vcn,) = rendered_network().of_type(VCN)
    assert "dnsLabel" in vcn.ignore_changes


@pytest.mark.parametrize("protect", [True, False, None])
def test_the_vcn_and_its_subnets_are_protected_if_the_stack_file_says_so(protect):
    rendered = rendered_network(protect=protect)
    assert {r.type for r in rendered.resources if r.protect} == ({VCN, SUBNET} if protect else set())


def test_an_existing_vcn_is_used_unchanged():
    rendered = rendered_network(**ELSEWHERE)
    assert rendered.of_type(VCN) == []
    assert rendered.of_type("oci:Core/defaultSecurityList:DefaultSecurityList") == []
    pods = subnet(rendered, "pods").inputs
    assert pods["vcnId"] == "ocid1.vcn.oc1.iad.v"
    assert "dnsLabel" not in pods
    assert pods["securityListIds"] == ["id-of-net-locked-security-list"]
    locked = rendered.resource(LIST, "net-locked-security-list").inputs
    assert not {"ingressSecurityRules", "egressSecurityRules"} & set(locked)


def test_with_existing_route_tables_no_gateways_are_created():
    rendered = rendered_network(**ELSEWHERE, nsg_ids=GROUPS, route_table_ids={"private": "ocid1.routetable.oc1.iad.r"})
    assert not [resource for resource in rendered.resources if "Gateway" in resource.type]
    assert subnet(rendered, "workers").inputs["routeTableId"] == "ocid1.routetable.oc1.iad.r"


def test_existing_subnets_are_used_without_creating_rules_or_routes_for_them():
    roles = NetworkChoices().subnet_roles
    rendered = rendered_network(**ELSEWHERE, subnet_ids={role: f"subnet-{role}" for role in roles})
    assert {resource.type for resource in oci_resources(rendered)} == {GROUP, RULE}


@pytest.mark.parametrize("role", ["public_load_balancers", "bastion_host", "operator", "storage", "lustre", "bastion"])
def test_existing_subnets_of_disabled_features_get_security_groups_except_bastions(role):
    rendered = rendered_network(**ELSEWHERE, bastion=False, nsg_ids=GROUPS, subnet_ids={role: f"subnet-{role}"})
    names = {resource.name for resource in rendered.of_type(GROUP)}
    assert (f"net-{role.replace('_', '-')}-nsg" in names) is (role != "bastion")


def test_rules_are_not_added_to_an_existing_security_group_but_may_refer_to_it():
    rendered = rendered_network(**ELSEWHERE, nsg_ids={"workers": "ocid1.networksecuritygroup.oc1.iad.w"})
    assert not [r.name for r in rendered.of_type(RULE) if r.name.startswith("net-workers-")]
    own = rendered.resource(RULE, "net-api-ingress-tcp-6443-workers").inputs
    assert own["source"] == "ocid1.networksecuritygroup.oc1.iad.w"


def test_the_network_component_outputs_ids_only_of_parts_that_it_creates():
    seen = {}

    def program():
        made = Network("net", {**BASE, **FLANNEL, "file_storage": True})
        seen.update(vars(made), nsg_ids_of_pods=made.for_nodes.get("pod_nsg_ids"))

    declared(program, cluster=OciMocks())
    assert seen["pod_subnet_id"] is None
    assert seen["pods_nsg_id"] is None
    assert seen["nsg_ids_of_pods"] is None
    assert seen["public_load_balancer_subnet_id"] is None
    for key in ("api_subnet_id", "worker_subnet_id", "load_balancer_subnet_id", "bastion_subnet_id", "storage_nsg_id"):
        assert seen[key] is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_access": "public"}, "needs an allow list"),
        ({"api_allowed_cidrs": ["0.0.0.0/0"]}, "whole internet"),
        ({"bastion_host_cidrs": ["0.0.0.0/0"]}, "whole internet"),
        ({"bastion_client_cidrs": ["0.0.0.0/0"]}, "whole internet"),
        ({"bastion_client_cidrs": ["192.0.2.0/24"], "bastion": False}, "needs a subnet"),
        ({"vcn_id": "v"}, "The range of a VCN"),
        ({"subnet_ids": {"api": "s"}}, "Give vcn_id beside it"),
        ({**ELSEWHERE, "subnet_ids": {"gpu": "s"}}, "has no part 'gpu'"),
        ({**ELSEWHERE, **FLANNEL, "nsg_ids": {"pods": "n"}}, "has no part 'pods'"),
        ({"cidr": "10.0.0.0/21"}, r"The pods subnet needs 1536 addresses .*has room for 1021"),
    ],
)
def test_used_alone_the_network_component_refuses_invalid_arguments(changes, message):
    with pytest.raises(KitError, match=message):
        rendered_network(**changes)


def test_every_subnet_lies_in_the_vcn():
    for matches in rendered_network(**EVERYTHING).of_type(SUBNET):
        assert IPv4Network(matches.inputs["cidrBlock"]).subnet_of(IPv4Network("10.140.0.0/16"))


BASTION = "oci:Bastion/bastion:Bastion"
CLIENTS = {"bastion_client_cidrs": ["203.0.113.0/24"]}


def test_a_bastion_is_created_in_its_subnet_for_the_given_client_ranges():
    rendered = rendered_network(**CLIENTS)
    (bastion,) = rendered.of_type(BASTION)
    assert bastion.inputs["targetSubnetId"] == "id-of-net-bastion-subnet"
    assert bastion.inputs["clientCidrBlockAllowLists"] == ["203.0.113.0/24"]
    assert bastion.inputs["maxSessionTtlInSeconds"] == 10_800
    require_known_arguments([bastion])


def test_a_bastions_name_has_only_letters_and_digits():
    (bastion,) = rendered_network(**CLIENTS, display_name="Prod-1 West").of_type(BASTION)
    assert bastion.inputs["name"] == "Prod1WestBastion"


@pytest.mark.parametrize("changes", [{}, {**CLIENTS, **PUBLIC}, {**CLIENTS, **ELSEWHERE, "bastion_id": "there"}])
def test_no_bastion_is_created_without_client_ranges_or_for_a_public_api_endpoint(changes):
    assert rendered_network(**changes).of_type(BASTION) == []


def test_only_an_existing_bastion_subnets_range_may_reach_the_api_server():
    there = {**ELSEWHERE, "subnet_ids": {"bastion": "ocid1.subnet.oc1.iad.b"}}
    sources = {
        r.inputs.get("source")
        for r in rendered_network(**there, bastion_subnet_cidr="10.9.0.0/27").of_type(RULE)
        if r.name.startswith("net-api-ingress-tcp-6443-1")
    }
    assert sources == {"10.9.0.0/27"}
