"""The network of a cluster: its subnets, the rules of its security groups, and ranges that it must keep clear of."""

from functools import cache
from pathlib import Path
from typing import Literal

from llmd_oke.values import Entry, read_yaml, values_folder

SubnetRole = Literal[
    "api",
    "workers",
    "pods",
    "load_balancers",
    "public_load_balancers",
    "bastion",
    "bastion_host",
    "operator",
    "storage",
    "lustre",
]
"""What a subnet is for."""

GroupRole = Literal[
    "api",
    "workers",
    "pods",
    "load_balancers",
    "public_load_balancers",
    "bastion_host",
    "operator",
    "storage",
    "lustre",
]
"""What a network security group is for: as subnets, but for the OCI Bastion service, whose endpoint can't be in one."""

Outside = Literal[
    "oracle-services",
    "internet",
    "vcn",
    "bastion-subnet",
    "api-allowed-cidrs",
    "bastion-host-cidrs",
    "public-load-balancer-cidrs",
]
"""Peers of rules that are no group."""

Direction = Literal["ingress", "egress"]
Protocol = Literal["tcp", "udp", "icmp", "all"]


class PrefixRange(Entry):
    """Prefix lengths, both inclusive."""

    shortest: int
    longest: int


class FixedSubnet(Entry):
    """A subnet whose size never changes: addresses from the VCN's first one, prefix length, DNS label."""

    offset: int
    prefix: int
    dns_label: str


class Block(Entry):
    """A share of a VCN: the `netnum`th of the blocks that `newbits` more prefix bits make."""

    newbits: int
    netnum: int


class GrowingSubnet(Entry):
    """A subnet that grows with the pools: the blocks that it may have, smallest first."""

    dns_label: str
    blocks: tuple[Block, ...]


class Subnets(Entry):
    """The layout of a VCN."""

    vcn_cidr: str
    vcn_prefixes: PrefixRange
    reserved_addresses: int
    pods_per_vnic: int
    addresses_per_vnic: int
    fixed: dict[SubnetRole, FixedSubnet]
    growing: dict[SubnetRole, GrowingSubnet]

    def dns_label(self, role: SubnetRole) -> str:
        """The DNS label of a subnet."""
        return (self.fixed.get(role) or self.growing[role]).dns_label


class RuleEntry(Entry):
    """A row of the table of rules; it stands for each combination of its roles, directions, protocols and peers."""

    roles: tuple[GroupRole, ...]
    directions: tuple[Direction, ...]
    protocols: tuple[Protocol, ...]
    ports: str | None = None
    source_ports: str | None = None
    peers: tuple[GroupRole | Outside, ...]
    cni: Literal["vcn-native", "flannel"] | None = None
    needs: str | None = None
    """What the network must have or allow: a field of `NetworkChoices`."""
    description: str
    source: str


class ReservedRange(Entry):
    """A range that nodes use for themselves."""

    cidr: str
    holds: str
    source: str


class _Rules(Entry):
    rules: tuple[RuleEntry, ...]


class _ReservedRanges(Entry):
    ranges: tuple[ReservedRange, ...]


@cache
def subnets() -> Subnets:
    """The layout of a VCN."""
    return Subnets.model_validate(read_yaml(_file("subnets")))


@cache
def security_rules() -> tuple[RuleEntry, ...]:
    """Every row of the table of rules."""
    return _Rules.model_validate(read_yaml(_file("security-rules"))).rules


@cache
def reserved_ranges() -> tuple[ReservedRange, ...]:
    """The ranges that nodes use for themselves."""
    return _ReservedRanges.model_validate(read_yaml(_file("reserved-ranges"))).ranges


def _file(name: str) -> Path:
    return values_folder() / "network" / f"{name}.yaml"
