"""The network security groups of a network and their rules."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue.network import GroupRole
from llmd_oke.cluster.network_parts import NetworkSubject, dashed
from llmd_oke.planning.network_rules import (
    PATH_DISCOVERY,
    PROTOCOL_NUMBERS,
    Peer,
    Ports,
    SecurityRule,
    security_rules,
)


def groups(subject: NetworkSubject, vcn_id: pulumi.Output[str]) -> dict[GroupRole, pulumi.Output[str]]:
    """The OCIDs of all groups. Those that are there already keep the rules that they have."""
    made = {role: _group(subject, vcn_id, role) for role in subject.created_groups}
    given = subject.existing.groups
    ids: dict[GroupRole, pulumi.Output[str]] = {}
    for role in subject.choices.group_roles:
        ids[role] = pulumi.Output.from_input(given[role]) if role in subject.existing.groups else made[role].id
    for rule in security_rules(subject.choices.rules(subject.cidrs)):
        if rule.group in made:
            _rule(subject, rule, made[rule.group], ids)
    return ids


def _group(subject: NetworkSubject, vcn_id: pulumi.Output[str], role: GroupRole) -> oci.core.NetworkSecurityGroup:
    return oci.core.NetworkSecurityGroup(
        f"{subject.name}-{dashed(role)}-nsg",
        compartment_id=subject.compartment_id,
        vcn_id=vcn_id,
        display_name=subject.label(dashed(role)),
        freeform_tags=subject.tags,
        opts=subject.options(),
    )


def _rule(
    subject: NetworkSubject,
    rule: SecurityRule,
    group: oci.core.NetworkSecurityGroup,
    ids: Mapping[GroupRole, pulumi.Output[str]],
) -> None:
    """A rule. It goes with its group, so that destroying a network asks OCI once for each group."""
    peer, kind = _peer(subject, rule.peer, ids)
    side = "source" if rule.direction == "ingress" else "destination"
    arguments: dict[str, Any] = {side: peer, f"{side}_type": kind, **_protocol_options(rule)}
    oci.core.NetworkSecurityGroupSecurityRule(
        f"{subject.name}-{dashed(rule.group)}-{rule.key}",
        network_security_group_id=group.id,
        direction=rule.direction.upper(),
        protocol=PROTOCOL_NUMBERS[rule.protocol],
        stateless=False,
        description=rule.description,
        **arguments,
        opts=pulumi.ResourceOptions(parent=subject.component, deleted_with=group),
    )


def _peer(
    subject: NetworkSubject, peer: Peer, ids: Mapping[GroupRole, pulumi.Output[str]]
) -> tuple[pulumi.Input[str], str]:
    if peer.group is not None:
        return ids[peer.group], "NETWORK_SECURITY_GROUP"
    if peer.cidr is not None:
        return peer.cidr, "CIDR_BLOCK"
    return subject.services.cidr_label, "SERVICE_CIDR_BLOCK"


def _protocol_options(rule: SecurityRule) -> dict[str, Any]:
    if rule.protocol == "icmp":
        kind, code = PATH_DISCOVERY
        return {"icmp_options": {"type": kind, "code": code}}
    ranges = {"destination_port_range": _range(rule.ports), "source_port_range": _range(rule.source_ports)}
    given = {name: ports for name, ports in ranges.items() if ports is not None}
    return {f"{rule.protocol}_options": given} if given else {}


def _range(ports: Ports | None) -> dict[str, int] | None:
    return None if ports is None else {"min": ports.first, "max": ports.last}
