"""Plan and checks of a created cluster's network: subnets, gateways and security rules."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError
from itertools import combinations, product
from math import ceil
from typing import Literal, cast, get_args

from llmd_base.errors import Problem
from llmd_base.records import record
from pydantic.alias_generators import to_camel

from llmd_oke.catalogue import cluster as facts
from llmd_oke.catalogue.cluster import Direction, GroupRole, GrowingSubnet, Outside, Protocol, RuleEntry, SubnetRole
from llmd_oke.config import CreateCluster, ExistingCluster, FileStorage, Lustre, StackConfig, SystemPoolConfig
from llmd_oke.config.base import ConfigPart
from llmd_oke.config.pools import MAX_PODS

SURGE = 0.25
"""Share of a pool's size that an update may add in nodes: OKE's default of 25 % (oci-hpc-oke)."""

BROADEST_ALLOWED_PREFIX = 8
"""Shortest prefix length in an allow list: no organization has a larger range, and two /1 ranges would be the whole
internet.
"""

PROTOCOL_NUMBERS: Mapping[Protocol, str] = {"tcp": "6", "udp": "17", "icmp": "1", "all": "all"}
"""IANA protocol numbers, as OCI's API expects them."""

PATH_DISCOVERY = (3, 4)
"""ICMP type and code of "fragmentation needed", the only ICMP messages that rules permit (terraform-oci-oke, rules.tf).
"""

ANYWHERE = "0.0.0.0/0"
_PATH = "cluster.network"


_CHOICES_OF_ROLES: Mapping[str, str] = {
    "public_load_balancers": "public_load_balancers",
    "bastion": "bastion",
    "bastion_host": "bastion_host",
    "operator": "operator",
    "storage": "file_storage",
    "lustre": "lustre",
}
"""Field of `NetworkChoices` that enables the subnet or group of a role. Other roles are always enabled, except pods,
which depend on the CNI.
"""


@dataclass(frozen=True)
class NetworkChoices:
    """Settings that determine which subnets, gateways, security groups and rules a network has. A rule's `needs` names
    one of these fields, and arguments of the component `Network` have the same names.
    """

    cni: str = "vcn-native"
    public_endpoint: bool = False
    public_load_balancers: bool = False
    bastion: bool = True
    bastion_host: bool = False
    operator: bool = False
    file_storage: bool = False
    lustre: bool = False
    worker_internet: bool = True
    pod_internet: bool = True

    def with_existing(self, roles: Collection[str]) -> "NetworkChoices":
        """Return the settings with everything enabled that needs a subnet or security group with one of these roles,
        which exist already.
        """
        return replace(self, **{choice: True for role, choice in _CHOICES_OF_ROLES.items() if role in roles})

    @property
    def flannel(self) -> bool:
        """True if pods have addresses of an overlay network instead of the VCN."""
        return self.cni == "flannel"

    @property
    def subnet_roles(self) -> tuple[SubnetRole, ...]:
        """Roles of the network's subnets."""
        return tuple(role for role in get_args(SubnetRole) if self._has(role))

    def _has(self, role: SubnetRole) -> bool:
        if role == "pods":
            return not self.flannel
        return role not in _CHOICES_OF_ROLES or bool(getattr(self, _CHOICES_OF_ROLES[role]))

    @property
    def group_roles(self) -> tuple[GroupRole, ...]:
        """Roles of the network's security groups."""
        return tuple(cast("GroupRole", role) for role in self.subnet_roles if role in get_args(GroupRole))

    @property
    def public_roles(self) -> tuple[SubnetRole, ...]:
        """Roles of the subnets whose instances may have public addresses."""
        public = {"public_load_balancers", "bastion_host", *(["api"] if self.public_endpoint else [])}
        return tuple(role for role in self.subnet_roles if role in public)

    def created(self, existing: Collection[str]) -> tuple[SubnetRole, ...]:
        """Return the roles of the subnets that the stack creates: all of the network's that aren't in `existing`."""
        return tuple(role for role in self.subnet_roles if not any(role == other for other in existing))

    @property
    def nat(self) -> bool:
        """True if any private subnet may open connections to the internet, so that a NAT gateway is needed."""
        return self.worker_internet or self.operator or (self.pod_internet and not self.flannel)


