"""Parts of a created cluster beside shapes: its network, how its nodes boot, what its parts may do in OCI."""

from functools import cache
from typing import Literal

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.values import Entry, follows_project, required_entry, values_folder

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


class SubnetLayout(Entry):
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
def subnets() -> SubnetLayout:
    """The layout of a VCN."""
    return required_entry("network", "subnets", SubnetLayout)


@cache
def security_rules() -> tuple[RuleEntry, ...]:
    """Every row of the table of rules."""
    return required_entry("network", "security-rules", _Rules).rules


@cache
def reserved_ranges() -> tuple[ReservedRange, ...]:
    """The ranges that nodes use for themselves."""
    return required_entry("network", "reserved-ranges", _ReservedRanges).ranges


class AgentPlugins(Entry):
    """Plug-ins of the agent on self-managed instances."""

    enabled: tuple[str, ...]
    disabled: tuple[str, ...]


class Bootstrap(Entry):
    """Tries of a node to join: how many, and how long."""

    attempts: int
    pause_s: int
    identity_timeout_s: int


class Packages(Entry):
    """Source of OKE's packages for images without them, and how long a node tries to install packages. `codenames` are
    those of Ubuntu's versions.
    """

    repositories: tuple[str, ...]
    codenames: dict[str, str]
    lock_timeout_s: int
    timeout_s: int
    pause_s: int


class Raid(Entry):
    """The file system over the local disks."""

    chunk_kib: int
    mount: str


class RdmaNamespaces(Entry):
    """Trial of giving RDMA devices to one network namespace each: how long, and how often, in seconds."""

    timeout_s: int
    pause_s: int


class NodeChecks(Entry):
    """Checks of a node by itself: how often, and how long they may take, in seconds."""

    interval_s: int
    timeout_s: int


class KernelFault(Entry):
    """A fault of the kernel by which a user of a node becomes root: the modules that have it, and the date from which
    on images have a kernel without (ISO); None where there is none yet.
    """

    name: str
    modules: tuple[str, ...]
    fixed: str | None


class CloudInit(Entry):
    """Scripts that the nodes of each kind of pool (`gpu`, `cpu`) run at their first boot, in that order."""

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


@cache
def cloud_init() -> CloudInit:
    """Read the scripts that nodes run at their first boot."""
    return required_entry("cloud-init", "node", CloudInit)


@cache
def script_template(name: str) -> str:
    """The template of a script."""
    return (values_folder() / "cloud-init" / f"{name}.sh.j2").read_text()


class OracleImage(Entry):
    """An image that Oracle publishes as a file. Its link changes, so that the stack file gives it."""

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
    """The image of that name, or None."""
    return entries.entry(IMAGES, name)


def image_names() -> list[str]:
    """All images of the catalogue."""
    return entries.names(IMAGES.folder)


class Eviction(Entry):
    """Minutes that OKE drains a node of a managed pool; `cycling_grace_minutes` where GPU nodes replace each other."""

    grace_minutes: int
    cycling_grace_minutes: int

    def minutes(self, chosen: int | None, *, cycling: bool) -> int:
        """The minutes of a pool for which some are chosen, or none."""
        if chosen is not None:
            return chosen
        return self.cycling_grace_minutes if cycling else self.grace_minutes


@cache
def eviction() -> Eviction:
    """Read how long nodes are drained before they go."""
    return required_entry("node-pools", "eviction", Eviction)


class NodeComparison(Entry):
    """Inputs of a node pool by what a change of them does to nodes that OKE cycles: those that a new `boot_volume`
    brings, those of the `pool` alone, and those of the `placement`, which no cycling takes. Others need other nodes.
    """

    boot_volume: tuple[str, ...]
    pool: tuple[str, ...]
    placement: tuple[str, ...]


@cache
def node_comparison() -> NodeComparison:
    """Read what OKE compares the nodes of a pool by."""
    return required_entry("node-pools", "cycling", NodeComparison)


Group = Literal["nodes", "clusters"]
"""The dynamic groups."""

Phase = Literal["cluster", "nodes"]
Scope = Literal["compartment", "network", "images", "keys", "reservations", "tags", "tenancy"]
"""What a policy is attached to: compartments, or the tenancy's root."""

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
    "defined-tags",
    "defined-tags-of-cluster-networks",
    "node-repair",
]


class DynamicGroup(Entry):
    """A dynamic group; `matching_rule` is a template, and so is `tagged_rule`, for members that have a defined tag."""

    description: str
    matching_rule: str
    tagged_rule: str | None = None
    source: str


class IamStatement(Entry):
    """A policy statement, a template; repeated for each value of its `variable` if there is one.

    `scope` says which compartment its policy is attached to: the cluster's, that of the network, of images, of keys,
    of capacity reservations or of tag namespaces, or the tenancy's root.
    """

    scope: Scope = "compartment"
    text: str
    variable: str | None = None
    source: str


class NeedEntry(Entry):
    """Need for a right: why it is granted, when, and what."""

    phase: Phase
    why: str
    statements: tuple[IamStatement, ...]


class Policies(Entry):
    """All that may be granted. `principals` are parts of conditions that many statements share; OCI acts on a policy
    `delay_s` seconds after it was written, at the latest.
    """

    delay_s: float
    groups: dict[Group, DynamicGroup]
    needs: dict[Need, NeedEntry]
    principals: dict[str, str]


@cache
def policies() -> Policies:
    """All that may be granted."""
    return required_entry("iam", "policies", Policies)
