"""Catalogue of created clusters: network layout and rules, node boot scripts and images, cycling, and IAM policies."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, entry_reader, follows_project, required_entry

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
"""Purpose of a subnet."""

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
"""Purpose of a network security group: the same as for subnets, except the OCI Bastion service, whose endpoint can't be
in a group.
"""

Outside = Literal[
    "oracle-services",
    "internet",
    "vcn",
    "bastion-subnet",
    "api-allowed-cidrs",
    "bastion-host-cidrs",
    "public-load-balancer-cidrs",
]
"""Peers of security rules, such as `internet`, that are not network security groups."""

Direction = Literal["ingress", "egress"]
Protocol = Literal["tcp", "udp", "icmp", "all"]


class PrefixRange(Entry):
    """Range of prefix lengths of a network, both inclusive. `shortest` is the largest network."""

    shortest: int
    longest: int


class FixedSubnet(Entry):
    """Subnet whose size is fixed: offset of its addresses from the VCN's first address, prefix length, DNS label."""

    offset: int
    prefix: int
    dns_label: str


class Block(Entry):
    """Block of a VCN's addresses: number `netnum` of the equal blocks that result from a prefix longer by `newbits`."""

    newbits: int
    netnum: int


class GrowingSubnet(Entry):
    """Subnet whose size depends on the number of nodes and pods, with the blocks of addresses that it may have,
    smallest first.
    """

    dns_label: str
    blocks: tuple[Block, ...]


class SubnetLayout(Entry):
    """Layout of a VCN's subnets: the ranges of fixed subnets, and the blocks of those that grow with the pools. OCI
    keeps `reserved_addresses` of each subnet; each secondary VNIC has `addresses_per_vnic` addresses for
    `pods_per_vnic` pods.
    """

    vcn_cidr: str
    vcn_prefixes: PrefixRange
    reserved_addresses: int
    pods_per_vnic: int
    addresses_per_vnic: int
    fixed: dict[SubnetRole, FixedSubnet]
    growing: dict[SubnetRole, GrowingSubnet]

    def dns_label(self, role: SubnetRole) -> str:
        """Return the DNS label of the subnet with a role."""
        return (self.fixed.get(role) or self.growing[role]).dns_label


class RuleEntry(Entry):
    """Row of the table of security rules; it stands for every combination of its roles, directions, protocols and
    peers.
    """

    roles: tuple[GroupRole, ...]
    directions: tuple[Direction, ...]
    protocols: tuple[Protocol, ...]
    ports: str | None = None
    source_ports: str | None = None
    peers: tuple[GroupRole | Outside, ...]
    cni: Literal["vcn-native", "flannel"] | None = None
    needs: str | None = None
    """Field of `NetworkChoices` that must be true for the rule to exist; None if the rule always exists."""
    description: str
    source: str


class ReservedRange(Entry):
    """IP range that programs on nodes use internally, so that no network of a stack may overlap it; `holds` says for
    what.
    """

    cidr: str
    holds: str
    source: str


class AvailabilityDomains(Entry):
    """Names of availability domains. `region_words` are the words for a region in them, where they aren't the region's
    own name, such as `PHX` for us-phoenix-1.
    """

    region_words: Mapping[str, str]

    def name(self, prefix: str, region: str, number: int) -> str:
        """Return the name of a region's availability domain, counted from 1; `prefix` is the tenancy's own (`Uocm`)."""
        return f"{prefix}:{self.region_words.get(region, region.upper())}-AD-{number}"


class _Rules(Entry):
    rules: tuple[RuleEntry, ...]


class _ReservedRanges(Entry):
    ranges: tuple[ReservedRange, ...]


subnets = entry_reader("network", "subnets", SubnetLayout)
"""Return the layout of a VCN's subnets."""


@cache
def security_rules() -> tuple[RuleEntry, ...]:
    """Return all rows of the table of a network's security rules."""
    return required_entry("network", "security-rules", _Rules).rules


availability_domains = entry_reader("network", "availability-domains", AvailabilityDomains)
"""Return what is known of the names of OCI's availability domains."""


@cache
def reserved_ranges() -> tuple[ReservedRange, ...]:
    """Return the IP ranges that nodes use internally."""
    return required_entry("network", "reserved-ranges", _ReservedRanges).ranges


class AgentPlugins(Entry):
    """Oracle Cloud Agent plug-ins to enable and to disable on self-managed instances, and the plug-in that
    sends logs.
    """

    enabled: tuple[str, ...]
    disabled: tuple[str, ...]
    logs: str


class Bootstrap(Entry):
    """Retries of a node that joins the cluster: number of attempts, pause between them and timeout for the instance's
    identity, in seconds.
    """

    attempts: int
    pause_s: int
    identity_timeout_s: int


class Packages(Entry):
    """Source of OKE's packages for images without them, and retries of their installation in seconds. `codenames` maps
    Ubuntu versions to codenames.
    """

    repositories: tuple[str, ...]
    codenames: dict[str, str]
    lock_timeout_s: int
    timeout_s: int
    pause_s: int


class Raid(Entry):
    """RAID over a node's local disks: chunk size in KiB and mount point of its file system."""

    chunk_kib: int
    mount: str


class RdmaNamespaces(Entry):
    """Limit and interval in seconds of the retries of `rdma system set netns exclusive`, which gives each RDMA device
    to one network namespace.
    """

    timeout_s: int
    pause_s: int