@dataclass(frozen=True)
class PoolSize:
    """Number of nodes of a pool, and maximum number of pods on each."""

    nodes: int
    max_pods: int


@dataclass(frozen=True)
class NetworkPlan:
    """Network of a created cluster: its settings, the pools for which its subnets have room, and the OCIDs of existing
    parts by role.

    If `cidr` is None, a created VCN has the catalogue's range. The bastion is the existing one, `bastion_id`, or is
    created for `bastion_client_cidrs`.
    """

    choices: NetworkChoices
    pools: tuple[PoolSize, ...]
    compartment_id: str
    cidr: str | None
    vcn_id: str | None
    subnet_ids: Mapping[str, str]
    nsg_ids: Mapping[str, str]
    route_table_ids: Mapping[str, str]
    api_access: Literal["private", "public"]
    api_allowed_cidrs: tuple[str, ...]
    public_load_balancer_cidrs: tuple[str, ...]
    bastion_client_cidrs: tuple[str, ...]
    bastion_id: str | None
    bastion_subnet_cidr: str | None
    bastion_host_cidrs: tuple[str, ...]
    services_gateway_id: str | None
    services_gateway_cidr: str | None
    display_name: str
    protect: bool


@dataclass(frozen=True)
class TooSmall:
    """Subnet that doesn't fit the VCN: the number of addresses that it needs, the number that the VCN has for it, and
    both with the reason in words, which follow the name of the subnet.
    """

    role: SubnetRole
    needed: int
    room: int
    reason: str


@dataclass(frozen=True)
class Layout:
    """Layout of a VCN: its subnets by role, and the subnets that don't fit."""

    vcn: IPv4Network
    subnets: Mapping[SubnetRole, IPv4Network]
    too_small: tuple[TooSmall, ...] = ()


@dataclass(frozen=True)
class Ports:
    """Range of port numbers in a security rule, both ends inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class RulePeer:
    """Peer of a security rule: another group, an IP range, or, if both are None, all Oracle services of the region."""

    group: GroupRole | None = None
    cidr: str | None = None

    def __str__(self) -> str:
        return self.group or self.cidr or "oracle-services"


@dataclass(frozen=True)
class SecurityRule:
    """Security rule of one group; `ports` of None permits all ports."""

    group: GroupRole
    direction: Direction
    protocol: Protocol
    ports: Ports | None
    source_ports: Ports | None
    peer: RulePeer
    description: str

    @property
    def key(self) -> str:
        """Name of the rule, unique within its group and stable as long as the rule doesn't change."""
        peer = "anywhere" if self.peer.cidr == ANYWHERE else str(self.peer).translate(str.maketrans("._/", "---"))
        ports = [str(self.ports)] if self.ports else []
        source_ports = [f"from-{self.source_ports}"] if self.source_ports else []
        return "-".join([self.direction, self.protocol, *ports, *source_ports, peer])


def planned_network(config: StackConfig, cluster: CreateCluster) -> NetworkPlan:
    """Return the plan of the network of the cluster that a stack creates."""
    network, bastion = cluster.network, cluster.network.bastion_service
    return record(
        NetworkPlan,
        network,
        cluster.lookup_results,
        choices=network_choices(config, cluster),
        pools=tuple(network_pools(config)),
        compartment_id=network.compartment_id or cluster.compartment_id,
        subnet_ids=ocids(network.subnets),
        nsg_ids=ocids(network.security_groups),
        route_table_ids=ocids(network.route_tables),
        api_access=cluster.api_endpoint.access,
        api_allowed_cidrs=cluster.api_endpoint.allowed_cidrs,
        bastion_client_cidrs=bastion.client_cidrs,
        bastion_id=bastion.ocid,
        bastion_subnet_cidr=bastion.subnet_cidr,
        display_name=cluster.name,
        protect=cluster.protect if network.protect is None else network.protect,
    )


