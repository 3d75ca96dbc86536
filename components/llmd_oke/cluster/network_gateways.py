"""A VCN, its gateways and its route tables."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.network_parts import NetworkSubject, dns_label
from llmd_oke.planning.network_rules import ANYWHERE


@dataclass(frozen=True)
class Vcn:
    """A VCN and the security list that lets nothing through. In a VCN that was there already the list is our own."""

    vcn_id: pulumi.Output[str]
    locked_list_id: pulumi.Output[str]


def vcn(subject: NetworkSubject) -> Vcn:
    """The VCN; groups alone say what is let through, so that its security list has no rules.

    Its DNS label can't change, and is no reason to replace it: a cluster that gets another name keeps the label.
    """
    if subject.existing.vcn_id is not None:
        vcn_id = pulumi.Output.from_input(subject.existing.vcn_id)
        return Vcn(vcn_id, _locked_list(subject, vcn_id) if subject.created else pulumi.Output.from_input(""))
    made = oci.core.Vcn(
        f"{subject.name}-vcn",
        compartment_id=subject.compartment_id,
        cidr_blocks=[str(subject.vcn)],
        display_name=subject.label("vcn"),
        dns_label=dns_label(subject.display_name),
        freeform_tags=subject.tags,
        opts=subject.options(protect=True, ignore=["dnsLabel"]),
    )
    default = oci.core.DefaultSecurityList(
        f"{subject.name}-default-security-list",
        manage_default_resource_id=made.default_security_list_id,
        display_name=subject.label("locked"),
        freeform_tags=subject.tags,
        opts=subject.options(deleted_with=made),
    )
    return Vcn(made.id, default.id)


def _locked_list(subject: NetworkSubject, vcn_id: pulumi.Output[str]) -> pulumi.Output[str]:
    name = f"{subject.name}-locked-security-list"
    return oci.core.SecurityList(name, **_common(subject, vcn_id, "locked")).id


def private_routes(subject: NetworkSubject, vcn_id: pulumi.Output[str]) -> pulumi.Input[str]:
    """The route table of private subnets: to Oracle services, and to the internet where anything may go there."""
    if "private" in subject.existing.route_tables:
        return subject.existing.route_tables["private"]
    services = oci.core.ServiceGateway(
        f"{subject.name}-service-gateway",
        services=[{"service_id": subject.services.service_id}],
        **_common(subject, vcn_id, "service-gateway"),
    )
    rules = [_route(subject.services.cidr_label, "SERVICE_CIDR_BLOCK", services.id)]
    if subject.choices.nat:
        nat = oci.core.NatGateway(f"{subject.name}-nat-gateway", **_common(subject, vcn_id, "nat-gateway"))
        rules.append(_route(ANYWHERE, "CIDR_BLOCK", nat.id))
    return _route_table(subject, vcn_id, "private", rules)


def public_routes(subject: NetworkSubject, vcn_id: pulumi.Output[str]) -> pulumi.Input[str]:
    """The route table of public subnets: to the internet."""
    if "public" in subject.existing.route_tables:
        return subject.existing.route_tables["public"]
    internet = oci.core.InternetGateway(
        f"{subject.name}-internet-gateway", enabled=True, **_common(subject, vcn_id, "internet-gateway")
    )
    return _route_table(subject, vcn_id, "public", [_route(ANYWHERE, "CIDR_BLOCK", internet.id)])


def _common(subject: NetworkSubject, vcn_id: pulumi.Output[str], role: str) -> dict[str, Any]:
    """The arguments that all parts of the VCN have alike."""
    return {
        "compartment_id": subject.compartment_id,
        "vcn_id": vcn_id,
        "display_name": subject.label(role),
        "freeform_tags": subject.tags,
        "opts": subject.options(),
    }


def _route(destination: pulumi.Input[str], kind: str, gateway_id: pulumi.Output[str]) -> dict[str, Any]:
    return {"destination": destination, "destination_type": kind, "network_entity_id": gateway_id}


def _route_table(
    subject: NetworkSubject, vcn_id: pulumi.Output[str], role: str, rules: list[dict[str, Any]]
) -> pulumi.Output[str]:
    routes: Any = rules
    common = _common(subject, vcn_id, f"{role}-routes")
    return oci.core.RouteTable(f"{subject.name}-{role}-routes", route_rules=routes, **common).id
