"""The subnets of a network and the security lists of those that groups can't serve."""

from typing import Any

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue import network as facts
from llmd_oke.catalogue.network import SubnetRole
from llmd_oke.cluster.network_gateways import Vcn, private_routes, public_routes
from llmd_oke.cluster.network_parts import NetworkSubject, dashed

API_SERVER_PORT = 6443
_TCP = "6"

WRITTEN_BY_THE_CLUSTER: frozenset[SubnetRole] = frozenset({"load_balancers", "public_load_balancers", "workers"})
"""Subnets in whose security lists OKE's cloud controller adds and removes rules, for Services of type LoadBalancer that
don't choose another mode (`oci.oraclecloud.com/security-rule-management-mode`). To begin with they have none.
"""


def subnets(subject: NetworkSubject, vcn: Vcn) -> dict[SubnetRole, pulumi.Output[str]]:
    """The OCIDs of all subnets, created or there already. Gateways are made only for subnets that are created."""
    roles = list(subject.created)
    public = [role for role in roles if subject.is_public(role)]
    routes = {
        True: public_routes(subject, vcn.vcn_id) if public else "",
        False: private_routes(subject, vcn.vcn_id) if len(public) < len(roles) else "",
    }
    made = {role: _subnet(subject, vcn, role, routes[subject.is_public(role)]) for role in roles}
    given = subject.existing.subnets
    return {
        role: made[role] if role in made else pulumi.Output.from_input(given[role])
        for role in subject.choices.subnet_roles
    }


def _subnet(
    subject: NetworkSubject, vcn: Vcn, role: SubnetRole, route_table_id: pulumi.Input[str]
) -> pulumi.Output[str]:
    """A subnet. Its range and its name are in use until the old one is gone, so that goes first."""
    own_vcn = subject.existing.vcn_id is None
    return oci.core.Subnet(
        f"{subject.name}-{dashed(role)}-subnet",
        compartment_id=subject.compartment_id,
        vcn_id=vcn.vcn_id,
        cidr_block=str(subject.created[role]),
        display_name=subject.label(dashed(role)),
        dns_label=facts.subnets().dns_label(role) if own_vcn else None,
        prohibit_public_ip_on_vnic=not subject.is_public(role),
        route_table_id=route_table_id,
        security_list_ids=[_security_list(subject, vcn, role)],
        freeform_tags=subject.tags,
        opts=subject.options(protect=True, delete_before_replace=True),
    ).id


def _security_list(subject: NetworkSubject, vcn: Vcn, role: SubnetRole) -> pulumi.Output[str]:
    if role == "bastion":
        return _declare(subject, vcn, role, _bastion_rules(subject))
    if role in WRITTEN_BY_THE_CLUSTER:
        return _declare(subject, vcn, role, {}, ignore=["ingressSecurityRules", "egressSecurityRules"])
    return vcn.locked_list_id


def _bastion_rules(subject: NetworkSubject) -> dict[str, Any]:
    """What the OCI Bastion service's endpoint needs, which can't be in a group (oci-hpc-oke, bastion-service.tf)."""
    own = str(subject.created["bastion"])
    api = str(subject.created.get("api", subject.vcn))
    port = {"min": API_SERVER_PORT, "max": API_SERVER_PORT}
    ingress = {
        "source": own,
        "source_type": "CIDR_BLOCK",
        "description": "the OCI Bastion service reaches its endpoint",
    }
    egress = {"destination": api, "destination_type": "CIDR_BLOCK", "description": "tunnels reach the API server"}
    common = {"protocol": _TCP, "stateless": False, "tcp_options": port}
    return {"ingress_security_rules": [{**common, **ingress}], "egress_security_rules": [{**common, **egress}]}


def _declare(
    subject: NetworkSubject, vcn: Vcn, role: SubnetRole, rules: dict[str, Any], ignore: list[str] | None = None
) -> pulumi.Output[str]:
    """A security list of one subnet."""
    return oci.core.SecurityList(
        f"{subject.name}-{dashed(role)}-security-list",
        compartment_id=subject.compartment_id,
        vcn_id=vcn.vcn_id,
        display_name=subject.label(dashed(role)),
        freeform_tags=subject.tags,
        **rules,
        opts=subject.options(ignore=ignore or ()),
    ).id