class NodeChecks(Entry):
    """Interval and timeout in seconds of the checks that a node runs on itself."""

    interval_s: int
    timeout_s: int


class KernelFault(Entry):
    """Kernel vulnerability by which a user of a node becomes root.

    Attributes:
        name: name of the vulnerability.
        modules: vulnerable kernel modules.
        fixed: date (ISO) from which images have a fixed kernel; None if no fix exists.
    """

    name: str
    modules: tuple[str, ...]
    fixed: str | None


class CloudInit(Entry):
    """Scripts that nodes run at first boot by kind of pool (`gpu`, `cpu`), in the order in which they run, and the
    settings of these scripts.
    """

    scripts: dict[str, tuple[str, ...]]
    kernel_faults: tuple[KernelFault, ...]
    node_checks: NodeChecks
    agent_plugins: AgentPlugins
    bootstrap: Bootstrap
    packages: Packages
    rdma_namespaces: RdmaNamespaces
    raid: Raid
    kube_proxy_mode: str
    metadata_limit_bytes: int


cloud_init = entry_reader("cloud-init", "node", CloudInit)
"""Return the first-boot scripts of nodes and their settings."""


class OracleImage(Entry):
    """Image that Oracle publishes as a file. The file's URL changes, so that the stack file has it instead of the
    catalogue.
    """

    name: str
    operating_system: str
    operating_system_version: str
    kernel: str
    gpu_driver: str
    released: str
    shapes: tuple[str, ...]


IMAGES = EntryKind("images", OracleImage, key="name")


@follows_project
def image(name: str) -> OracleImage | None:
    """Return the catalogue's node image with this name; None if it has none."""
    return entries.entry(IMAGES, name)


def image_names() -> list[str]:
    """Return the names of all node images of the catalogue, sorted."""
    return entries.names(IMAGES.folder)


class Eviction(Entry):
    """Time in minutes that OKE drains a node of a managed pool before it terminates the node; `cycling_grace_minutes`
    applies to GPU nodes of pools with cycling.
    """

    grace_minutes: int
    cycling_grace_minutes: int

    def minutes(self, chosen: int | None, *, cycling: bool) -> int:
        """Return the drain time in minutes of a pool's nodes: `chosen`, or the default if None."""
        if chosen is not None:
            return chosen
        return self.cycling_grace_minutes if cycling else self.grace_minutes


eviction = entry_reader("node-pools", "eviction", Eviction)
"""Return the drain times of nodes of managed pools."""


class NodeComparison(Entry):
    """Inputs of a node pool by the effect of a change when OKE cycles the nodes: `boot_volume`, applied with a new boot
    volume; `pool`, changes of the pool that leave nodes alone; `placement`, never applied by cycling. Changes of all
    other inputs need new instances.
    """

    boot_volume: tuple[str, ...]
    pool: tuple[str, ...]
    placement: tuple[str, ...]


node_comparison = entry_reader("node-pools", "cycling", NodeComparison)
"""Return which changed inputs of a node pool need a new boot volume, no change of nodes, or can't be applied by
OKE's cycling.
"""


Group = Literal["nodes", "clusters"]
"""Dynamic groups whose permissions IAM policies may grant: nodes, and clusters."""

Phase = Literal["cluster", "nodes"]
Scope = Literal["compartment", "network", "images", "keys", "reservations", "tags", "tenancy"]
"""Compartment (or the tenancy's root) that a policy is attached to."""

Need = Literal[
    "cluster-encryption",
    "self-managed-nodes",
    "managed-compute-cluster",
    "host-groups",
    "capacity-reservations",
    "custom-images",
    "boot-volume-encryption",
    "boot-volume-encryption-of-managed-pools",
    "load-balancer-security-groups",
    "network-elsewhere",
    "file-storage",
    "lustre",
    "cluster-autoscaler",
    "cluster-autoscaler-network-elsewhere",
    "cluster-autoscaler-instance-pools",
    "ocir",
    "oci-metrics",
    "oci-logs",
    "defined-tags",
    "defined-tags-of-cluster-networks",
    "node-repair",
]


class DynamicGroup(Entry):
    """Dynamic group of OCI IAM; `matching_rule` is a template of its rule, `tagged_rule` that of the rule for members
    with a defined tag.
    """

    description: str
    matching_rule: str
    tagged_rule: str | None = None
    source: str


class IamStatement(Entry):
    """IAM policy statement as a template, repeated for each value of its `variable`, if it has one.

    `scope` is the compartment that the policy is attached to: that of the cluster, network, images, keys, capacity
    reservations or tag namespaces, or the tenancy's root.
    """

    scope: Scope = "compartment"
    text: str
    variable: str | None = None
    source: str


class NeedEntry(Entry):
    """IAM permissions for one purpose: the phase of a deployment that needs them, the reason, and the policy
    statements.
    """

    phase: Phase
    why: str
    statements: tuple[IamStatement, ...]


class Policies(Entry):
    """Table of all IAM permissions that the kit may need.

    Attributes:
        delay_s: maximum time in seconds until OCI applies a new policy.
        groups: dynamic groups.
        needs: permissions by purpose.
        principals: parts of conditions that many statements share.
    """

    delay_s: float
    groups: dict[Group, DynamicGroup]
    needs: dict[Need, NeedEntry]
    principals: dict[str, str]


policies = entry_reader("iam", "policies", Policies)
"""Return the table of all IAM permissions."""
