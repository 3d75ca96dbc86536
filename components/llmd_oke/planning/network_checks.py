"""What the network of a created cluster must satisfy. Each rule yields the problems that it finds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError
from itertools import combinations

from llmd_oke.catalogue import network as facts
from llmd_oke.config import CreateCluster, StackConfig
from llmd_oke.errors import Problem
from llmd_oke.planning.network import network_choices, network_pools
from llmd_oke.planning.network_layout import Layout, TooSmall, layout

BROADEST_ALLOWED_PREFIX = 8
"""The shortest prefix of an allow list: no organization has more addresses, and two halves of the internet are one."""

_PATH = "cluster.network"


@dataclass(frozen=True)
class _Range:
    """A range of the stack file and where it stands."""

    path: str
    network: IPv4Network
    holds: str


def network_problems(config: StackConfig) -> Iterator[Problem]:
    """What is wrong with the network, where this stack creates it."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster) or config.layer == "serving":
        return
    yield from _existing(cluster)
    yield from _allow_lists(cluster)
    yield from _bastion_service(config, cluster)
    ranges = list(_ranges(cluster))
    yield from (found for found in ranges if isinstance(found, Problem))
    yield from _vcn_size(ranges)
    sound = [found for found in ranges if isinstance(found, _Range)]
    yield from _reserved(sound)
    yield from _overlaps(sound)
    for vcn in sound:
        if vcn.path == f"{_PATH}.cidr" and _is_vcn_size(vcn.network):
            yield from _room(config, cluster, vcn.network)


def vcn_cidr(cluster: CreateCluster) -> str:
    """The range that the network's subnets are created in."""
    return cluster.network.cidr or facts.subnets().vcn_cidr


def _existing(cluster: CreateCluster) -> Iterator[Problem]:
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
            yield from _without_vcn(cluster, key)
    if cluster.cni == "flannel":
        for key, part in (("subnets", network.subnets), ("securityGroups", network.security_groups)):
            if part.pods is not None:
                why = "with flannel pods have no addresses of the VCN"
                yield Problem(f"{_PATH}.{key}.pods", part.pods, "nothing, or cni: vcn-native", why)


def _without_vcn(cluster: CreateCluster, key: str) -> Iterator[Problem]:
    part = getattr(cluster.network, key)
    for name, ocid in part.model_dump(by_alias=True, exclude_none=True).items():
        path = f"{_PATH}.{part_name(key)}.{name}"
        yield Problem(path, ocid, "nothing, or vcnId beside it", "the VCN is created, so that nothing is in it yet")


def part_name(key: str) -> str:
    """The stack file's name of a field."""
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)


def _allow_lists(cluster: CreateCluster) -> Iterator[Problem]:
    endpoint, network = cluster.api_endpoint, cluster.network
    path = "cluster.apiEndpoint.allowedCidrs"
    if endpoint.access == "public" and not endpoint.allowed_cidrs:
        why = "a public endpoint is for those who are named only, and without a name it would be for nobody"
        yield Problem(path, None, "the ranges that may reach it, such as 203.0.113.0/24; or access: private", why)
    yield from _allow_list(endpoint.allowed_cidrs, path, "the API server")
    yield from _allow_list(network.bastion_host_cidrs, f"{_PATH}.bastionHostCidrs", "SSH of the bastion host")
    for i, cidr in enumerate(network.public_load_balancer_cidrs):
        found = _parsed(cidr, f"{_PATH}.publicLoadBalancerCidrs[{i}]")
        if isinstance(found, Problem):
            yield found


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
    yield from _bastion_subnet(cluster)


def _bastion_subnet(cluster: CreateCluster) -> Iterator[Problem]:
    network, path = cluster.network, f"{_PATH}.bastionService.subnetCidr"
    cidr = network.bastion_service.subnet_cidr
    if cidr is None:
        return
    yield from _allow_list([cidr], path, "the API server")
    if network.subnets.bastion is None:
        yield Problem(path, cidr, "nothing, or subnets.bastion", "the range of a subnet that is created is known")