def network_choices(config: StackConfig, cluster: CreateCluster) -> NetworkChoices:
    """Return the network settings of a stack. Existing parts, given by OCID, are always enabled."""
    network, cache = cluster.network, config.storage.model_cache
    chosen = record(
        NetworkChoices,
        network,
        cluster,
        public_endpoint=cluster.api_endpoint.access == "public",
        bastion_host=bool(network.bastion_host_cidrs),
        file_storage=isinstance(cache, FileStorage),
        lustre=isinstance(cache, Lustre),
    )
    return chosen.with_existing({*ocids(network.subnets), *ocids(network.security_groups)})


def control_plane_cidrs(config: StackConfig) -> list[str] | None:
    """Return the IP ranges from which the API server connects to pods: those in the stack file for an existing cluster,
    the endpoint's subnet for a created one with VCN-native pods. None if unknown at planning.
    """
    cluster = config.cluster
    if isinstance(cluster, ExistingCluster):
        return list(cluster.control_plane_cidrs) or None
    if not isinstance(cluster, CreateCluster) or cluster.cni != "vcn-native":
        return None
    network = cluster.network
    if network.subnets.api is not None or (network.cidr is None and network.vcn_id is not None):
        return None
    vcn = IPv4Network(network.cidr or facts.subnets().vcn_cidr)
    api = layout(vcn, ("api",), ()).subnets.get("api")
    return None if api is None else [str(api)]


def network_pools(config: StackConfig) -> list[PoolSize]:
    """Return the sizes of the pools whose nodes need addresses of the network; existing pools are left out."""
    gpu_pools = [PoolSize(pool.limits.most, pool.max_pods) for pool in config.gpu_pools if pool.pool_id is None]
    cpu_pools = (config.system_pool, *config.cpu_pools)
    return [*gpu_pools, *(PoolSize(pool.limits.most, max_pods_of(pool)) for pool in cpu_pools)]


def max_pods_of(pool: SystemPoolConfig) -> int:
    """Return the maximum number of pods on a node without GPUs: the stack file's value, or the number that the nodes'
    VNICs support.
    """
    return pool.max_pods or carried_pods(pool.shape, pool.ocpus)


def carried_pods(shape: str, ocpus: float) -> int:
    """Return the number of pods that the VNICs of a node support in a VCN-native network, at most Kubernetes' own
    limit.

    A flexible shape has one VNIC per OCPU, at least two, one of which is the node's own (oci-hpc-oke). Other shapes
    have enough VNICs for the limit, whatever `ocpus` is.
    """
    if not shape.endswith(".Flex"):
        return MAX_PODS
    return min(MAX_PODS, max(1, int(ocpus) - 1) * facts.subnets().pods_per_vnic)


def ocids(part: ConfigPart) -> dict[str, str]:
    """Return the OCIDs that are set in a part of the stack file, by role."""
    return part.model_dump(exclude_none=True)


def addresses(network: IPv4Network) -> int:
    """Return the number of usable addresses of a subnet."""
    return max(0, network.num_addresses - facts.subnets().reserved_addresses)


def nodes_with_surge(pools: Sequence[PoolSize]) -> int:
    """Return the maximum number of nodes of all pools while an update replaces nodes."""
    return sum(pool.nodes + ceil(pool.nodes * SURGE) for pool in pools)


def pod_addresses(pools: Sequence[PoolSize]) -> int:
    """Return the number of addresses that the pods of VCN-native nodes take: whole VNICs, each with one address of its
    own.
    """
    layout = facts.subnets()
    return sum(
        nodes_with_surge([pool]) * ceil(pool.max_pods / layout.pods_per_vnic) * layout.addresses_per_vnic
        for pool in pools
    )


