"""Virtual cloud networks: ranges that contain each other and don't overlap, and what refers to what."""

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.errors import ServiceError, invalid, limit_exceeded
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

LARGEST_PREFIX: Final = 16
SMALLEST_PREFIX: Final = 30
"""A VCN or subnet has from /16 to /30 (OCI documentation, VCNs and Subnets)."""
_DNS_LABEL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,14}")
_PORTS: Final = {"tcpOptions": "6", "udpOptions": "17"}
_LAST_PORT: Final = 65535


def network(text: Any) -> IPv4Network:
    """A range in CIDR notation."""
    try:
        return IPv4Network(text)
    except ValueError:
        raise invalid(f"Invalid CIDR block: {text}") from None


def _sized(text: Any) -> IPv4Network:
    found = network(text)
    if not LARGEST_PREFIX <= found.prefixlen <= SMALLEST_PREFIX:
        raise invalid(f"The requested CIDR {text} is invalid: the size must be between /16 and /30")
    return found


def ranges_of(vcn: JsonObject) -> list[IPv4Network]:
    """The ranges of a VCN."""
    return [network(text) for text in vcn.get("cidrBlocks") or filter(None, [vcn.get("cidrBlock")])]


def _vcn(scene: Scene) -> None:
    _label(scene)
    ranges = [_sized(text) for text in scene.given.get("cidrBlocks") or filter(None, [scene.given.get("cidrBlock")])]
    if not ranges:
        raise invalid("Either cidrBlock or cidrBlocks must be given")
    for index, each in enumerate(ranges):
        if any(each.overlaps(other) for other in ranges[:index]):
            raise invalid(f"The requested CIDR {each} is invalid: it overlaps with another CIDR of the VCN")
    for subnet in scene.records.all_of("Subnet") if scene.before else ():
        inside = any(network(subnet.state["cidrBlock"]).subnet_of(each) for each in ranges)
        if subnet.state["vcnId"] == scene.id and not inside:
            raise ServiceError(409, "Conflict", f"The VCN's CIDRs must contain the Subnet {subnet.id}")
    if scene.before is None and len(scene.others()) >= scene.facts.limits["vcn"]["vcn-count"]:
        raise limit_exceeded("vcn-count")


def _subnet(scene: Scene) -> None:
    given, vcn = scene.given, scene.need(scene.given["vcnId"], "Vcn")
    scene.need_domain(given.get("availabilityDomain"))
    _label(scene)
    cidr = _sized(given.get("cidrBlock"))
    if vcn is not None and not any(cidr.subnet_of(each) for each in ranges_of(vcn.state)):
        ranges = ", ".join(map(str, ranges_of(vcn.state)))
        raise invalid(f"The requested CIDR {cidr} is invalid: it is not within the CIDRs of the VCN, {ranges}")
    for other in scene.others():
        if other.state["vcnId"] != given["vcnId"]:
            continue
        theirs = network(other.state["cidrBlock"])
        if cidr.overlaps(theirs):
            raise invalid(
                f"The requested CIDR {cidr} is invalid: subnet {other.id} with CIDR {theirs} overlaps with this CIDR."
            )
        if given.get("dnsLabel") and other.state.get("dnsLabel") == given["dnsLabel"]:
            raise invalid(f"dnsLabel {given['dnsLabel']} is used by subnet {other.id} of the VCN")
    _same_network(scene, given.get("routeTableId"), "RouteTable", "DefaultRouteTable")
    for id_ in given.get("securityListIds") or ():
        _same_network(scene, id_, "SecurityList", "DefaultSecurityList")
    if given.get("prohibitInternetIngress") and given.get("prohibitPublicIpOnVnic") is False:
        raise invalid("prohibitInternetIngress and prohibitPublicIpOnVnic must have the same value")


def _label(scene: Scene) -> None:
    label = scene.given.get("dnsLabel")
    if label and not _DNS_LABEL.fullmatch(label):
        raise invalid(f"dnsLabel {label} must be at most 15 letters and digits and begin with a letter")


def _same_network(scene: Scene, id_: str | None, *names: str) -> None:
    found = scene.need(id_, *names)
    if found is not None and found.state.get("vcnId", scene.given["vcnId"]) != scene.given["vcnId"]:
        raise invalid(f"{id_} is not in VCN {scene.given['vcnId']}")


def _gateway(scene: Scene) -> None:
    scene.need(scene.given["vcnId"], "Vcn")
    if any(other.state["vcnId"] == scene.given["vcnId"] for other in scene.others()):
        names = {"InternetGateway": "internet-gateway-count", "NatGateway": "nat-gateway-count"}
        raise limit_exceeded(names.get(scene.resource.name, "service-gateway-count"))