def _allow_list(cidrs: Sequence[str], path: str, what: str) -> Iterator[Problem]:
    for i, cidr in enumerate(cidrs):
        found = _parsed(cidr, f"{path}[{i}]")
        if isinstance(found, Problem):
            yield found
        elif found.prefixlen < BROADEST_ALLOWED_PREFIX:
            why = f"it would open {what} to {found.num_addresses} addresses of the internet"
            yield Problem(f"{path}[{i}]", cidr, f"ranges of /{BROADEST_ALLOWED_PREFIX} and smaller", why)


def _ranges(cluster: CreateCluster) -> Iterator[_Range | Problem]:
    """The ranges that must not meet, or what is wrong with one of them alone."""
    network = cluster.network
    written = [("cluster.servicesCidr", cluster.services_cidr, "Services")]
    if cluster.cni == "flannel":
        written.append(("cluster.podsCidr", cluster.pods_cidr, "pods"))
    if network.cidr is not None or network.vcn_id is None:
        written.append((f"{_PATH}.cidr", vcn_cidr(cluster), "the VCN"))
    for path, cidr, holds in written:
        found = _parsed(cidr, path)
        if isinstance(found, Problem):
            yield found
        else:
            yield _Range(path, found, holds)


def _parsed(cidr: str, path: str) -> IPv4Network | Problem:
    try:
        loose = IPv4Network(cidr, strict=False)
    except (AddressValueError, NetmaskValueError):
        return Problem(path, cidr, "four numbers up to 255 and a prefix length up to 32", "this is no IPv4 range")
    if str(loose) != cidr:
        return Problem(path, cidr, str(loose), f"the range that holds this address begins at {loose.network_address}")
    return loose


def _is_vcn_size(network: IPv4Network) -> bool:
    prefixes = facts.subnets().vcn_prefixes
    return prefixes.shortest <= network.prefixlen <= prefixes.longest


def _vcn_size(ranges: Sequence[_Range | Problem]) -> Iterator[Problem]:
    prefixes = facts.subnets().vcn_prefixes
    for found in ranges:
        if isinstance(found, _Range) and found.path == f"{_PATH}.cidr" and not _is_vcn_size(found.network):
            accepted = f"/{prefixes.shortest} to /{prefixes.longest}"
            yield Problem(found.path, str(found.network), accepted, "OCI has no VCN ranges of other sizes")


def _reserved(ranges: Sequence[_Range]) -> Iterator[Problem]:
    for written in ranges:
        for reserved in facts.reserved_ranges():
            if written.network.overlaps(IPv4Network(reserved.cidr)):
                why = f"the range of {written.holds} overlaps {reserved.cidr}: {reserved.holds}"
                yield Problem(written.path, str(written.network), f"a range outside of {reserved.cidr}", why)


def _overlaps(ranges: Sequence[_Range]) -> Iterator[Problem]:
    for one, other in combinations(ranges, 2):
        if one.network.overlaps(other.network):
            why = f"the range of {other.holds} overlaps that of {one.holds}, {one.network} ({one.path})"
            yield Problem(other.path, str(other.network), f"a range outside of {one.network}", why)


def _room(config: StackConfig, cluster: CreateCluster, vcn: IPv4Network) -> Iterator[Problem]:
    found = created_layout(config, cluster, vcn)
    for crowded in found.too_small:
        why = f"{part_name(crowded.role)} need {crowded.needed} addresses ({crowded.reason}); there are {crowded.room}"
        yield Problem(f"{_PATH}.cidr", str(vcn), _large_enough(config, cluster, vcn, crowded), why)


def created_layout(config: StackConfig, cluster: CreateCluster, vcn: IPv4Network) -> Layout:
    """The subnets that are created; those that are there already take no part of the range."""
    existing = cluster.network.subnets.model_dump(exclude_none=True)
    return layout(vcn, network_choices(config, cluster).created(existing), network_pools(config))


def _large_enough(config: StackConfig, cluster: CreateCluster, vcn: IPv4Network, crowded: TooSmall) -> str:
    for prefix in range(vcn.prefixlen - 1, facts.subnets().vcn_prefixes.shortest - 1, -1):
        larger = created_layout(config, cluster, vcn.supernet(new_prefix=prefix))
        if crowded.role not in {still.role for still in larger.too_small}:
            return f"a range of /{prefix} or larger"
    fewer = "fewer nodes" if crowded.role == "workers" else "fewer nodes, fewer pods for each node (maxPods)"
    return f"{fewer}, or cni: flannel" if crowded.role == "pods" else fewer