def layout(vcn: IPv4Network, roles: Collection[SubnetRole], pools: Sequence[PoolSize]) -> Layout:
    """Return the layout of a VCN with subnets of these roles: those of fixed size in the VCN's first quarter, then
    those that grow with the pools.
    """
    subnets: dict[SubnetRole, IPv4Network] = {}
    too_small: list[TooSmall] = []
    room = vcn.num_addresses // 4
    for role in roles:
        if (entry := facts.subnets().fixed.get(role)) is None:
            continue
        network = IPv4Network((int(vcn.network_address) + entry.offset, entry.prefix))
        last = entry.offset + network.num_addresses
        if last <= room:
            subnets[role] = network
        else:
            reason = f"needs the VCN's first quarter to have {last} addresses; it has {room}"
            too_small.append(TooSmall(role, last, room, reason))
    for role, entry in facts.subnets().growing.items():
        if role not in roles:
            continue
        needed = pod_addresses(pools) if role == "pods" else nodes_with_surge(pools)
        network = _block(vcn, entry, needed)
        if network is not None and addresses(network) >= needed:
            subnets[role] = network
        else:
            nodes = sum(pool.nodes for pool in pools)
            needing = f"{nodes} nodes and {nodes_with_surge(pools) - nodes} more during updates"
            if role == "pods":
                most = max((pool.max_pods for pool in pools), default=0)
                needing += f", with up to {most} pods each on VNICs of {facts.subnets().addresses_per_vnic} addresses"
            left = 0 if network is None else addresses(network)
            reason = f"needs {needed} addresses ({needing}); the VCN has room for {left}"
            too_small.append(TooSmall(role, needed, left, reason))
    return Layout(vcn, subnets, tuple(too_small))


def _block(vcn: IPv4Network, entry: GrowingSubnet, needed: int) -> IPv4Network | None:
    """Return the first block that is large enough, else the largest of them; None if there is none."""
    networks: list[IPv4Network] = []
    for block in entry.blocks:
        prefix = vcn.prefixlen + block.newbits
        if prefix <= facts.subnets().vcn_prefixes.longest:
            networks.append(IPv4Network((int(vcn.network_address) + block.netnum * 2 ** (32 - prefix), prefix)))
    enough = [network for network in networks if addresses(network) >= needed]
    return next(iter([*enough, *reversed(networks)]), None)


def security_rules(choices: NetworkChoices, cidrs: Mapping[str, Sequence[str]]) -> list[SecurityRule]:
    """Return all security rules of the network's groups, in the order of `values/network/security-rules.yaml`, without
    repetitions.

    `cidrs` has the IP ranges of each peer that is no group, except `internet` and `oracle-services`; a peer without
    ranges (an empty allow list, no bastion subnet) has no rules.
    """
    rows = [row for row in facts.security_rules() if row.cni in (None, choices.cni)]
    rows = [row for row in rows if row.needs is None or getattr(choices, row.needs)]
    rules = (rule for row in rows for rule in _rules(row, choices.group_roles, cidrs))
    return list({(rule.group, rule.key): rule for rule in rules}.values())


def _rules(
    entry: RuleEntry, groups: Collection[GroupRole], cidrs: Mapping[str, Sequence[str]]
) -> Iterator[SecurityRule]:
    peers = [peer for named in entry.peers for peer in _peers(named, groups, cidrs)]
    ports, source_ports = _ports(entry.ports), _ports(entry.source_ports)
    for group in entry.roles:
        if group in groups:
            for direction, protocol, peer in product(entry.directions, entry.protocols, peers):
                yield SecurityRule(group, direction, protocol, ports, source_ports, peer, entry.description)


def _peers(
    named: GroupRole | Outside, groups: Collection[GroupRole], cidrs: Mapping[str, Sequence[str]]
) -> list[RulePeer]:
    """Return the peers that a row of the table names: none if the peer doesn't exist, several for an allow list."""
    if named == "oracle-services":
        return [RulePeer()]
    if named == "internet":
        return [RulePeer(cidr=ANYWHERE)]
    peers = [RulePeer(group=group) for group in groups if group == named]
    return peers or [RulePeer(cidr=cidr) for cidr in cidrs.get(named, ())]


def _ports(text: str | None) -> Ports | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    return Ports(int(first), int(last or first))


@dataclass(frozen=True)
class _Range:
    """IP range with its path in the stack file and its use."""

    path: str
    network: IPv4Network
    holds: str