def _service_gateway(scene: Scene) -> None:
    _gateway(scene)
    if len(scene.given["services"]) > 1:
        raise invalid("A service gateway can have one service only: all services, or Object Storage")


def _route_table(scene: Scene) -> None:
    scene.need(scene.given["vcnId"], "Vcn")
    destinations: set[str] = set()
    for rule in scene.given.get("routeRules") or ():
        _route(scene, rule)
        destination = rule.get("destination") or rule.get("cidrBlock") or ""
        if destination in destinations:
            raise invalid(f"Two route rules have the destination {destination}")
        destinations.add(destination)


def _route(scene: Scene, rule: JsonObject) -> None:
    target = scene.need(rule["networkEntityId"])
    services = rule.get("destinationType") == "SERVICE_CIDR_BLOCK"
    if not services:
        network(rule.get("destination") or rule.get("cidrBlock"))
    if target is None:
        return
    if target.state.get("vcnId") != scene.given["vcnId"]:
        raise invalid(f"Route target {target.id} is not in VCN {scene.given['vcnId']}")
    if services != (target.resource.name == "ServiceGateway"):
        wanted = "a service CIDR block" if target.resource.name == "ServiceGateway" else "a CIDR block"
        raise invalid(f"A route to {target.id} must have {wanted} as its destination")


def _group(scene: Scene) -> None:
    scene.need(scene.given["vcnId"], "Vcn")


def _group_rule(scene: Scene) -> None:
    given = scene.given
    group = scene.need(given["networkSecurityGroupId"], "NetworkSecurityGroup")
    if given["direction"] not in {"INGRESS", "EGRESS"}:
        raise invalid(f"Invalid direction: {given['direction']}, must be INGRESS or EGRESS")
    side = "source" if given["direction"] == "INGRESS" else "destination"
    peer, kind = given.get(side), given.get(f"{side}Type") or "CIDR_BLOCK"
    if not peer:
        raise invalid(f"{side} must not be null for a security rule of direction {given['direction']}")
    if kind == "CIDR_BLOCK":
        network(peer)
    elif kind == "NETWORK_SECURITY_GROUP":
        scene.need_groups([peer], group.state["vcnId"] if group else None)
    elif kind != "SERVICE_CIDR_BLOCK":
        raise invalid(f"Invalid {side}Type: {kind}")
    _ports(given)
    siblings = [each for each in scene.others() if _of_group(each.state, given["networkSecurityGroupId"])]
    if len(siblings) >= scene.facts.nsg_rules_limit:
        raise limit_exceeded("securityrules-per-networksecuritygroup-count")


def _of_group(state: JsonObject, group_id: str) -> bool:
    return state["networkSecurityGroupId"] == group_id


def _ports(rule: JsonObject) -> None:
    protocol = rule["protocol"]
    if protocol != "all" and not (protocol.isdigit() and 0 <= int(protocol) <= 255):
        raise invalid(f"Invalid protocol: {protocol}, must be all or a number")
    if rule.get("icmpOptions") and protocol not in {"1", "58"}:
        raise invalid(f"icmpOptions can't be given for protocol {protocol}")
    for key, number in _PORTS.items():
        if rule.get(key) and protocol != number:
            raise invalid(f"{key} can't be given for protocol {protocol}")
        sides: JsonObject = rule.get(key) or {}
        for name, ports in sides.items():
            if ports and not 1 <= ports["min"] <= ports["max"] <= _LAST_PORT:
                raise invalid(f"{name} of {key} must be from 1 to 65535, min not above max")


def _security_list(scene: Scene) -> None:
    for rule in (*(scene.given.get("ingressSecurityRules") or ()), *(scene.given.get("egressSecurityRules") or ())):
        _ports({**rule, **{key: _range(rule.get(key)) for key in _PORTS}})


def _range(ports: JsonObject | None) -> JsonObject | None:
    """Ports of a security list's rule, in the form of a network security group's."""
    return {"destinationPortRange": ports} if ports and ports.get("min") and ports.get("max") else None


RULES: Final[Mapping[str, Callable[[Scene], None]]] = {
    "Vcn": _vcn,
    "Subnet": _subnet,
    "InternetGateway": _gateway,
    "NatGateway": _gateway,
    "ServiceGateway": _service_gateway,
    "RouteTable": _route_table,
    "NetworkSecurityGroup": _group,
    "NetworkSecurityGroupSecurityRule": _group_rule,
    "SecurityList": _security_list,
    "DefaultSecurityList": _security_list,
}
