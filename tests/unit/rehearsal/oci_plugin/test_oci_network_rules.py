"""What OCI refuses of networks."""

from typing import Any

import pytest
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from oci_region import PLACE, Region


@pytest.fixture
def region() -> Region:
    return Region()


def test_a_subnet_must_lie_in_its_network(region: Region):
    with pytest.raises(Refusal, match=r"400-InvalidParameter, .* not within the CIDRs of the VCN, 10.0.0.0/16"):
        region.subnet(region.vcn(), "10.1.0.0/24")


def test_subnets_must_not_overlap(region: Region):
    vcn = region.vcn()
    other = region.subnet(vcn, "10.0.0.0/20")
    with pytest.raises(Refusal, match=f"subnet {other['id']} with CIDR 10.0.0.0/20 overlaps with this CIDR"):
        region.subnet(vcn, "10.0.1.0/24")


def test_a_changed_subnet_does_not_overlap_with_itself(region: Region):
    subnet = region.subnet(region.vcn(), "10.0.0.0/24")
    wider = region.update("Subnet", subnet, compartmentId=PLACE, vcnId=subnet["vcnId"], cidrBlock="10.0.0.0/23")
    assert (wider["cidrBlock"], wider["ipv4cidrBlocks"]) == ("10.0.0.0/23", ["10.0.0.0/23"])


def test_a_network_keeps_the_ranges_of_its_subnets(region: Region):
    vcn = region.vcn("10.0.0.0/16", "10.1.0.0/16")
    region.subnet(vcn, "10.1.0.0/24")
    with pytest.raises(Refusal, match="409-Conflict"):
        region.update("Vcn", vcn, compartmentId=PLACE, cidrBlocks=["10.0.0.0/16"])


@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "10.0.0.0/31", "10.0.0.1/16", "ten"])
def test_ranges_have_from_16_to_30_bits(region: Region, cidr: str):
    with pytest.raises(Refusal, match="400-InvalidParameter"):
        region.vcn(cidr)


def test_a_second_internet_gateway_is_one_too_many(region: Region):
    where = {"compartmentId": PLACE, "vcnId": region.vcn()["id"]}
    region.create("InternetGateway", **where)
    with pytest.raises(Refusal, match=r"400-LimitExceeded, .*internet-gateway-count"):
        region.create("InternetGateway", **where)


def test_a_route_to_services_needs_a_service_gateway(region: Region):
    vcn = region.vcn()
    gateway = region.create("NatGateway", compartmentId=PLACE, vcnId=vcn["id"])
    rule = {
        "networkEntityId": gateway["id"],
        "destination": "all-iad-services-in-oracle-services-network",
        "destinationType": "SERVICE_CIDR_BLOCK",
    }
    with pytest.raises(Refusal, match="must have a CIDR block as its destination"):
        region.create("RouteTable", compartmentId=PLACE, vcnId=vcn["id"], routeRules=[rule])


TCP = {"direction": "INGRESS", "protocol": "6", "source": "10.0.0.0/16"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (TCP | {"direction": "SIDEWAYS"}, "Invalid direction: SIDEWAYS"),
        (TCP | {"direction": "EGRESS"}, "destination must not be null"),
        (TCP | {"source": "10.0.0.0/99"}, "Invalid CIDR block"),
        (TCP | {"protocol": "17", "tcpOptions": {"destinationPortRange": {"min": 1, "max": 2}}}, "for protocol 17"),
        (TCP | {"tcpOptions": {"destinationPortRange": {"min": 9, "max": 2}}}, "min not above max"),
        (TCP | {"protocol": "tcp"}, "Invalid protocol: tcp"),
    ],
)
def test_rules_that_mean_nothing_are_refused(region: Region, rule: dict[str, Any], words: str):
    group = region.group(region.vcn())
    with pytest.raises(Refusal, match=words):
        region.create("NetworkSecurityGroupSecurityRule", networkSecurityGroupId=group["id"], **rule)


def test_a_rule_may_name_a_group_of_its_own_network_only(region: Region):
    group, stranger = region.group(region.vcn()), region.group(region.vcn("10.9.0.0/16"))
    rule = {"networkSecurityGroupId": group["id"], "direction": "INGRESS", "protocol": "all"}
    peer = {"source": stranger["id"], "sourceType": "NETWORK_SECURITY_GROUP"}
    with pytest.raises(Refusal, match="is not in VCN"):
        region.create("NetworkSecurityGroupSecurityRule", **rule, **peer)


def test_what_was_deleted_is_not_found(region: Region):
    vcn = region.vcn()
    region.delete(vcn)
    with pytest.raises(Refusal, match="404-NotAuthorizedOrNotFound"):
        region.subnet(vcn, "10.0.0.0/24")


def test_what_was_there_before_is_taken_as_it_is(region: Region):
    region.subnet({"id": "ocid1.vcn.oc1.iad.of-somebody"}, "10.0.0.0/24")


def test_a_network_goes_after_all_that_is_in_it(region: Region):
    vcn = region.vcn()
    subnet = region.subnet(vcn, "10.0.0.0/24")
    gateway = region.create("NatGateway", compartmentId=PLACE, vcnId=vcn["id"])
    with pytest.raises(Refusal, match="409-"):
        region.delete(vcn)
    region.delete(subnet)
    with pytest.raises(Refusal, match=r"409-IncorrectState, .* is associated with Gateway that is in use"):
        region.delete(vcn)
    region.delete(gateway)
    region.delete(vcn)
    assert region.records.all_of("Vcn") == []


def test_a_gateway_goes_after_the_routes_to_it(region: Region):
    vcn = region.vcn()
    gateway = region.create("NatGateway", compartmentId=PLACE, vcnId=vcn["id"])
    rule = {"networkEntityId": gateway["id"], "destination": "0.0.0.0/0"}
    table = region.create("RouteTable", compartmentId=PLACE, vcnId=vcn["id"], routeRules=[rule])
    with pytest.raises(Refusal, match=f"references the RouteTable {table['id']}"):
        region.delete(gateway)


def test_a_group_takes_its_rules_with_it(region: Region):
    group = region.group(region.vcn())
    region.create("NetworkSecurityGroupSecurityRule", networkSecurityGroupId=group["id"], **TCP)
    region.delete(group)
    assert region.records.all_of("NetworkSecurityGroupSecurityRule") == []