def network_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of the created cluster's network, if this stack creates it."""
    cluster = config.created_cluster
    if cluster is None:
        return
    yield from _existing_parts(cluster)
    yield from _allow_lists(cluster)
    yield from _bastion_service(config, cluster)
    ranges: list[_Range] = []
    for path, cidr, holds in _ranges(cluster):
        network = network_of(cidr, path)
        if isinstance(network, Problem):
            yield network
        else:
            ranges.append(_Range(path, network, holds))
    vcn = next((item.network for item in ranges if item.path == f"{_PATH}.cidr"), None)
    prefixes = facts.subnets().vcn_prefixes
    possible = vcn is not None and prefixes.shortest <= vcn.prefixlen <= prefixes.longest
    if vcn and not possible:
        accepted = f"/{prefixes.shortest} to /{prefixes.longest}"
        yield Problem(f"{_PATH}.cidr", str(vcn), accepted, "OCI has no VCN ranges of other sizes")
    for item, reserved in product(ranges, facts.reserved_ranges()):
        if item.network.overlaps(IPv4Network(reserved.cidr)):
            why = f"the range of {item.holds} overlaps {reserved.cidr}: {reserved.holds}"
            yield Problem(item.path, str(item.network), f"a range outside of {reserved.cidr}", why)
    for one, other in combinations(ranges, 2):
        if one.network.overlaps(other.network):
            why = f"the range of {other.holds} overlaps that of {one.holds}, {one.network} ({one.path})"
            yield Problem(other.path, str(other.network), f"a range outside of {one.network}", why)
    if vcn and possible:
        for crowded in _created_layout(config, cluster, vcn).too_small:
            why = f"the {to_camel(crowded.role)} subnet {crowded.reason}"
            yield Problem(f"{_PATH}.cidr", str(vcn), _large_enough(config, cluster, vcn, crowded), why)


def _existing_parts(cluster: CreateCluster) -> Iterator[Problem]:
    network = cluster.network
    if network.vcn_id is not None:
        if network.cidr is None:
            why = "security rules and new subnets need the range of the VCN that is there already"
            yield Problem(f"{_PATH}.cidr", None, "the range of the VCN, such as 10.0.0.0/16", why)
    else:
        if cluster.cluster_id is not None:
            why = "a cluster that is there already has a VCN, which new pools must be in"
            yield Problem(f"{_PATH}.vcnId", None, "the OCID of the cluster's VCN", why)
        for key in ("subnets", "security_groups", "route_tables"):
            for name, ocid in getattr(network, key).model_dump(by_alias=True, exclude_none=True).items():
                why = "the VCN is created, so that nothing is in it yet"
                yield Problem(f"{_PATH}.{to_camel(key)}.{name}", ocid, "nothing, or vcnId beside it", why)
    if cluster.cni == "flannel":
        for key, part in (("subnets", network.subnets), ("securityGroups", network.security_groups)):
            if part.pods is not None:
                why = "with flannel pods have no addresses of the VCN"
                yield Problem(f"{_PATH}.{key}.pods", part.pods, "nothing, or cni: vcn-native", why)


def _allow_lists(cluster: CreateCluster) -> Iterator[Problem]:
    endpoint, network = cluster.api_endpoint, cluster.network
    path = "cluster.apiEndpoint.allowedCidrs"
    if endpoint.access == "public" and not endpoint.allowed_cidrs:
        why = "a public endpoint is for those who are named only, and without a name it would be for nobody"
        yield Problem(path, None, "the ranges that may reach it, such as 203.0.113.0/24; or access: private", why)
    yield from _allow_list(endpoint.allowed_cidrs, path, "the API server")
    yield from _allow_list(network.bastion_host_cidrs, f"{_PATH}.bastionHostCidrs", "SSH of the bastion host")
    for i, cidr in enumerate(network.public_load_balancer_cidrs):
        if isinstance(problem := network_of(cidr, f"{_PATH}.publicLoadBalancerCidrs[{i}]"), Problem):
            yield problem


