"""Which subnets a VCN is cut into. Pure arithmetic on addresses; sizes follow from the VCN and from the pools."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from math import ceil

from llmd_oke.catalogue import network as facts
from llmd_oke.catalogue.network import Block, GrowingSubnet, SubnetRole

SURGE = 0.25
"""Nodes that an update may add to a pool beside its size: OKE's own default of 25 % (oci-hpc-oke)."""


@dataclass(frozen=True)
class PoolSize:
    """Nodes of one pool, and how many pods each of them may run."""

    nodes: int
    max_pods: int


@dataclass(frozen=True)
class TooSmall:
    """A subnet that finds no room in the VCN: how many addresses it needs, and how many the VCN has for it."""

    role: SubnetRole
    needed: int
    room: int
    reason: str


@dataclass(frozen=True)
class Layout:
    """The subnets of a VCN by role, and those that found no room."""

    vcn: IPv4Network
    subnets: Mapping[SubnetRole, IPv4Network]
    too_small: tuple[TooSmall, ...] = ()


def addresses(network: IPv4Network) -> int:
    """Addresses of a subnet that can be given to machines."""
    return max(0, network.num_addresses - facts.subnets().reserved_addresses)


def nodes_with_surge(pools: Sequence[PoolSize]) -> int:
    """Nodes that there may be at a time while pools are updated."""
    return sum(pool.nodes + ceil(pool.nodes * SURGE) for pool in pools)


def pod_addresses(pools: Sequence[PoolSize]) -> int:
    """Addresses that the pods of VCN-native nodes take: whole VNICs, of which one address each is the VNIC's own."""
    layout = facts.subnets()
    return sum(
        nodes_with_surge([pool]) * ceil(pool.max_pods / layout.pods_per_vnic) * layout.addresses_per_vnic
        for pool in pools
    )


def layout(vcn: IPv4Network, roles: Collection[SubnetRole], pools: Sequence[PoolSize]) -> Layout:
    """Cuts a VCN into the subnets of these roles."""
    small: dict[SubnetRole, IPv4Network] = {
        role: network for role in roles if (network := _fixed(vcn, role)) is not None
    }
    crowded = [_no_room(vcn, role) for role in roles if role in facts.subnets().fixed and role not in small]
    end = max((int(network.broadcast_address) + 1 for network in small.values()), default=int(vcn.network_address))
    growing: dict[SubnetRole, IPv4Network] = {}
    for role, entry in facts.subnets().growing.items():
        if role in roles:
            needed = _needed(role, pools)
            found = _block(vcn, entry, end, needed)
            if found is not None and addresses(found) >= needed:
                growing[role] = found
            else:
                crowded.append(_full(role, needed, 0 if found is None else addresses(found), pools))
    return Layout(vcn, {**small, **growing}, tuple(crowded))


def _needed(role: SubnetRole, pools: Sequence[PoolSize]) -> int:
    return pod_addresses(pools) if role == "pods" else nodes_with_surge(pools)


def _fixed(vcn: IPv4Network, role: SubnetRole) -> IPv4Network | None:
    """A subnet of fixed size at its fixed place, if the quarter of the VCN that such subnets have reaches that far."""
    entry = facts.subnets().fixed.get(role)
    if entry is None:
        return None
    network = IPv4Network((int(vcn.network_address) + entry.offset, entry.prefix))
    room = vcn.num_addresses // 4
    return network if entry.offset + network.num_addresses <= room else None


def _no_room(vcn: IPv4Network, role: SubnetRole) -> TooSmall:
    entry = facts.subnets().fixed[role]
    last = entry.offset + 2 ** (32 - entry.prefix)
    reason = f"small subnets share the first quarter of the VCN, and this one ends {last} addresses into it"
    return TooSmall(role, last, vcn.num_addresses // 4, reason)


def _block(vcn: IPv4Network, entry: GrowingSubnet, start: int, needed: int) -> IPv4Network | None:
    """The first block behind the small subnets that is large enough, or else the largest of them."""
    networks = [
        network
        for block in entry.blocks
        if vcn.prefixlen + block.newbits <= facts.subnets().vcn_prefixes.longest
        and int((network := _share(vcn, block)).network_address) >= start
    ]
    enough = [network for network in networks if addresses(network) >= needed]
    return next(iter([*enough, *reversed(networks)]), None)


def _share(vcn: IPv4Network, block: Block) -> IPv4Network:
    prefix = vcn.prefixlen + block.newbits
    return IPv4Network((int(vcn.network_address) + block.netnum * 2 ** (32 - prefix), prefix))


def _full(role: SubnetRole, needed: int, room: int, pools: Sequence[PoolSize]) -> TooSmall:
    nodes = sum(pool.nodes for pool in pools)
    spare = nodes_with_surge(pools) - nodes
    reason = f"{nodes} nodes and {spare} more during updates"
    if role == "pods":
        most = max((pool.max_pods for pool in pools), default=0)
        reason += f", with up to {most} pods each on VNICs of {facts.subnets().addresses_per_vnic} addresses"
    return TooSmall(role, needed, room, reason)