def _bastion_service(config: StackConfig, cluster: CreateCluster) -> Iterator[Problem]:
    network, path = cluster.network, f"{_PATH}.bastionService"
    service = network.bastion_service
    clients = ", ".join(service.client_cidrs)
    yield from _allow_list(service.client_cidrs, f"{path}.clientCidrs", "the bastion")
    if service.ocid is not None and network.vcn_id is None:
        why = "the VCN is created, so that nothing is in it yet"
        yield Problem(f"{path}.ocid", service.ocid, "nothing, or vcnId beside it", why)
    if service.ocid is not None and clients:
        why = "a bastion that is there already has an allow list of its own"
        yield Problem(f"{path}.clientCidrs", clients, "nothing, or no ocid beside it", why)
    if clients and cluster.api_endpoint.access == "public":
        why = "no bastion is created for a public endpoint, which has apiEndpoint.allowedCidrs"
        yield Problem(f"{path}.clientCidrs", clients, "nothing, or apiEndpoint.access: private", why)
    if clients and not network_choices(config, cluster).bastion:
        yield Problem(f"{path}.clientCidrs", clients, "nothing, or bastion: true", "a bastion needs its subnet")
    if (cidr := service.subnet_cidr) is not None:
        yield from _allow_list([cidr], f"{path}.subnetCidr", "the API server")
        if network.subnets.bastion is None:
            why = "the range of a subnet that is created is known"
            yield Problem(f"{path}.subnetCidr", cidr, "nothing, or subnets.bastion", why)


def _allow_list(cidrs: Sequence[str], path: str, what: str) -> Iterator[Problem]:
    for i, cidr in enumerate(cidrs):
        network = network_of(cidr, f"{path}[{i}]")
        if isinstance(network, Problem):
            yield network
        elif network.prefixlen < BROADEST_ALLOWED_PREFIX:
            why = f"it would open {what} to {network.num_addresses} addresses of the internet"
            yield Problem(f"{path}[{i}]", cidr, f"ranges of /{BROADEST_ALLOWED_PREFIX} and smaller", why)


def _ranges(cluster: CreateCluster) -> Iterator[tuple[str, str, str]]:
    """Yield the IP ranges that must not overlap: path, range and use."""
    network = cluster.network
    yield "cluster.servicesCidr", cluster.services_cidr, "Services"
    if cluster.cni == "flannel":
        yield "cluster.podsCidr", cluster.pods_cidr, "pods"
    if network.cidr is not None or network.vcn_id is None:
        yield f"{_PATH}.cidr", network.cidr or facts.subnets().vcn_cidr, "the VCN"


def network_of(cidr: str, path: str) -> IPv4Network | Problem:
    """Return an IPv4 range in CIDR notation, or the problem of the stack file at `path` if it is none."""
    try:
        loose = IPv4Network(cidr, strict=False)
    except (AddressValueError, NetmaskValueError):
        return Problem(path, cidr, "four numbers up to 255 and a prefix length up to 32", "this is no IPv4 range")
    if str(loose) != cidr:
        return Problem(path, cidr, str(loose), f"the range that holds this address begins at {loose.network_address}")
    return loose


def _created_layout(config: StackConfig, cluster: CreateCluster, vcn: IPv4Network) -> Layout:
    """Return the layout of the subnets to create; existing subnets take no part of the range."""
    existing = cluster.network.subnets.model_dump(exclude_none=True)
    return layout(vcn, network_choices(config, cluster).created(existing), network_pools(config))


def _large_enough(config: StackConfig, cluster: CreateCluster, vcn: IPv4Network, crowded: TooSmall) -> str:
    """Return what would be accepted instead of a range in which a subnet has too little room: the smallest range with
    room for all subnets; if there is none, that with room for this subnet, or fewer nodes.
    """
    larger = {
        prefix: {small.role for small in _created_layout(config, cluster, vcn.supernet(new_prefix=prefix)).too_small}
        for prefix in range(vcn.prefixlen - 1, facts.subnets().vcn_prefixes.shortest - 1, -1)
    }
    enough = [prefix for prefix, small in larger.items() if not small]
    enough += [prefix for prefix, small in larger.items() if crowded.role not in small]
    if enough:
        return f"a range of /{enough[0]} or larger"
    fewer = "fewer nodes" if crowded.role == "workers" else "fewer nodes, fewer pods for each node (maxPods)"
    return f"{fewer}, or cni: flannel" if crowded.role == "pods" else fewer
